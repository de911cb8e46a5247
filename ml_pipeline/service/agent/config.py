"""What a `TrainerAgent` is configured with: the settings of a run, how environments are stepped, and where it logs."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ml_pipeline.config.checks import check_count
from ml_pipeline.config.errors import UserError
from ml_pipeline.config.files import read_mapping
from ml_pipeline.config.sections import LOGGING_KEYS, same_value
from ml_pipeline.runs.train_config import TrainConfig, layered, train_config, train_settings_of
from ml_pipeline.service.vectorized_env_config import VectorizedEnvConfig

DEFAULT_LOG_FILE = Path("logs/training.log")
DEFAULT_MONITOR = Path("logs/vec_monitor")


@dataclass(frozen=True, kw_only=True)
class LoggingConfig:
    """Where a `TrainerAgent` writes besides the run folder."""

    log_file: Path | None = None
    """What the run says, and a line of progress every `log_interval` steps; None: no such file."""

    log_interval: int = 10_000
    """Environment steps between two lines of progress in the log file."""

    monitor_path: Path = DEFAULT_MONITOR
    """Of the file of episodes in the format of Stable-Baselines3's Monitor, without .monitor.csv."""


@dataclass(frozen=True, kw_only=True)
class AgentConfig:
    """n_envs: the number of environments that the settings name; None: they name none."""

    train: TrainConfig
    vectorized: VectorizedEnvConfig = field(default_factory=VectorizedEnvConfig)
    logging: LoggingConfig = field(default_factory=LoggingConfig)
    n_envs: int | None = None

    def with_settings(self, **changes: Any) -> "AgentConfig":
        """The same with other settings of the run. Raises UserError where they do not fit together."""
        flat = {
            name: value
            for group in ("run", "ppo", "trading")
            for name, value in vars(getattr(self.train, group)).items()
        }
        return replace(self, train=train_config(layered(flat, changes)))


def agent_config(config: "Mapping[str, Any] | str | Path | TrainConfig | AgentConfig") -> AgentConfig:
    """The configuration that a dict, a YAML or JSON file or the settings object describe.

    A dict and a file have the sections algorithm, environment, training, vectorized, logging and monitoring, or any
    settings of `ml-pipeline train` by their flat names.
    Raises UserError: a file that cannot be read, an unknown name (with the nearest), a value of a wrong type.
    """
    if isinstance(config, AgentConfig):
        return config
    if isinstance(config, TrainConfig):
        return AgentConfig(train=config, n_envs=None if config.run.n_envs == 1 else config.run.n_envs)
    if isinstance(config, str | Path):
        return _of_mapping(read_mapping(Path(config).expanduser()), Path(config))
    if isinstance(config, Mapping):
        return _of_mapping(config, Path("config"))
    raise UserError(
        f"config must be a dict, the path of a YAML or JSON file, or a TrainConfig, but got {type(config).__name__}."
    )


def _of_mapping(content: Mapping[Any, Any], source: Path) -> AgentConfig:
    section = content.get("vectorized", {})
    vectorized = VectorizedEnvConfig.of({} if section is None else section)
    others = {name: value for name, value in content.items() if name != "vectorized"}
    given = train_settings_of(others, source, count_envs=False)
    n_envs = given.get("n_envs")
    if "num_envs" in vectorized.model_fields_set:
        if n_envs not in {None, vectorized.num_envs}:
            raise UserError(
                f"{source}: n_envs is {n_envs}, but num_envs, which says the same, is {vectorized.num_envs}; keep one "
                "of the two."
            )
        n_envs = vectorized.num_envs
    # What a market is traded in is counted when its environments are built; until then the limit stands for it.
    known = n_envs or (vectorized.num_envs if given.get("env_id") else None)
    run = {**given, "n_envs": known or vectorized.max_concurrent_envs}
    if known is not None:
        run |= vectorized.settings()
    return AgentConfig(
        train=train_config(layered(run)),
        vectorized=vectorized,
        logging=_logging_of(content, source),
        n_envs=n_envs,
    )


def _logging_of(content: Mapping[Any, Any], source: Path) -> LoggingConfig:
    """What the sections logging and monitoring say, and log_interval of training; their keys were checked before."""
    found: dict[str, Any] = {}
    for name in ("logging", "monitoring", "training"):
        section = content.get(name)
        for key in LOGGING_KEYS if isinstance(section, Mapping) else ():
            if key in section:  # type: ignore[operator]
                if key in found and not same_value(found[key], section[key]):  # type: ignore[index]
                    raise UserError(f"{source}: {key} is set twice; keep one of the two.")
                found[key] = section[key]  # type: ignore[index]
    if "log_interval" in found:
        check_count("log_interval", found["log_interval"])
    usual = {"log_file": DEFAULT_LOG_FILE, "monitor_path": DEFAULT_MONITOR}
    for key in usual.keys() & found.keys():
        found[key] = _path(found[key], usual[key], f"{source}: {key}")
    if found.get("monitor_path", DEFAULT_MONITOR) is None:
        raise UserError(f"{source}: monitor_path must be a path; enable_monitoring: false in vectorized writes none.")
    return LoggingConfig(**found)


def _path(value: Any, usual: Path, name: str) -> Path | None:
    """A path; true is the usual one, and false or None is none."""
    if value is None or value is False:
        return None
    if value is True:
        return usual
    if not isinstance(value, str | Path) or not str(value):
        raise UserError(f"{name} must be a path, true or false, but got {value!r}.")
    return Path(value).expanduser()

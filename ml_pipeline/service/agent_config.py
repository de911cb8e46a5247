"""The configuration of a `TrainerAgent`: the settings of a run, its vector environment, and its logs."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ml_pipeline.config.checks import check_count
from ml_pipeline.config.errors import UserError, did_you_mean, nearest
from ml_pipeline.config.files import read_mapping
from ml_pipeline.config.sections import LOGGING_KEYS, same_value
from ml_pipeline.config.wording import in_one_line
from ml_pipeline.runs.train_config import TrainConfig, layered, train_config, train_settings_of
from ml_pipeline.runs.vectorized_section import MOST_ENVS, EnvType, too_many, vec_env_settings


class VectorizedEnvConfig(BaseModel):
    """Type and number of environments. Raises UserError if a value is invalid.

    >>> VectorizedEnvConfig(env_type="DummyVecEnv").settings()
    {'vec_env': 'DummyVecEnv'}
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    env_type: EnvType = "auto"
    """Where environments are stepped. DummyVecEnv: one after another in this process; SubprocVecEnv: in one worker
    process per core; batched: all in one call; auto: measure, and choose the fastest."""

    num_envs: int = Field(4, ge=1)
    """Number of environments, unless the argument `n_envs` is passed; None: choose it by measuring the time of a
    step."""

    max_concurrent_envs: int = Field(MOST_ENVS, ge=1)
    """Largest number of environments."""

    enable_monitoring: bool = True
    """Write the statistics of each episode to a file in the format of Stable-Baselines3's Monitor."""

    def __init__(self, **values: Any) -> None:
        if values.get("num_envs", 0) is None:
            del values["num_envs"]
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise _as_user_error(error, type(self).model_fields) from None
        if "num_envs" in self.model_fields_set:
            self.require_allowed(self.num_envs, "num_envs")
        elif self.num_envs > self.max_concurrent_envs:  # the default exceeds a lower limit
            object.__setattr__(self, "num_envs", self.max_concurrent_envs)

    @classmethod
    def of(cls, values: "VectorizedEnvConfig | Mapping[str, Any]") -> "VectorizedEnvConfig":
        """The configuration in a mapping. Raises UserError if it is invalid."""
        if isinstance(values, VectorizedEnvConfig):
            return values
        if not isinstance(values, Mapping):
            raise UserError(f"vectorized must be a section of settings, but got {values!r}.")
        return cls(**{str(name): value for name, value in values.items()})

    def require_allowed(self, n_envs: int, name: str = "n_envs") -> None:
        """Raise UserError if n_envs exceeds `max_concurrent_envs`."""
        if n_envs > self.max_concurrent_envs:
            raise too_many(name, n_envs, self.max_concurrent_envs)

    def settings(self) -> dict[str, Any]:
        """The run settings for these environments, by name; empty for "auto"."""
        return vec_env_settings(self.env_type)

    def given(self) -> dict[str, Any]:
        """The values that were set, as in the section `vectorized` of a file."""
        return self.model_dump(exclude_unset=True)


def _as_user_error(error: ValidationError, known: Mapping[str, Any]) -> UserError:
    """The first validation error as one sentence."""
    first = error.errors()[0]
    name = str(first["loc"][0])
    if first["type"] == "extra_forbidden":
        return UserError(f'vectorized: unknown setting "{name}". {nearest(name, known)}')
    received = in_one_line(repr(first["input"]))
    if first["type"] == "literal_error":
        choices = [str(each) for each in EnvType.__args__]  # type: ignore[attr-defined]
        hint = did_you_mean(str(first["input"]), choices)
        return UserError(f"{name} must be one of {', '.join(choices)}, but got {received}.{hint}")
    expected = "true or false" if name == "enable_monitoring" else "a whole number of at least 1"
    return UserError(f"{name} must be {expected}, but got {received}.")


DEFAULT_LOG_FILE = Path("logs/training.log")
DEFAULT_MONITOR = Path("logs/vec_monitor")


@dataclass(frozen=True, kw_only=True)
class LoggingConfig:
    """Files that a `TrainerAgent` writes in addition to the run folder."""

    log_file: Path | None = None
    """File for the messages of the run, and for a progress line every `log_interval` steps; None: no file."""

    log_interval: int = 10_000
    """Environment steps between two progress lines in the log file."""

    monitor_path: Path = DEFAULT_MONITOR
    """Path of the episode file in the format of Stable-Baselines3's Monitor, without .monitor.csv."""


@dataclass(frozen=True, kw_only=True)
class AgentConfig:
    """n_envs: the number of environments in the configuration; None if it has none."""

    train: TrainConfig
    vectorized: VectorizedEnvConfig = field(default_factory=VectorizedEnvConfig)
    logging: LoggingConfig = field(default_factory=LoggingConfig)
    n_envs: int | None = None

    def with_settings(self, **changes: Any) -> "AgentConfig":
        """A copy with other run settings. Raises UserError if they are incompatible."""
        flat = {
            name: value
            for group in ("run", "ppo", "trading")
            for name, value in vars(getattr(self.train, group)).items()
        }
        return replace(self, train=train_config(layered(flat, changes)))


def agent_config(config: "Mapping[str, Any] | str | Path | TrainConfig | AgentConfig") -> AgentConfig:
    """Read a configuration from a dict, a YAML or JSON file, or a settings object.

    A dict or file has the sections algorithm, environment, training, vectorized, logging and monitoring, or the
    settings of `ml-pipeline train` by name.
    Raises UserError if the file cannot be read, a name is unknown, or a value has the wrong type.
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
                f"{source}: n_envs is {n_envs}, but num_envs, which means the same, is {vectorized.num_envs}; keep "
                "one of the two."
            )
        n_envs = vectorized.num_envs
    # A trading run's number of environments is chosen when they are built; until then, use the limit.
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
    """The sections logging and monitoring, and log_interval of training; their keys are already checked."""
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
    """A path; True means the default path, False and None mean no path."""
    if value is None or value is False:
        return None
    if value is True:
        return usual
    if not isinstance(value, str | Path) or not str(value):
        raise UserError(f"{name} must be a path, true or false, but got {value!r}.")
    return Path(value).expanduser()

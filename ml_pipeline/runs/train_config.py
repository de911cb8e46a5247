"""The settings of a training run as one class, and how the command line, files and an interrupted run fill it.

Flags win over the file of --config, the file over the preset or the settings of the run that is resumed, and those over
defaults.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.files import convert_settings, read_mapping
from ml_pipeline.config.flags import flag_of, read_flags
from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.config.run import RunConfig
from ml_pipeline.config.sections import AGENT_SECTIONS, flatten_sections, is_sectioned
from ml_pipeline.config.settings import build
from ml_pipeline.config.wording import written
from ml_pipeline.monitoring.console import shown_path
from ml_pipeline.runs.folder import LATEST_CHECKPOINT, runs_folder
from ml_pipeline.runs.presets import Preset, preset_file, preset_of
from ml_pipeline.trading.sections import TRADING_SECTIONS
from ml_pipeline.trading.settings import TradingConfig

SECTIONS = {**AGENT_SECTIONS, **TRADING_SECTIONS}
# What a resumed run keeps, besides its market: its environments, and what its policy and its rollouts are made of.
_KEPT = frozenset({
    "env_id", "env_kwargs", "wrappers", "frame_stack", "atari", "n_envs", "vec_env", "seed", "n_steps", "hidden_sizes",
    "activation", "normalize_obs", "normalize_rewards", "normalize_values", "squash_actions", "share_layers", "memory",
    "memory_size",
})  # fmt: skip
# What makes a market another task, so that `--resume auto` looks for another run; all else is a changed setting.
_OF_MARKET = ("data", "symbols", "features")


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Every setting of a training run. Raises UserError where they do not fit together."""

    run: RunConfig = field(default_factory=RunConfig)
    ppo: PPOConfig = field(default_factory=PPOConfig)
    trading: TradingConfig = field(default_factory=TradingConfig)

    def __post_init__(self) -> None:
        self.ppo.check_batch(self.run.n_envs)

    @property
    def timesteps(self) -> int:
        """How long training is, over all environments; the trainer rounds it up to whole iterations."""
        return self.run.timesteps(self.ppo.n_steps)


@dataclass(frozen=True, kw_only=True)
class TrainStart:
    """What one call of the command line asks for."""

    config: TrainConfig
    checkpoint: Path | None
    """Where to go on from; None is a new run."""

    trust_checkpoint: bool = False
    """Open what the checkpoint holds that can run code, though no run of this user wrote it."""

    check_env: bool = False
    """Look the environment over instead of training."""

    seeds: tuple[int, ...] = ()
    """Train one run for each of these, in place of the seed of `config`."""

    notice: str | None = None
    """Which run --resume auto found, or that it found none."""


@dataclass(frozen=True)
class _SettingsFrom:
    """Where settings come from."""

    config: Path | None = None
    """YAML or JSON file of settings, named as the flags are; flags win over it."""

    preset: Preset | None = None
    """Tuned settings for the environment: zoo, those of rl-baselines3-zoo; flags and --config win over them."""


@dataclass(frozen=True)
class _StartConfig(_SettingsFrom):
    """Where settings and progress come from."""

    resume: str | None = None
    """Run folder or checkpoint to resume; auto: the newest run of the same environment or market, or a new one if there
    is none."""

    trust_checkpoint: bool = False
    """With --resume: open pickled states of environments that no run of yours on this machine signed; a pickle can run
    any code."""

    seeds: tuple[int, ...] = ()
    """Train with these seeds, one run after another, in folders NAME-seed1, NAME-seed2, ..., and compare the runs."""

    check_env: bool = False
    """Check the environment instead of training: what it returns, and whether its seed determines everything."""


@dataclass(frozen=True, kw_only=True)
class CommandLine(TrainConfig):
    """What the flags fill."""

    start: _StartConfig = field(default_factory=_StartConfig)


@dataclass(frozen=True, kw_only=True)
class SettingsCommandLine(TrainConfig):
    """The flags of a command that reads the settings of a training, and trains nothing."""

    start: _SettingsFrom = field(default_factory=_SettingsFrom)


def parse_train_config(argv: Sequence[str], *, prog: str, description: str, usual: Mapping[str, Any]) -> TrainConfig:
    """The settings that the command line, the file and the preset it names make up; where they say nothing, `usual`.

    Raises UserError about whatever cannot be used; exits with code 0 after --help.
    """
    given = _given(read_flags(argv, SettingsCommandLine, prog=prog, description=description))
    config = build(TrainConfig, _layered(usual, given))
    _reject_irrelevant_settings(config, given)
    return config


def parse_train_start(argv: Sequence[str], *, prog: str = "train_ppo.py", description: str = "") -> TrainStart:
    """Read the command line of a training run, the files it names, and the settings of the run that it resumes.

    Raises UserError about whatever cannot be used; exits with code 0 after --help.
    """
    flags = read_flags(argv, CommandLine, prog=prog, description=description)
    resume, check_env = (flags.pop(name, None) for name in ("resume", "check_env"))
    trust = bool(flags.pop("trust_checkpoint", False))
    if trust and not resume:
        raise UserError("--trust-checkpoint is about the run that --resume names; leave it out, or name one.")
    seeds = flags.pop("seeds", ())
    _check_seeds(seeds, beside={"seed": "seed" in flags, "resume": resume, "check_env": check_env})
    if resume and flags.get("preset"):
        raise UserError("--preset begins a new run, and --resume keeps the settings of one; leave one of the two out.")
    given = _given(flags)
    checkpoint = find_checkpoint(resume, given) if resume else None
    config = resumed_config(checkpoint, given) if checkpoint else build(TrainConfig, given)
    _reject_irrelevant_settings(config, given)
    return TrainStart(
        config=config,
        checkpoint=checkpoint,
        trust_checkpoint=trust,
        check_env=bool(check_env),
        seeds=seeds,
        notice=_found(checkpoint, given) if resume == "auto" else None,
    )


def _given(flags: dict[str, Any]) -> dict[str, Any]:
    """What the preset, the file and the flags set, each winning over those before it; takes the first two out."""
    file, preset = flags.pop("config", None), flags.pop("preset", None)
    given = _layered(_layered({}, read_train_settings(file)) if file else {}, flags)
    if preset is None:
        return given
    values = preset_of(preset, given.get("env_id"))
    tuned = convert_settings(values, TrainConfig, source=preset_file(preset))
    return _layered(_layered({}, tuned), given)


def read_train_settings(path: Path) -> dict[str, Any]:
    """The settings that a file names, flat or in sections, converted; what it does not name is absent.

    Raises UserError: a file that cannot be read, a name unknown or given twice, a wrong type.
    """
    content = read_mapping(path)
    if is_sectioned(content, SECTIONS):
        content = flatten_sections(content, SECTIONS, path)
    return convert_settings(content, TrainConfig, source=path)


def _check_seeds(seeds: Sequence[int], *, beside: Mapping[str, Any]) -> None:
    """Raise UserError if seeds repeat, are out of range, or stand beside a flag that begins no new run of any seed."""
    for seed in seeds:
        RunConfig(seed=seed)
    if len({*seeds}) < len(seeds):
        raise UserError(f"seeds must be different numbers, but got {' '.join(map(str, seeds))}.")
    for name, is_given in beside.items():
        if seeds and is_given:
            raise UserError(f"--seeds begins a new run for each seed, so that {flag_of(name)} does not go with it.")


def resumed_config(checkpoint: Path, changes: Mapping[str, Any]) -> TrainConfig:
    """The settings to continue a checkpoint with: its own, its folder as the run folder, and `changes` to them by name.

    Raises UserError where the checkpoint cannot be used, or where a change would make it another run.
    """
    earlier, changes = _settings_of_run(checkpoint), _layered({}, changes)
    for name in _changed(earlier, changes):
        raise UserError(
            f"The run in {checkpoint.parent} has {flag_of(name)} {written(earlier[name])}, and a resumed run keeps it, "
            f"but got {written(changes[name])}; leave it out, or start a new run without --resume."
        )
    return build(TrainConfig, _layered(earlier, changes))


def settings_in(saved: Mapping[str, Any], checkpoint: Path) -> dict[str, Any]:
    """The settings that a loaded checkpoint holds, by name. Raises UserError where this version does not know them."""
    return convert_settings(saved["config"], TrainConfig, source=checkpoint)


def find_checkpoint(resume: str, given: Mapping[str, Any]) -> Path | None:
    """The checkpoint that --resume names: a file, or the latest of a run folder.

    With "auto" it is the latest in the given `checkpoint_dir` or, without one, in the newest run of the task that is
    given; None where there is none yet. Raises UserError where a path holds no checkpoint, or one that cannot be read.
    """
    if resume == "auto":
        folder = given.get("checkpoint_dir")
        found = sorted(_latest_checkpoints(folder), key=lambda path: path.stat().st_mtime, reverse=True)
        return next((path for path in found if folder or _is_same_task(path, given)), None)
    path = Path(resume).absolute()
    checkpoint = path / LATEST_CHECKPOINT if path.is_dir() else path
    if not checkpoint.is_file():
        raise UserError(
            f"There is no checkpoint at {checkpoint}; name a run folder or a .pt file, or say --resume auto."
        )
    return checkpoint


def newest_run(settings: Mapping[str, Any]) -> Path | None:
    """The folder of the newest run that was trained with these settings, and the defaults of those that are absent.

    Its length, its workers and its learning rate may be others.
    """
    config = build(TrainConfig, _layered({}, settings))
    given = {name: value for group in ("run", "ppo", "trading") for name, value in vars(getattr(config, group)).items()}
    found = sorted(_latest_checkpoints(None), key=lambda path: path.stat().st_mtime, reverse=True)
    return next((path.parent for path in found if not _changed(_settings_of_run(path), given)), None)


def _latest_checkpoints(folder: Path | None) -> list[Path]:
    """Those of a run folder, or of all that are in checkpoints/."""
    paths = [folder / LATEST_CHECKPOINT] if folder else runs_folder().glob(f"*/{LATEST_CHECKPOINT}")
    return [path for path in paths if path.is_file()]


def _is_same_task(checkpoint: Path, given: Mapping[str, Any]) -> bool:
    """Whether the run of a checkpoint is of the environment or the market that is given, as far as one is."""
    try:
        earlier = _settings_of_run(checkpoint)
    except UserError as error:
        raise UserError(f"{str(error).rstrip('.')}. Name the run to resume in place of auto.") from error
    is_trading = given.get("env_id") is None
    if ("env_id" in given or _market_settings(given)) and earlier["env_id"] != given.get("env_id"):
        return False
    return not is_trading or all(earlier[name] == given[name] for name in _OF_MARKET if name in given)


def _found(checkpoint: Path | None, given: Mapping[str, Any]) -> str:
    """What --resume auto found, in a sentence."""
    if checkpoint is not None:
        return f"Resuming the run in {shown_path(checkpoint.parent)}."
    env_id, folder = given.get("env_id"), given.get("checkpoint_dir")
    whose = f" of {env_id}" if env_id else " of this market" if _market_settings(given) else ""
    return f"There is no run{whose} to resume in {shown_path(folder or runs_folder())} yet, so a new one begins."


def _market_settings(given: Mapping[str, Any]) -> list[str]:
    return [each.name for each in fields(TradingConfig) if each.name in given]


def _changed(earlier: Mapping[str, Any], given: Mapping[str, Any]) -> list[str]:
    """What is given for a resumed run but would make it another: not its length, its workers or its learning rate."""
    kept = {*earlier} & {*_KEPT, *_market_settings(given)} & {*given}
    return sorted(name for name in kept if earlier[name] != given[name])


def _reject_irrelevant_settings(config: TrainConfig, given: Mapping[str, Any]) -> None:
    """Raise UserError for a setting of the market with another environment, and the reverse, rather than ignore it."""
    env_id, eval_episodes = config.run.env_id, given.get("eval_episodes", RunConfig.eval_episodes)
    if env_id is None and eval_episodes != RunConfig.eval_episodes:
        raise UserError(
            "--eval-episodes is about an environment of --env-id; a market is passed through once in an evaluation, so "
            "leave it out."
        )
    usual = TradingConfig()
    of_market = [
        each.name for each in fields(usual) if each.name in given and given[each.name] != getattr(usual, each.name)
    ]
    if env_id is not None and of_market:
        raise UserError(
            f"{flag_of(of_market[0])} is about trading, but the environment is {env_id}; leave one of the two out."
        )


def _settings_of_run(checkpoint: Path) -> dict[str, Any]:
    """The settings of an earlier start, which goes on where the checkpoint is now, even if it was moved.

    They come from the checkpoint alone: config.yaml beside it is for reading.
    """
    from ml_pipeline.runs.checkpoint import (
        load_checkpoint,
        reading,
    )  # which takes torch, and only a resumption needs it

    saved = load_checkpoint(checkpoint)
    with reading(checkpoint):
        usual = {**vars(RunConfig()), **vars(PPOConfig())}  # a checkpoint of an older version knows fewer settings
        kept = {name: usual[name] for name in _KEPT}
        return {**kept, **settings_in(saved, checkpoint), "checkpoint_dir": checkpoint.absolute().parent}


def _layered(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> dict[str, Any]:
    """Settings where the upper layer wins; one length of training replaces the other, and paths no longer depend on
    the working directory."""
    layered = {**lower, **upper}
    for length, other in (("num_episodes", "total_timesteps"), ("total_timesteps", "num_episodes")):
        if upper.get(length) is not None and upper.get(other) is None:
            layered[other] = None
    return {name: value.absolute() if isinstance(value, Path) else value for name, value in layered.items()}

"""Combines the command line, settings files and the resumed run into the settings of one training call.

Flags override the --config file, the file overrides the preset or the settings of the resumed run, and those override
the defaults.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.files import convert_settings, read_mapping
from ml_pipeline.config.flags import flag_of, read_flags
from ml_pipeline.config.run import RunConfig
from ml_pipeline.runs.earlier_runs import auto_notice, find_checkpoint, resumed_config
from ml_pipeline.runs.settings_file import StartedWith, read_settings_file
from ml_pipeline.runs.train_config import TrainConfig, layered, train_config
from ml_pipeline.trading.settings import TradingConfig

Preset = Literal["zoo"]


def preset_file(name: Preset) -> Path:
    """The file of a preset: settings by name for each environment."""
    return Path(__file__).with_name(f"{name}.yaml")


def preset_of(name: Preset, env_id: str | None) -> Mapping[str, Any]:
    """A preset's settings for an environment, as in its file. Raises UserError if it has none."""
    known = read_mapping(preset_file(name))
    if env_id not in known:
        what = "trading" if env_id is None else env_id
        raise UserError(f"The preset {name} has no settings for {what}; it has them for {', '.join(known)}.")
    return known[env_id]


@dataclass(frozen=True, kw_only=True)
class TrainStart:
    """The training that a command line starts."""

    config: TrainConfig
    checkpoint: Path | None
    """The checkpoint to continue; None starts a new run."""

    trust_checkpoint: bool = False
    """With --resume: load pickled environment states even if no run of yours on this machine signed them; a pickle can
    run any code."""

    check_env: bool = False
    """Check the environment instead of training: its spaces, what it returns, and whether its seed determines
    everything."""

    seeds: tuple[int, ...] = ()
    """Train one run per seed, one after another, in folders NAME-seed1, NAME-seed2, ..., and compare them."""

    notice: str | None = None
    """Which run --resume auto found, or that it found none."""

    started_with: StartedWith = field(default_factory=StartedWith)
    """The settings file and the flags, which the run folder remembers."""


@dataclass(frozen=True, kw_only=True)
class TrainFlags:
    """A command line, before any run is read. given: its settings, including those of its files.

    started_with: the file, and the settings from flags. resume: the run, or auto. trust: --trust-checkpoint.
    """

    given: Mapping[str, Any]
    started_with: StartedWith
    resume: str | None
    trust: bool
    check_env: bool
    seeds: tuple[int, ...]


@dataclass(frozen=True)
class SettingsFrom:
    """Where settings come from."""

    config: Path | None = None
    """YAML or JSON file of settings, whose keys are the names of flags; flags override the file."""

    preset: Preset | None = None
    """Start from settings tuned for the environment: those of rl-baselines3-zoo (zoo). Flags and --config override
    them."""


@dataclass(frozen=True)
class _StartConfig(SettingsFrom):
    """Where settings and progress come from."""

    resume: str | None = None
    """Run folder or checkpoint to resume. auto: the newest run of the same environment or market, or a new run if there
    is none."""

    trust_checkpoint: bool = False
    """With --resume: also load pickled environment states that none of your runs on this machine signed. Loading a
    pickle can run any code."""

    seeds: tuple[int, ...] = ()
    """Train one run per seed, one after another, in folders NAME-seed1, NAME-seed2, ..., and compare the runs."""

    check_env: bool = False
    """Check the environment instead of training: its spaces, what it returns, and whether the seed determines
    everything in it."""


@dataclass(frozen=True, kw_only=True)
class CommandLine(TrainConfig):
    """The settings from all flags."""

    start: _StartConfig = field(default_factory=_StartConfig)


@dataclass(frozen=True, kw_only=True)
class SettingsCommandLine(TrainConfig):
    """The flags of a command that reads training settings but does not train."""

    start: SettingsFrom = field(default_factory=SettingsFrom)


def parse_train_config(argv: Sequence[str], *, prog: str, description: str, usual: Mapping[str, Any]) -> TrainConfig:
    """The settings from the command line and its file and preset; `usual` for the rest.

    Raises UserError if anything is invalid; exits with code 0 after --help.
    """
    given, _ = given_settings(read_flags(argv, SettingsCommandLine, prog=prog, description=description))
    config = train_config(layered(usual, given))
    reject_irrelevant_settings(config, given)
    return config


def parse_train_start(argv: Sequence[str], *, prog: str = "train_ppo.py", description: str = "") -> TrainStart:
    """Read the command line of a training run, its files, and the settings of the run to resume.

    Raises UserError if anything is invalid; exits with code 0 after --help.
    """
    return train_start(read_train_flags(argv, prog=prog, description=description))


def read_train_flags(argv: Sequence[str], *, prog: str = "train_ppo.py", description: str = "") -> TrainFlags:
    """Read the command line of a training run and its settings files, but no run.

    Raises UserError if anything is invalid; exits with code 0 after --help.
    """
    flags = read_flags(argv, CommandLine, prog=prog, description=description)
    resume, check_env = (flags.pop(name, None) for name in ("resume", "check_env"))
    trust = bool(flags.pop("trust_checkpoint", False))
    if trust and not resume:
        raise UserError("--trust-checkpoint is for the run that --resume names; leave it out, or add --resume.")
    seeds = flags.pop("seeds", ())
    check_seeds(seeds, beside={"seed": "seed" in flags, "resume": resume, "check_env": check_env})
    if resume and flags.get("preset"):
        raise UserError("--preset starts a new run, but --resume continues an old one; use one of them.")
    given, started = given_settings(flags)
    return TrainFlags(
        given=given, started_with=started, resume=resume, trust=trust, check_env=bool(check_env), seeds=seeds
    )


def train_start(flags: TrainFlags) -> TrainStart:
    """Combine a command line with the settings of the run that it resumes.

    Raises UserError if anything is invalid.
    """
    given, resume = flags.given, flags.resume
    checkpoint = find_checkpoint(resume, given) if resume else None
    config = resumed_config(checkpoint, given) if checkpoint else train_config(given)
    reject_irrelevant_settings(config, given)
    return TrainStart(
        config=config,
        checkpoint=checkpoint,
        trust_checkpoint=flags.trust,
        check_env=flags.check_env,
        seeds=flags.seeds,
        notice=auto_notice(checkpoint, given) if resume == "auto" else None,
        started_with=flags.started_with,
    )


def given_settings(flags: dict[str, Any]) -> tuple[dict[str, Any], StartedWith]:
    """Combine preset, file and flags, later ones winning; removes "config" and "preset" from `flags`.

    Returns the settings, and the file and flags to record in the run folder.
    """
    path, preset = flags.pop("config", None), flags.pop("preset", None)
    in_file, file = read_settings_file(path) if path else ({}, None)
    given, started = layered(in_file, flags), StartedWith(file=file).with_flags(**flags)
    if preset is None:
        return given, started
    values = preset_of(preset, given.get("env_id"))
    tuned = convert_settings(values, TrainConfig, source=preset_file(preset))
    return layered(tuned, given), started


def check_seeds(seeds: Sequence[int], *, beside: Mapping[str, Any]) -> None:
    """Raise UserError if seeds repeat, are out of range, or come with a flag that conflicts with --seeds."""
    for seed in seeds:
        RunConfig(seed=seed)
    if len({*seeds}) < len(seeds):
        raise UserError(f"seeds must be different numbers, but got {' '.join(map(str, seeds))}.")
    for name, is_given in beside.items():
        if seeds and is_given:
            raise UserError(f"--seeds starts a new run for each seed; leave out {flag_of(name)}.")


def reject_irrelevant_settings(config: TrainConfig, given: Mapping[str, Any]) -> None:
    """Raise UserError if a market setting is given for an --env-id, or the reverse, instead of ignoring it."""
    env_id, eval_episodes = config.run.env_id, given.get("eval_episodes", RunConfig.eval_episodes)
    if env_id is None and eval_episodes != RunConfig.eval_episodes:
        raise UserError(
            "--eval-episodes is for environments of --env-id; a market is evaluated in one pass, so leave it out."
        )
    usual = TradingConfig()
    of_market = [
        each.name for each in fields(usual) if each.name in given and given[each.name] != getattr(usual, each.name)
    ]
    if env_id is not None and of_market:
        raise UserError(f"{flag_of(of_market[0])} is for trading, but --env-id is {env_id}; use one of them.")

"""The configuration of one `tune` command: the settings of the study, and the `train` settings that all trials share.

A trial is one run, or one run per seed or walk-forward fold. The settings in a run's config.yaml describe it fully, so
`ml-pipeline train --config` repeats it and `--resume` continues it, as with any other run.
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from ml_pipeline.config.checks import check_choice, check_count
from ml_pipeline.config.errors import UserError
from ml_pipeline.config.files import convert_settings
from ml_pipeline.config.flags import flag_of, naming_flags, read_flags
from ml_pipeline.config.run import RunConfig
from ml_pipeline.config.settings import build, flatten
from ml_pipeline.runs.train_command_line import SettingsFrom, given_settings, reject_irrelevant_settings
from ml_pipeline.runs.train_config import TrainConfig, layered, train_config
from ml_pipeline.trading.market.symbol_files import files_of, find_symbol_files

SamplerName = Literal["tpe", "gp", "cmaes", "random", "grid"]
PrunerName = Literal["asha", "hyperband", "median", "none"]
_STUDY_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+@=,-]{0,120}")


@dataclass(frozen=True)
class TuneConfig(SettingsFrom):
    """The study: its trials, search space, sampler and pruner."""

    study_name: str | None = None
    """Name of the study and of its folder in --root. If the study exists, it continues."""

    n_trials: int = 100
    """Number of finished trials, complete or pruned, at which the study ends, usually 50 to 500. More trials find
    better settings, but also raise the best score that luck alone would reach."""

    n_jobs: int | Literal["auto"] = "auto"
    """Number of trials that run at once, each in its own process; auto: as many as cores and free memory allow."""

    space: str | None = None
    """Search space: the name of a built-in space (ppo or trading), a YAML file, or a function as module:function; none:
    ppo with --env-id, otherwise trading."""

    sampler: SamplerName = "tpe"
    """How the settings of a trial are drawn: by TPE, a Gaussian process (gp), CMA-ES, at random, or from every point of
    a grid. --seed seeds the sampler."""

    pruner: PrunerName = "asha"
    """How trials that fall behind are stopped early: by asynchronous successive halving (asha), Hyperband, comparison
    with the median, or not at all (none)."""

    data_dir: Path | None = None
    """Folder of market data with one file per symbol; replaces --data. One policy trades all symbols, each in a
    separate account."""

    storage: str | None = None
    """Where the study is stored: the path of a journal file, or postgresql://USER@HOST/DATABASE. Processes with the
    same storage and study name work on the same study, also on several machines; none: a journal in the study's
    folder."""

    max_concurrent_envs: int | None = None
    """Largest number of environments of all running trials together; none: no limit."""

    gpu: int | None = None
    """Index of the GPU that all trials use, from 0; none: the device that --device selects."""

    continue_trial: int | None = None
    """Number of a trial whose run continues to its end without being pruned; then the command exits."""

    root: Path | None = None
    """Folder of runs, in which the study's folder lies; none: checkpoints/."""

    def __post_init__(self) -> None:
        check_count("n_trials", self.n_trials)
        for name, known in (("sampler", get_args(SamplerName)), ("pruner", get_args(PrunerName))):
            check_choice(name, getattr(self, name), known)
        if self.n_jobs != "auto":
            check_count("n_jobs", self.n_jobs)
        if self.max_concurrent_envs is not None:
            check_count("max_concurrent_envs", self.max_concurrent_envs)
        for name in ("gpu", "continue_trial"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name), minimum=0)
        if self.study_name is not None and not _STUDY_NAME.fullmatch(self.study_name):
            raise UserError(
                'study_name must be letters, digits and any of "._+@=,-", beginning with a letter or digit, but got '
                f'"{self.study_name[:130]}".'
            )


Objective = Literal["score", "sharpe"]


class Unit(NamedTuple):
    """One of the runs of a trial."""

    name: str
    """Suffix of its folder's name; empty if the trial is one run."""
    settings: Mapping[str, Any]
    """Settings that it adds to those of the trial."""


@dataclass(frozen=True, kw_only=True)
class ObjectiveConfig:
    """How trials are scored.

    Raises UserError if a value is out of range.

    >>> [unit.name for unit in ObjectiveConfig(seeds_per_trial=2).units(TrainConfig())]
    ['seed-0', 'seed-1']
    """

    objective: Objective = "score"
    """Value of a trial: the best validation score of its run (score), or the annualized Sharpe ratio after costs on the
    validation split (sharpe, for trading)."""

    seeds_per_trial: int = 1
    """Runs per trial, with the seeds seed, seed + 1, ...; the trial's value is the median of their scores. More runs
    make the value less noisy and take longer."""

    folds: int | None = None
    """Runs per trial, for trading: one per walk-forward fold of the training and validation splits. The trial's value
    is the median of their scores; the test split is not used. none: one run without folds."""

    def __post_init__(self) -> None:
        check_choice("objective", self.objective, get_args(Objective))
        check_count("seeds_per_trial", self.seeds_per_trial)
        if self.folds is None:
            return
        check_count("folds", self.folds, minimum=2)
        if self.seeds_per_trial > 1:
            raise UserError(
                f"A trial has several seeds or several folds, but got seeds_per_trial {self.seeds_per_trial} and folds "
                f"{self.folds}; use one of them."
            )

    def check(self, base: Mapping[str, Any]) -> None:
        """Raise UserError if trials with these settings cannot be scored by this objective."""
        env_id = base.get("env_id")
        if env_id is None:
            return
        if self.objective == "sharpe":
            raise UserError(
                f'objective "sharpe" is for trading, but env_id is {env_id}, whose runs have no returns; leave it out.'
            )
        if self.folds is not None:
            raise UserError(f"folds are parts of market data, but env_id is {env_id}; use seeds_per_trial instead.")

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that the objective adds to every run."""
        return {"score": "sharpe"} if self.objective == "sharpe" else {}

    def units(self, config: TrainConfig) -> list[Unit]:
        """The runs of a trial with these settings, in the order in which they are trained."""
        if self.folds is not None:
            trading = config.trading
            return fold_units(self.folds, train=trading.train_fraction, validation=trading.validation_fraction)
        if self.seeds_per_trial > 1:
            seeds = range(config.run.seed, config.run.seed + self.seeds_per_trial)
            return [Unit(f"seed-{seed}", {"seed": seed}) for seed in seeds]
        return [Unit("", {})]


def fold_units(n: int, *, train: float, validation: float) -> list[Unit]:
    """Walk-forward folds: the bars of training and validation are split into n + 1 equal parts; fold k trains on the
    first k parts and validates on the next one.

    >>> for unit in fold_units(2, train=0.6, validation=0.3):
    ...     print(unit.name, {name: round(value, 6) for name, value in unit.settings.items()})
    fold-1 {'train_fraction': 0.3, 'validation_fraction': 0.3}
    fold-2 {'train_fraction': 0.6, 'validation_fraction': 0.3}
    """
    whole = train + validation
    edges = [whole * k / (n + 1) for k in range(1, n + 1)] + [whole]
    return [
        # The fractions of the last fold add up to `whole` exactly, since edges[-2] is at least half of it.
        Unit(f"fold-{k}", {"train_fraction": edges[k - 1], "validation_fraction": edges[k] - edges[k - 1]})
        for k in range(1, n + 1)
    ]


@dataclass(frozen=True, kw_only=True)
class PromotionRules:
    """The conditions for deploying a new model.

    Raises UserError if a value is out of range.

    min_dsr: the smallest acceptable deflated Sharpe ratio. margin: by how many standard errors the new model must beat
    the deployed one. trial: promote this trial instead of the study's winner. despite: the reason to promote although a
    feature may use later data; the version keeps it.
    """

    min_dsr: float = 0.95
    margin: float = 1.0
    trial: int | None = None
    despite: str | None = None

    def __post_init__(self) -> None:
        if self.trial is not None:
            check_count("trial", self.trial, minimum=0)
        if self.despite is not None and not self.despite.strip():
            raise UserError("despite must say why the features are sound, but is empty.")
        if not 0.0 <= self.min_dsr <= 1.0:
            raise UserError(f"min_dsr is a probability from 0 to 1, but got {self.min_dsr:g}.")
        if not 0.0 <= self.margin < float("inf"):
            raise UserError(f"margin is a number of standard errors, 0 or more, but got {self.margin:g}.")


@dataclass(frozen=True, kw_only=True)
class CommandLine(TrainConfig):
    """The groups of settings that flags can set."""

    tune: TuneConfig = field(default_factory=TuneConfig)
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)


@dataclass(frozen=True, kw_only=True)
class TuneOrder:
    """One `tune` command. base: the given settings that all trials share, by name; the search space adds the rest."""

    tune: TuneConfig
    objective: ObjectiveConfig
    base: Mapping[str, Any]

    @property
    def study_name(self) -> str:
        assert self.tune.study_name is not None, "it was checked when the command line was read"
        return self.tune.study_name

    def as_json(self) -> dict[str, Any]:
        """The order as JSON, for `order_from` in another process."""
        content = {"tune": vars(self.tune), "objective": vars(self.objective), "base": self.base}
        return {name: _plain(group) for name, group in content.items()}


def order_from(content: Mapping[str, Any]) -> TuneOrder:
    """The order that `as_json` wrote."""
    source = Path("the order")
    groups = {**content["tune"], **content["objective"]}
    command_line = build(CommandLine, convert_settings(groups, CommandLine, source=source))
    base = convert_settings(content["base"], TrainConfig, source=source)
    return TuneOrder(tune=command_line.tune, objective=command_line.objective, base=base)


def parse_tune(argv: Sequence[str], *, prog: str, description: str) -> TuneOrder:
    """Read the command line of a study. Raises UserError if a setting is invalid; exits after --help."""
    flags = read_flags(argv, CommandLine, prog=prog, description=description)
    study_flags = {name: flags.pop(name) for name in _names_of_study() if name in flags}
    with naming_flags(*study_flags):
        asked = build(CommandLine, study_flags)
    return _order(asked, flags)


def tune_config(settings: Mapping[str, Any]) -> TuneOrder:
    """A `tune` command with these settings, named as its flags: `study_name`, `n_trials`, `env_id`, ...

    Raises UserError if a setting is invalid.
    """
    source, plain = Path("the settings"), _plain(settings)
    of_study = {name: plain[name] for name in _names_of_study() if name in plain}
    asked = build(CommandLine, convert_settings(of_study, CommandLine, source=source))
    others = {name: value for name, value in plain.items() if name not in of_study}
    return _order(asked, convert_settings(others, TrainConfig, source=source))


def _names_of_study() -> list[str]:
    fields = [*dataclasses.fields(TuneConfig), *dataclasses.fields(ObjectiveConfig)]
    return [each.name for each in fields if each.name not in {"config", "preset"}]


def _order(asked: CommandLine, flags: dict[str, Any]) -> TuneOrder:
    """flags: the given settings that all trials share, with the settings file and the preset."""
    if asked.tune.study_name is None:
        raise UserError("--study-name is missing; name the study, such as --study-name first.")
    given, _ = given_settings(flags)
    _reject_launchers(given)
    given = layered(given, _market_of(asked.tune.data_dir, given))
    if asked.tune.gpu is not None:
        if given.get("device") in {"cpu", "mps"}:
            raise UserError(f"--gpu names a GPU, but --device is {given['device']}; use one of them.")
        given["device"] = "cuda"
    config = train_config(given)
    reject_irrelevant_settings(config, given)
    _check_base(config, asked)
    asked.objective.check(given)
    return TuneOrder(tune=asked.tune, objective=asked.objective, base=given)


def flat_base(order: TuneOrder) -> dict[str, Any]:
    """All settings that trials share, as JSON, to compare two calls."""
    return flatten(train_config(order.base))


def _check_base(config: TrainConfig, asked: CommandLine) -> None:
    if config.run.checkpoint_dir is not None:
        raise UserError("--checkpoint-dir is the folder of one run, but each trial has its own; leave it out.")
    limit = asked.tune.max_concurrent_envs
    if limit is not None and config.run.vec_env != "batched" and config.run.n_envs > limit:
        raise UserError(
            f"--n-envs is {config.run.n_envs}, but --max-concurrent-envs allows {limit} at once; raise it to "
            f"{config.run.n_envs} or more, or lower --n-envs."
        )
    if config.run.env_id is None and config.trading.data is not None:
        files_of(config.trading.data)  # raises if the data are missing


def _reject_launchers(given: Mapping[str, Any]) -> None:
    """Raise UserError if the settings name a launcher: a trial's worker is its launcher."""
    asked = [name for name in ("launcher", "max_restarts") if name in given and given[name] != getattr(RunConfig, name)]
    if asked:
        values = " and ".join(f"{flag_of(name)} is {given[name]}" for name in asked)
        raise UserError(
            "The processes of a trial run on its worker's machine, and a trial that loses one is queued again, but "
            f"{values}; leave {'it' if len(asked) == 1 else 'them'} out."
        )


def _market_of(data_dir: Path | None, given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that --data-dir stands for: one symbol, or several that are each traded separately."""
    if data_dir is None:
        return {}
    if given.get("data") is not None:
        raise UserError("--data-dir names a folder with one file per symbol and --data the market; use one of them.")
    symbols = given.get("symbols") or ()
    found = find_symbol_files(data_dir, symbols)
    if len(found) == 1:
        (own,) = found.values()
        return own.settings
    if given.get("per_symbol", True):
        return {"data": data_dir, "per_symbol": True}
    return {"data": data_dir, "symbols": tuple(own.name for own in found.values()) if symbols else ()}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(each) for each in value]
    return str(value) if isinstance(value, Path) else value

"""What `submit` asks for: the settings of a training, and of each a run for every seed and symbol."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.flags import read_flags
from ml_pipeline.runs.settings_file import StartedWith
from ml_pipeline.runs.train_command_line import (
    SettingsFrom,
    check_seeds,
    given_settings,
    reject_irrelevant_settings,
)
from ml_pipeline.runs.train_config import TrainConfig, layered, train_config
from ml_pipeline.trading.market.symbol_files import find_symbol_files


@dataclass(frozen=True)
class SubmitConfig(SettingsFrom):
    """What is submitted."""

    seeds: tuple[int, ...] = ()
    """Submit one run for each of these seeds."""

    data_dir: Path | None = None
    """Folder with one file per symbol: a run for each symbol, or each file; one for all with --per-symbol."""

    priority: int = 0
    """Runs of a higher priority start first."""

    restarts: int = 0
    """How often a run is started again from its checkpoint if it dies."""

    root: Path | None = None
    """Folder of runs whose service is meant; none: checkpoints/."""


@dataclass(frozen=True, kw_only=True)
class CommandLine(TrainConfig):
    """What the flags fill."""

    submit: SubmitConfig = field(default_factory=SubmitConfig)


@dataclass(frozen=True, kw_only=True)
class Submission:
    """One call of submit: the settings of each run, what it is started with, and what holds for all."""

    configs: tuple[TrainConfig, ...]
    started_with: tuple[StartedWith, ...]
    submit: SubmitConfig


def parse_submission(argv: Sequence[str], *, prog: str, description: str) -> Submission:
    """The runs that a command line means. Raises UserError about whatever cannot be used; exits after --help."""
    flags = read_flags(argv, CommandLine, prog=prog, description=description)
    own = {name: flags.pop(name) for name in ("seeds", "data_dir", "priority", "restarts", "root") if name in flags}
    submit = SubmitConfig(**own)
    check_seeds(submit.seeds, beside={"seed": "seed" in flags})
    each_symbol = flags.get("symbols", ())
    given, started = given_settings(flags)
    if len({*each_symbol}) < len(each_symbol):
        raise UserError(f"symbols must be different ones, but got {' '.join(each_symbol)}.")
    seeds = [{"seed": seed} for seed in submit.seeds] or [{}]
    markets = _markets(submit.data_dir, each_symbol, given)
    configs, starts = [], []
    for market, seed in product(markets, seeds):
        settings = {**given, **market, **seed}
        configs.append(train_config(layered(settings)))
        reject_irrelevant_settings(configs[-1], settings)
        starts.append(started.with_flags(**market, **seed))
    return Submission(configs=tuple(configs), started_with=tuple(starts), submit=submit)


def _markets(data_dir: Path | None, symbols: Sequence[str], given: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The settings of each market: one per symbol, or one of all symbols where a policy is to trade each of them.

    A single one, as given, where none is named.
    """
    if data_dir is not None and given.get("data") is not None:
        raise UserError(
            "--data-dir names a folder with one file per symbol and --data the market; leave one of them out."
        )
    wanted = symbols or given.get("symbols") or ()
    if data_dir is None and given.get("data") is None and wanted and given.get("env_id") is None:
        raise _no_data(wanted)
    if given.get("per_symbol"):  # one policy learns from all of them
        return [{} if data_dir is None else {"data": data_dir}]
    if data_dir is None:
        return [{"symbols": (symbol,)} for symbol in symbols] or [{}]
    return [own.settings for own in find_symbol_files(data_dir, wanted).values()]


def _no_data(symbols: Sequence[str]) -> UserError:
    """About symbols without data; names a folder nearby that holds their files, if there is one."""
    here = Path()
    for folder in (here, here / "data", *sorted((here / "data").glob("*/"))):
        try:
            find_symbol_files(folder, symbols)
        except UserError:
            continue
        nearby = f"--data-dir {folder} has a file of each."
        break
    else:
        nearby = "say --data-dir FOLDER with a file of each, or --data FILE that holds them."
    return UserError(f"There are no data for {', '.join(symbols)}; {nearby}")

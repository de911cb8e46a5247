"""The settings of a backtest, which evaluates the run that a settings file made, and how flags fill them."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, make_dataclass
from pathlib import Path

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.flags import read_flags
from ml_pipeline.runs.train_config import newest_run, read_train_settings
from ml_pipeline.runs.trained.evaluate_config import ChangesOfMarket, EvaluationConfig, EvaluationStart, Split
from ml_pipeline.trading.settings import MarketConditions


@dataclass(frozen=True, kw_only=True)
class BacktestConfig:
    """What is backtested."""

    config: Path | None = None
    """Settings file of a training; the newest run that was trained with it is backtested."""

    run: Path | None = None
    """Run folder or checkpoint, in place of --config."""

    split: Split | None = None
    """Part of the market to trade; none: test, or everything with --data."""

    certify: bool = False
    """Replay the orders in vectorbt, and fail if its equity differs by more than 1e-9; needs the extra certify."""

    output_dir: Path | None = None
    """Folder for the report; none: the run folder for its best.pt as trained, else evaluation-WHAT in it."""


CommandLine = make_dataclass(
    "CommandLine", [("backtest", BacktestConfig), ("market", ChangesOfMarket)], frozen=True, kw_only=True
)


def parse_backtest(argv: Sequence[str], *, prog: str, description: str = "") -> EvaluationStart:
    """Read the command line, and find the run. Raises UserError about whatever cannot be used; exits after --help."""
    flags = read_flags(argv, CommandLine, prog=prog, description=description)
    changes = {each.name: flags.pop(each.name) for each in fields(MarketConditions) if each.name in flags}
    file, run = flags.pop("config", None), flags.pop("run", None)
    if (file is None) == (run is None):
        raise UserError("Name either the settings file of a training, --config, or a run folder, --run.")
    return EvaluationStart(config=EvaluationConfig(checkpoint=run or _run_of(file), **flags), changes=changes)


def _run_of(file: Path) -> Path:
    settings = read_train_settings(file)
    if settings.get("env_id") is not None:
        raise UserError(f"{file} is about {settings['env_id']}, and a backtest is of trading; say evaluate RUN.")
    run = newest_run(settings)
    if run is None:
        raise UserError(f"No run was trained with {file} yet; say train --config {file} first, or name one by --run.")
    return run

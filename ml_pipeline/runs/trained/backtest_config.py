"""The settings of a backtest, which evaluates the run that a settings file made, and how flags fill them."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, make_dataclass
from pathlib import Path

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.flags import read_flags
from ml_pipeline.config.wording import shown_path
from ml_pipeline.runs.earlier_runs import newest_run_of
from ml_pipeline.runs.folder import SETTINGS_FILE
from ml_pipeline.runs.train_config import read_train_settings
from ml_pipeline.runs.trained.deployed import is_version_folder, resolved
from ml_pipeline.runs.trained.evaluate_config import ChangesOfMarket, EvaluationConfig, EvaluationStart, ReportConfig
from ml_pipeline.trading.settings import MarketConditions


@dataclass(frozen=True, kw_only=True)
class BacktestConfig(ReportConfig):
    """What is backtested."""

    config: Path | None = None
    """Settings file of a training, whose newest run is backtested, or a deployed model, such as models/NAME/current.
    It must be given."""


CommandLine = make_dataclass(
    "CommandLine", [("backtest", BacktestConfig), ("market", ChangesOfMarket)], frozen=True, kw_only=True
)


def parse_backtest(argv: Sequence[str], *, prog: str, description: str = "") -> EvaluationStart:
    """Read the command line, and find the run. Raises UserError about whatever cannot be used; exits after --help."""
    if argv and not argv[0].startswith("-"):
        named = Path(argv[0])
        how = f"--config {named}" if named.is_file() or _version_of(named) is not None else None
        raise UserError(
            f"A backtest takes no path alone; say {how}."
            if how
            else f"A backtest is of a settings file, by --config FILE; evaluate the run {named} by "
            f"`ml-pipeline evaluate {named}`."
        )
    flags = read_flags(argv, CommandLine, prog=prog, description=description)
    changes = {each.name: flags.pop(each.name) for each in fields(MarketConditions) if each.name in flags}
    file = flags.pop("config", None)
    if file is None:
        raise UserError(
            "A backtest needs --config, the settings file of a training; evaluate a run that you can name by "
            "`ml-pipeline evaluate RUN`."
        )
    run, notice = _run_of(file)
    return EvaluationStart(config=EvaluationConfig(checkpoint=run, **flags), changes=changes, notice=notice)


def _run_of(file: Path) -> tuple[Path, str | None]:
    """The run of a settings file or a version of a model, and how the run was chosen."""
    version = _version_of(file)
    settings = read_train_settings(file if version is None else version / SETTINGS_FILE)
    if settings.get("env_id") is not None:
        raise UserError(
            f"{file} is about {settings['env_id']}, and a backtest is of trading; name its run by "
            "`ml-pipeline evaluate RUN`."
        )
    if version is not None:
        return version, None
    run, started = newest_run_of(file)
    flags = started.shown_flags()
    further = f"with the further flags {flags}" if flags else "without further flags"
    return run, f"The newest run of {file} is {shown_path(run)}, trained {further}."


def _version_of(named: Path) -> Path | None:
    """The version of a deployed model that is named by its folder or by the settings in it."""
    path = resolved(named.expanduser())
    folder = path.parent if path.name == SETTINGS_FILE else path
    return folder if is_version_folder(folder) else None

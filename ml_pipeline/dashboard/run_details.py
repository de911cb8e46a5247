"""Tables of the dashboard's views Settings and Report: the settings of runs, and their evaluation metrics."""

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.files import read_mapping
from ml_pipeline.config.json_object import finite
from ml_pipeline.config.settings import flatten
from ml_pipeline.config.wording import in_one_line, written
from ml_pipeline.dashboard.files import json_value, open_file
from ml_pipeline.reporting.report_files import EVALUATION_FILE
from ml_pipeline.runs.folder import SETTINGS_FILE
from ml_pipeline.runs.train_config import TrainConfig

_LONGEST_VALUE = 2000


def settings_table(folders: Sequence[Path]) -> dict[str, Any]:
    """{"rows": [{"name", "values", "default", "differs"}], "notes": {run: sentence}}; values as text, None if a run has
    none.

    differs: True if the values differ between runs or, for a single run, from the default. notes: errors, for each run
    whose settings cannot be read.
    """
    settings: list[dict[str, str]] = []
    notes = {}
    for folder in folders:
        try:
            settings.append(_settings_of(folder))
        except UserError as error:
            settings.append({})
            notes[folder.name] = str(error)
    names = dict.fromkeys(name for each in settings for name in each)
    rows = []
    for name in names:
        values = [each.get(name) for each in settings]
        of_readable = {value for value, folder in zip(values, folders, strict=True) if folder.name not in notes}
        default = _defaults().get(name)
        compared = of_readable | {default} if len(folders) == 1 else of_readable
        rows.append({"name": name, "values": values, "default": default, "differs": len(compared) > 1})
    return {"rows": rows, "notes": notes}


@cache
def _defaults() -> dict[str, str]:
    return {name: _shown(value) for name, value in flatten(TrainConfig()).items()}


def _settings_of(folder: Path) -> dict[str, str]:
    path = folder / SETTINGS_FILE
    if path.is_symlink() or not path.is_file():
        raise UserError(f"{folder.name} has no {SETTINGS_FILE} yet.")
    return {in_one_line(name): _shown(value) for name, value in read_mapping(path).items()}


def _shown(value: object) -> str:
    try:
        text = written(tuple(value) if isinstance(value, list) else value)
    except (TypeError, ValueError):  # YAML has more types than JSON: dates, keys that are not strings
        text = str(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}..."


_MOST_BYTES = 4_000_000
# Titles as in reports. The metrics in _SHARES are shown in percent.
_TITLES = {
    "mean_return": "Mean return",
    "std_return": "Standard deviation of returns",
    "sharpe": "Sharpe ratio",
    "sortino": "Sortino ratio",
    "calmar": "Calmar ratio",
    "turnover": "Turnover, x equity",
    "n_trades": "Trades",
    "profit_factor": "Profit factor",
}
_SHARES = {
    "total_return": "Total return",
    "cagr": "Annual growth (CAGR)",
    "volatility": "Annual volatility",
    "max_drawdown": "Largest drawdown",
    "time_in_market": "Time in the market",
    "win_rate": "Winning trades",
    "total_return of buy_and_hold": "Total return of buy and hold",
    "total_return of random": "Total return of random",
}
_AGENT, _BASELINES = "agent", ("buy_and_hold", "random")


def evaluation_table(folders: Sequence[Path]) -> dict[str, Any]:
    """{"rows": [{"name", "is_share", "values"}]}: one row per metric, one value per run, None if a run has none."""
    figures = [_figures(folder / EVALUATION_FILE) for folder in folders]
    names = dict.fromkeys(name for each in figures for name in each)
    return {
        "rows": [
            {
                "name": _SHARES.get(name) or _TITLES.get(name) or name.replace("_", " "),
                "is_share": name in _SHARES,
                "values": [each.get(name) for each in figures],
            }
            for name in names
        ]
    }


def _figures(path: Path) -> dict[str, float]:
    file = open_file(path)
    if file is None:
        return {}
    with file:
        content = json_value(file.read(_MOST_BYTES))
    if not isinstance(content, dict):
        return {}
    agent = content.get(_AGENT)
    if not isinstance(agent, dict):
        return _numbers(content)
    baselines = {name: content.get(name) for name in _BASELINES}
    others = {
        f"total_return of {name}": each.get("total_return")
        for name, each in baselines.items()
        if isinstance(each, dict)
    }
    return _numbers({**agent, **others})


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    return {name: value for name, value in values.items() if finite(value) is not None}

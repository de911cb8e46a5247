"""The figures of evaluations, of several runs side by side."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ml_pipeline.dashboard.run_files import open_file
from ml_pipeline.reporting.report_files import EVALUATION_FILE

_MOST_BYTES = 4_000_000
# As reports name them; those of the second kind are shares, which are shown in percent.
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
    "cagr": "Growth a year (CAGR)",
    "volatility": "Volatility a year",
    "max_drawdown": "Largest drawdown",
    "time_in_market": "Time in the market",
    "win_rate": "Winning trades",
    "total_return of buy_and_hold": "Total return of buy and hold",
    "total_return of random": "Total return of random",
}
_AGENT, _BASELINES = "agent", ("buy_and_hold", "random")


def evaluation_table(folders: Sequence[Path]) -> dict[str, Any]:
    """{"rows": [{"name", "is_share", "values"}]}: a row per figure, one value per run, None where a run has none."""
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
        try:
            content = json.loads(file.read(_MOST_BYTES))
        except (ValueError, RecursionError):
            return {}
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


def _numbers(values: Mapping[str, object]) -> dict[str, float]:
    return {name: value for name, value in values.items() if isinstance(value, int | float) and _is_figure(value)}


def _is_figure(value: float) -> bool:
    try:
        return not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # a whole number that is too large for a float
        return False

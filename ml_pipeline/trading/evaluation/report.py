"""The report of an evaluation: a table, a chart, and files with every number."""

import csv
import json
import math
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from ml_pipeline.config.wording import text_table
from ml_pipeline.reporting.report_files import EVALUATION_FILE
from ml_pipeline.trading.accounts.costs import Costs
from ml_pipeline.trading.accounts.ledger import Ledger, symbols_of
from ml_pipeline.trading.accounts.trades import Trade, trades_of
from ml_pipeline.trading.evaluation.attribution import costs_by_kind, profit_by_asset
from ml_pipeline.trading.evaluation.figures import equity_figure
from ml_pipeline.trading.evaluation.ledger_file import LEDGER_FILE, write_ledger
from ml_pipeline.trading.evaluation.remarks import RANGES, annualization, baselines_without_limits, headlines
from ml_pipeline.trading.evaluation.results import Evaluation

# Rows of the table: (name of the metric, its title in the table, factor, format, unit).
_ROWS = (
    ("total_return", "Total return", 100, "{:+,.1f}", " %"),
    ("cagr", "Growth a year (CAGR)", 100, "{:+,.1f}", " %"),
    ("volatility", "Volatility a year", 100, "{:,.1f}", " %"),
    ("sharpe", "Sharpe ratio", 1, "{:.2f}", ""),
    ("sortino", "Sortino ratio", 1, "{:.2f}", ""),
    ("calmar", "Calmar ratio", 1, "{:.2f}", ""),
    ("max_drawdown", "Largest drawdown", 100, "{:.1f}", " %"),
    ("time_in_market", "Time in the market", 100, "{:.0f}", " %"),
    ("turnover", "Turnover, x equity", 1, "{:,.1f}", ""),
    ("n_trades", "Trades", 1, "{:,.0f}", ""),
    ("win_rate", "Winning trades", 100, "{:.1f}", " %"),
    ("profit_factor", "Profit factor", 1, "{:,.2f}", ""),
)


def table_rows(evaluation: Evaluation) -> list[list[str]]:
    """The header, then one row per metric: of the columns of the evaluation. A dash is undefined."""
    titles = {"random": f"random (mean of {len(evaluation.random)})"}
    header = ["", *(titles.get(name, name.replace("_", " ")) for name in evaluation.columns)]
    columns = [evaluation.figures[name] for name in evaluation.columns]
    rows = [
        [title, *(_cell(c, name, factor, form, unit) for c in columns)] for name, title, factor, form, unit in _ROWS
    ]
    return [header, *_endings_row(evaluation), *rows]


def results_table(evaluation: Evaluation) -> str:
    """`table_rows` as text, with title and headlines above it, and how to read it below."""
    first = headlines(evaluation)
    above = [evaluation.title, "", *first, *([""] if first else [])]
    below = ["", annualization(evaluation), RANGES, *baselines_without_limits(evaluation)]
    return "\n".join([*above, text_table(table_rows(evaluation)), *below])


def _endings_row(evaluation: Evaluation) -> list[list[str]]:
    """A row about accounts that were closed before the end, if there are any."""
    if not any(evaluation.endings.values()) and not evaluation.n_random_ended:
        return []
    cells = []
    for name in evaluation.columns[:-1]:
        reason, ledger = evaluation.endings[name], getattr(evaluation, name)
        cells.append("-" if reason is None else f"{reason}, {str(ledger['time'][-1])[:10]}")
    return [["Account closed", *cells, f"{evaluation.n_random_ended} of {len(evaluation.random)}"]]


def write_report(folder: Path, evaluation: Evaluation) -> None:
    """Write ledger.csv and trades.csv (the agent's), evaluation.json (every figure) and equity.png into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    write_ledger(folder / LEDGER_FILE, evaluation.agent)
    _write_trades(folder / "trades.csv", evaluation.agent, evaluation.costs)
    (folder / EVALUATION_FILE).write_text(json.dumps(as_json(evaluation), indent=2) + "\n", encoding="utf-8")
    equity_figure(evaluation, title=evaluation.title).savefig(folder / "equity.png")


def _write_trades(path: Path, ledger: Ledger, costs: Costs) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow([each.name for each in fields(Trade)])
        for trade in trades_of(ledger, costs):
            times = (
                str(time.astype("datetime64[s]")).replace("T", " ") for time in (trade.entry_time, trade.exit_time)
            )
            row = asdict(trade) | dict(zip(("entry_time", "exit_time"), times, strict=True))
            rows.writerow(row.values())


def without_nan(figures: dict[str, Any]) -> dict[str, Any]:
    """Figures as JSON can hold them: None instead of NaN."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in figures.items()
    }


def as_json(evaluation: Evaluation) -> dict[str, Any]:
    """Every metric, with the bars and rules it was measured on."""
    rules, times = evaluation.rules, evaluation.agent["time"]
    return {
        "headlines": headlines(evaluation),
        "account_closed": {**evaluation.endings, "random": evaluation.n_random_ended},
        "implausible": None if (implausible := evaluation.implausible) is None else asdict(implausible),
        "split": evaluation.split,
        "symbols": list(symbols_of(evaluation.agent)),
        "first_time": str(times[0].astype("datetime64[s]")),
        "last_time": str(times[-1].astype("datetime64[s]")),
        "n_bars": len(times),
        "n_bars_of_split": evaluation.n_bars,
        "fee_bps": rules.fee_bps,
        "slippage_bps": rules.slippage_bps,
        **{name: value for name, value in asdict(rules).items() if name not in {"fee_bps", "slippage_bps"}},
        "periods_per_year": evaluation.calendar.periods_per_year,
        "annualization": evaluation.calendar.reason,
        "n_random_policies": len(evaluation.random),
        "alpha_beta": without_nan(asdict(evaluation.against_holding)),
        "costs_by_kind": costs_by_kind(evaluation.costs),
        "profit_by_asset": profit_by_asset(evaluation.agent, evaluation.costs),
        "limits_bound": dict(evaluation.limits),
        **{name: without_nan(figures) for name, figures in evaluation.figures.items()},
    }


def _bound(value: float) -> str:
    """A bound with the digits that it was rounded to."""
    return f"{value:,.3f}".rstrip("0").rstrip(".")


def _cell(figures: dict[str, float], name: str, factor: float, form: str, unit: str) -> str:
    """A figure with its standard error or interval where it has one; a dash if it is undefined."""

    def number(value: float) -> str:
        return form.format(value * factor) if math.isfinite(value) else "-"

    text, error = number(figures[name]), figures.get(f"{name}_se", math.nan)
    low, high = (figures.get(f"{name}_{bound}", math.nan) for bound in ("low", "high"))
    if math.isfinite(error) and text != "-":
        text = f"{text} ± {number(error).removeprefix('+')}"
    elif math.isfinite(low) and text != "-":
        text = f"{text} ({_bound(low)} to {_bound(high)})"
    return text if text == "-" else text + unit

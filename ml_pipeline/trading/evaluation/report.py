"""The report of an evaluation: a table, figures, ledger.csv, and files with every number."""

import csv
import json
import math
from collections.abc import Collection
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ml_pipeline.config.json_object import without_nan
from ml_pipeline.config.wording import text_table
from ml_pipeline.reporting.chart_style import AGENT_COLOR, style_axes, style_money_axis
from ml_pipeline.reporting.report_files import EVALUATION_FILE
from ml_pipeline.trading.accounts.ledger import Ledger, symbols_of
from ml_pipeline.trading.accounts.trades import Costs, Trade, trades_of
from ml_pipeline.trading.evaluation.metrics import drawdown_fraction
from ml_pipeline.trading.evaluation.remarks import (
    RANGES,
    annualization,
    baselines_without_limits,
    headlines,
    standing,
)
from ml_pipeline.trading.evaluation.results import Evaluation, costs_by_kind, profit_by_asset
from ml_pipeline.trading.evaluation.sensitivity import Sensitivity

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# Rows of the table: (metric, title, factor, format, unit).
_ROWS = (
    ("total_return", "Total return", 100, "{:+,.1f}", " %"),
    ("cagr", "Annual growth (CAGR)", 100, "{:+,.1f}", " %"),
    ("volatility", "Annual volatility", 100, "{:,.1f}", " %"),
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


_SUMMARY_ROWS = ("total_return", "cagr", "sharpe", "max_drawdown", "turnover", "n_trades")


def table_rows(evaluation: Evaluation, names: Collection[str] | None = None) -> list[list[str]]:
    """The header, then one row for each of these metrics (None: all), with a cell per column. A dash: undefined."""
    titles = {"random": f"random (mean of {len(evaluation.random)})"}
    header = ["", *(titles.get(name, name.replace("_", " ")) for name in evaluation.columns)]
    columns = [evaluation.figures[name] for name in evaluation.columns]
    rows = [
        [title, *(_cell(c, name, factor, form, unit) for c in columns)]
        for name, title, factor, form, unit in _ROWS
        if names is None or name in names
    ]
    return [header, *_endings_row(evaluation), *rows]


def results_table(evaluation: Evaluation) -> str:
    """`table_rows` as text, with title and headlines above, and remarks on the numbers below."""
    first = headlines(evaluation)
    above = [evaluation.title, "", *first, *([""] if first else [])]
    below = ["", annualization(evaluation), RANGES, *baselines_without_limits(evaluation)]
    return "\n".join([*above, text_table(table_rows(evaluation)), *below])


def results_summary(evaluation: Evaluation) -> str:
    """The summary of a training: six rows of `table_rows` with title and headlines, and one line on their meaning."""
    table = text_table(table_rows(evaluation, _SUMMARY_ROWS))
    return "\n".join(
        [evaluation.title, "", *[f"{line}\n" for line in headlines(evaluation)], table, "", standing(evaluation)]
    )


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


def as_json(evaluation: Evaluation) -> dict[str, Any]:
    """Every metric, with the bars and rules of its measurement."""
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
    """A bound with its significant digits."""
    return f"{value:,.3f}".rstrip("0").rstrip(".")


def _cell(figures: dict[str, float], name: str, factor: float, form: str, unit: str) -> str:
    """A figure with its standard error or interval, if it has one; a dash if it is undefined."""

    def number(value: float) -> str:
        return form.format(value * factor) if math.isfinite(value) else "-"

    text, error = number(figures[name]), figures.get(f"{name}_se", math.nan)
    low, high = (figures.get(f"{name}_{bound}", math.nan) for bound in ("low", "high"))
    if math.isfinite(error) and text != "-":
        text = f"{text} ± {number(error).removeprefix('+')}"
    elif math.isfinite(low) and text != "-":
        text = f"{text} ({_bound(low)} to {_bound(high)})"
    return text if text == "-" else text + unit


_HOLD, _EQUAL, _RANDOM, _DOWN, _UP = "#e07b00", "#7a4fd0", "#8a8f98", "#c62f2f", "#1f8a4c"
_MOST_PRICES = 4  # most assets whose trades are drawn
_WIDTH_IN, _LEFT_IN, _RIGHT_IN, _ABOVE_IN, _BELOW_IN = 10.0, 0.95, 0.25, 0.35, 0.55


def equity_figure(evaluation: Evaluation, title: str | None = None) -> "Figure":
    """Equity of the agent and its baselines, and their drawdowns below."""
    figure, (above, below) = _panels([3.6, 1.4], title=title)
    mean = evaluation.figures["random"]["total_return"]
    for i, ledger in enumerate(evaluation.random):
        label = None if i else f"random {mean:+,.1%} (mean of {len(evaluation.random)})"
        above.plot(ledger["time"], ledger["equity"], color=_RANDOM, alpha=0.5, linewidth=0.7, label=label)
    for name, ledger, color, style in (
        ("equal weight", evaluation.equal_weight, _EQUAL, (0, (4, 2))),
        ("buy and hold", evaluation.buy_and_hold, _HOLD, "-"),
        ("agent", evaluation.agent, AGENT_COLOR, "-"),
    ):
        if name.replace(" ", "_") not in evaluation.columns:
            continue
        total = evaluation.figures[name.replace(" ", "_")]["total_return"]
        look: dict[str, Any] = {"color": color, "linestyle": style}
        above.plot(ledger["time"], ledger["equity"], linewidth=1.5, label=f"{name} {total:+,.1%}", **look)
        below.plot(ledger["time"], drawdown_fraction(ledger["equity"]), linewidth=1.0, **look)
    drawn = (evaluation.agent, evaluation.buy_and_hold, evaluation.equal_weight, *evaluation.random)
    style_money_axis(above, [ledger["equity"] for ledger in drawn], "equity (account currency)")
    above.axhline(evaluation.rules.initial_cash, color="black", linewidth=0.6, alpha=0.4)
    _legend(above)
    _percent(below, "drawdown")
    below.set_xlabel("time of the bar, as in the data")
    return figure


def sensitivity_figure(sensitivity: Sensitivity, fee_bps: float) -> "Figure":
    """The total return by fee and by delay in bars, with numbers; the filled marker is the evaluation itself."""
    from matplotlib.ticker import PercentFormatter

    figure, (left, right) = _panels([2.2], columns=2)
    for axes, curve, label, actual in (
        (left, sensitivity.by_fee, "fee (bps)", fee_bps),
        (right, sensitivity.by_delay, "delay (bars)", 0),
    ):
        at, returns = list(curve), np.expm1(list(curve.values()))
        axes.plot(at, returns, color=AGENT_COLOR, marker="o", markersize=5, markerfacecolor="white")
        if actual in curve:
            axes.plot(actual, returns[at.index(actual)], color=AGENT_COLOR, marker="o", markersize=5)
        for i, (x, value) in enumerate(zip(at, returns, strict=True)):  # above and below, since 0 and 1 bps are close
            beside: dict[str, Any] = {"textcoords": "offset points", "xytext": (0, -13 if i % 2 else 7)}
            axes.annotate(f"{value:+.1%}", (x, value), ha="center", fontsize=8, **beside)
        axes.axhline(0, color="black", linewidth=0.6, alpha=0.5)
        axes.set_xticks(at)
        axes.set_xlabel(label)
        axes.set_ylabel("total return")
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        axes.margins(x=0.08, y=0.25)
    return figure


def _panels(heights_in: list[float], *, columns: int = 1, title: str | None = None) -> tuple["Figure", "list[Axes]"]:
    """A figure with one panel per height, in `columns` columns; all figures have the same margins in inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
    from matplotlib.figure import Figure

    above = _ABOVE_IN + (0.3 if title else 0.0)
    between = _ABOVE_IN * (len(heights_in) - 1)
    height = sum(heights_in) + between + above + _BELOW_IN
    figure = Figure(figsize=(_WIDTH_IN, height), dpi=110)
    FigureCanvasAgg(figure)
    panels = figure.subplots(
        len(heights_in), columns, sharex="col" if columns == 1 else False, squeeze=False, height_ratios=heights_in
    ).flatten()
    figure.subplots_adjust(
        left=_LEFT_IN / _WIDTH_IN,
        right=1 - _RIGHT_IN / _WIDTH_IN,
        top=1 - above / height,
        bottom=_BELOW_IN / height,
        hspace=_ABOVE_IN / float(np.mean(heights_in)),
        wspace=0.25,
    )
    for axes in panels:
        style_axes(axes)
    if columns == 1:
        locator = AutoDateLocator()
        panels[-1].xaxis.set_major_locator(locator)
        panels[-1].xaxis.set_major_formatter(ConciseDateFormatter(locator))
    if title:
        figure.suptitle(title, fontsize=10.5, x=0.012, y=1 - 0.1 / height, va="top", ha="left")
    return figure, list(panels)


def _legend(axes: "Axes") -> None:
    axes.legend(frameon=False, ncols=4, fontsize=8.5, borderpad=0, loc="lower left", bbox_to_anchor=(0, 1))


def _percent(axes: "Axes", label: str) -> None:
    from matplotlib.ticker import PercentFormatter

    axes.set_ylabel(label)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))


LEDGER_FILE = "ledger.csv"
_TIME_FORMAT = "%Y-%m-%d %H:%M:%S"


def write_ledger(path: Path, ledger: Ledger) -> None:
    """Write the table: a header and a line per row. NaN is an empty cell."""
    path.write_text(ledger_lines(ledger, header=True), encoding="utf-8", newline="")


def ledger_lines(ledger: Ledger, *, header: bool = False) -> str:
    """The rows as lines of the file, with its header if `header`; rows written one by one give the same file.

    >>> import numpy as np
    >>> times = np.array(["2024-01-01", "2024-01-02"], dtype="datetime64[ns]")
    >>> print(ledger_lines({"time": times, "equity": np.array([1.0, np.nan])}, header=True), end="")
    time,equity
    2024-01-01 00:00:00,1.0
    2024-01-02 00:00:00,
    """
    import polars as pl

    return pl.DataFrame(ledger).fill_nan(None).write_csv(include_header=header, datetime_format=_TIME_FORMAT)


def ledger_line(ledger: Ledger) -> str:
    """`ledger_lines` for a ledger of one row, three times as fast: its numbers are formatted as one column."""
    import polars as pl

    numbers = np.concatenate([values for name, values in ledger.items() if name != "time"])
    written = pl.DataFrame({"number": numbers}).fill_nan(None).write_csv(include_header=False)
    time = np.datetime_as_string(ledger["time"][0], unit="s").replace("T", " ")
    return ",".join([time, *written.splitlines()]) + "\n"


def column_names(header: str) -> list[str]:
    """The column names in the first line of a ledger file; symbols may have commas and quotes.

    >>> column_names('time,"position_A,B","position_C""D"')
    ['time', 'position_A,B', 'position_C"D']
    """
    return next(csv.reader([header]))

"""The tables of the page: trades, drawdowns, months, and where profit and costs came from."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ml_pipeline.reporting.interactive_page import SortableTable, TableColumn
from ml_pipeline.trading.accounts.costs import costs_of
from ml_pipeline.trading.accounts.trades import trades_of
from ml_pipeline.trading.evaluation.attribution import profit_by_asset
from ml_pipeline.trading.evaluation.curves import drawdowns, monthly_returns
from ml_pipeline.trading.evaluation.results import Evaluation
from ml_pipeline.trading.market.data import FloatArray

_MOST_DRAWDOWNS = 10
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
# A monthly return of this size has the full color.
_FULL_COLOR = 0.1
# What was observed is shown for so many trades: more of it would fill the page.
_MOST_OBSERVED = 3_000


class Observed(NamedTuple):
    """What the agent observed. names: of D features. values: (n, D), a row for each of the ledger, before scaling."""

    names: Sequence[str]
    values: FloatArray


def trades_table(evaluation: Evaluation, observed: Observed | None) -> SortableTable:
    """Every trade, with what was observed when it was decided."""
    ledger = evaluation.agent
    trades = trades_of(ledger, costs_of(ledger, evaluation.rules, evaluation.calendar.periods_per_year))
    entries = np.array([trade.entry_time for trade in trades], dtype=ledger["time"].dtype)
    exits = np.array([trade.exit_time for trade in trades], dtype=ledger["time"].dtype)
    first, last = (np.searchsorted(ledger["time"], times) for times in (entries, exits))
    invested = np.array([trade.quantity * trade.entry_price for trade in trades])
    profit = np.array([trade.profit for trade in trades])
    columns = [
        TableColumn("symbol", "word", [trade.symbol for trade in trades]),
        TableColumn("side", "word", [f"{trade.side}{', open' if trade.open else ''}" for trade in trades]),
        TableColumn("opened", "time", entries),
        TableColumn("closed", "time", exits),
        TableColumn("bars", "whole", [trade.holding_bars for trade in trades]),
        TableColumn("quantity", "number", [trade.quantity for trade in trades]),
        TableColumn("entry price", "number", [trade.entry_price for trade in trades]),
        TableColumn("exit price", "number", [trade.exit_price for trade in trades]),
        TableColumn("profit", "money", profit),
        TableColumn("return", "percent", np.divide(profit, invested, out=np.zeros(len(trades)), where=invested > 0)),
        TableColumn("costs", "money", [trade.costs for trade in trades]),
    ]
    details = {}
    if observed is not None and len(trades) <= _MOST_OBSERVED:
        decided = np.maximum(first - 1, 0)
        details = {name: observed.values[decided, i] for i, name in enumerate(observed.names)}
    return SortableTable(
        "Trades", columns, (first, last), details, "What the agent observed when it decided this trade"
    )


def drawdown_table(evaluation: Evaluation) -> SortableTable:
    """The deepest drawdowns."""
    times, equity = evaluation.agent["time"], evaluation.agent["equity"]
    found = drawdowns(equity, most=_MOST_DRAWDOWNS)
    last = len(times) - 1
    ends = [last if each.end is None else each.end for each in found]
    peaks, troughs = ([getattr(each, name) for each in found] for name in ("peak", "trough"))
    columns = [
        TableColumn("depth", "percent", [each.depth for each in found]),
        TableColumn("peak", "time", times[np.array(peaks, dtype=int)]),
        TableColumn("trough", "time", times[np.array(troughs, dtype=int)]),
        TableColumn("recovered", "word", ["not yet" if each.end is None else _day(times[each.end]) for each in found]),
        TableColumn("bars", "whole", [each.bars for each in found]),
    ]
    return SortableTable("Drawdowns", columns, (peaks, ends))


def attribution_table(evaluation: Evaluation) -> SortableTable:
    """Where the profit came from: gains, each kind of cost, and profit of each asset."""
    costs = costs_of(evaluation.agent, evaluation.rules, evaluation.calendar.periods_per_year)
    by_asset = profit_by_asset(evaluation.agent, costs)
    kinds = ["gain", *(kind for kind in costs if any(abs(row[kind]) >= 0.005 for row in by_asset.values())), "profit"]
    symbols = [*by_asset, *(["all"] if len(by_asset) > 1 else [])]
    columns = [TableColumn("symbol", "word", symbols)]
    for kind in kinds:
        values = [row[kind] for row in by_asset.values()]
        total = [sum(values)] if len(by_asset) > 1 else []
        columns.append(TableColumn(_TITLES.get(kind, kind), "money", [*values, *total]))
    return SortableTable("Profit and costs by asset", columns)


_TITLES = {"gain": "gain before costs", "fee": "fees", "fixed_fee": "fixed fees", "profit": "profit after costs"}


def months_table(times: NDArray[np.datetime64], equity: FloatArray) -> str:
    """Monthly returns as a heat map: an HTML table, a year a row."""
    head = "".join(f"<th>{name}</th>" for name in ("", *_MONTHS, "year"))
    rows = []
    for year, months in monthly_returns(times, equity).items():
        whole = float(np.prod([1 + value for value in months.values()]) - 1)
        cells = "".join(_heat(months.get(month)) for month in range(1, 13)) + _heat(whole)
        rows.append(f"<tr><td>{year}</td>{cells}</tr>")
    return f'<div class="rows"><table class="months"><tr>{head}</tr>{"".join(rows)}</table></div>'


def _heat(value: float | None) -> str:
    if value is None:
        return "<td></td>"
    strength = min(abs(value) / _FULL_COLOR, 1.0) * 0.55
    color = "31, 138, 76" if value >= 0 else "198, 47, 47"
    return f'<td style="background: rgba({color}, {strength:.2f})">{value:+.1%}</td>'


def random_returns(evaluation: Evaluation) -> str:
    """The total returns of the random policies on a line, beside the agent's and holding's: an SVG."""
    returns = [float(ledger["equity"][-1] / ledger["equity"][0] - 1) for ledger in evaluation.random]
    keys = {"agent": "agent", "buy and hold": "buy_and_hold"}
    named = {name: evaluation.figures[key]["total_return"] for name, key in keys.items()}
    low, high = min([*returns, *named.values()]), max([*returns, *named.values()])
    span = (high - low) or 1.0
    width, left = 900, 60

    def at(value: float) -> float:
        return left + (value - low) / span * (width - 2 * left)

    dots = "".join(
        f'<circle cx="{at(value):.1f}" cy="46" r="5" fill="#8a8f98" fill-opacity=".6">'
        f"<title>random {value:+.1%}</title></circle>"
        for value in returns
    )
    lines = "".join(
        f'<line x1="{at(value):.1f}" x2="{at(value):.1f}" y1="30" y2="62" stroke="{color}" stroke-width="3"/>'
        f'<text x="{at(value):.1f}" y="{y}" text-anchor="middle" fill="{color}">{name} {value:+,.1%}</text>'
        for (name, value), color, y in zip(named.items(), ("#0b5fff", "#e07b00"), (22, 80), strict=True)
    )
    axis = "".join(
        f'<text x="{x}" y="104" text-anchor="middle" fill="currentColor" fill-opacity=".7">{text}</text>'
        for x, text in ((left, f"{low:+,.1%}"), (width // 2, "total return"), (width - left, f"{high:+,.1%}"))
    )
    return (
        f'<div class="rows"><svg viewBox="0 0 {width} 112" role="img" font-size="13" '
        'aria-label="Total returns of the random policies">'
        f'<line x1="{left}" x2="{width - left}" y1="46" y2="46" stroke="currentColor" stroke-opacity=".3"/>'
        f"{dots}{lines}{axis}</svg></div>"
    )


def _day(time: np.datetime64) -> str:
    return str(time.astype("datetime64[m]")).replace("T", " ").removesuffix(" 00:00")

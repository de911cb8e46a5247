"""The evaluation as one HTML page that needs no network: warnings, tables, and charts that can be zoomed."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ml_pipeline.config.json_object import without_nan
from ml_pipeline.reporting.chart_style import AGENT_COLOR, DOWN_COLOR, EQUAL_COLOR, HOLD_COLOR, RANDOM_COLOR, UP_COLOR
from ml_pipeline.reporting.html_page import bullet_list, html_picture, html_table, paragraph, png_of, write_html_page
from ml_pipeline.reporting.interactive_page import (
    ZOOM_HINT,
    Curve,
    Marks,
    SortableTable,
    TableColumn,
    TimeChart,
    Unit,
    interactive_parts,
    interactive_style,
    padded,
)
from ml_pipeline.trading.accounts.ledger import Ledger, symbols_of, traded_values
from ml_pipeline.trading.accounts.trades import costs_of, trades_of
from ml_pipeline.trading.evaluation.metrics import (
    Drawdown,
    drawdown_fraction,
    drawdowns,
    exposures,
    monthly_returns,
    returns_of,
    rolling_sharpe,
    rolling_volatility,
)
from ml_pipeline.trading.evaluation.remarks import headlines, remarks
from ml_pipeline.trading.evaluation.report import as_json, sensitivity_figure, table_rows
from ml_pipeline.trading.evaluation.results import Evaluation, profit_by_asset, profit_curves
from ml_pipeline.trading.evaluation.sensitivity import LARGEST_FEE_BPS, TOLERANCE_BPS, Sensitivity
from ml_pipeline.trading.market.data import FloatArray

_MOST_DRAWDOWNS = 10
_STYLE = """
body { max-width: 72rem; }
.warning { background: #fdecea; color: #1c2330; border-left: 4px solid #c62f2f; padding: .6rem 1rem; }
.months td { font-size: .85rem; padding: .15rem .45rem; }
"""


class Observed(NamedTuple):
    """Observations of the agent. names: of D features. values: (n, D), one row per ledger row, before scaling."""

    names: Sequence[str]
    values: FloatArray


def write_page(
    path: Path,
    evaluation: Evaluation,
    sensitivity: Sensitivity | None = None,
    *,
    observed: Observed | None = None,
    notes: Sequence[str] = (),
    marked_rows: Sequence[int] = (),
) -> None:
    """Write the page. Its charts share one time axis, can be zoomed, and are drawn from every bar.

    sensitivity: of the orders to fees and delays. observed: shown for each trade. notes: further sentences.
    marked_rows: rows of the ledger to mark, such as the start of folds.
    """
    sentences = [*(sensitivity.sentences() if sensitivity else []), *remarks(evaluation), *notes]
    charts = page_charts(evaluation, marked_rows)
    tables = [trades_table(evaluation, observed), attribution_table(evaluation), drawdown_table(evaluation)]
    chart_places, (trades, attribution, falls), end = interactive_parts(evaluation.agent["time"], charts, tables)
    parts = [
        *(paragraph(sentence, "warning") for sentence in headlines(evaluation)),
        html_table(table_rows(evaluation)),
        bullet_list(sentences),
        ZOOM_HINT,
        *chart_places,
        trades,
        attribution,
        falls,
        "<h2>Monthly returns of the agent</h2>",
        months_table(evaluation.agent["time"], evaluation.agent["equity"]),
        f"<h2>Total returns of {len(evaluation.random)} random policies that trade as much</h2>",
        random_returns(evaluation),
        *_sensitivity_parts(evaluation, sensitivity),
        *end,
    ]
    write_html_page(path, evaluation.title, parts, style=interactive_style() + _STYLE)


def _sensitivity_parts(evaluation: Evaluation, sensitivity: Sensitivity | None) -> list[str]:
    if sensitivity is None:
        return []
    figure = sensitivity_figure(sensitivity, evaluation.rules.fee_bps)
    return [
        "<h2>Effect of costs and late orders</h2>",
        html_picture(png_of(figure), "Return of the same orders by fee, and by delay in bars"),
    ]


def write_metrics(path: Path, evaluation: Evaluation, sensitivity: Sensitivity) -> None:
    """Write every number of the page as JSON."""
    times, equity = evaluation.agent["time"], evaluation.agent["equity"]
    figures = as_json(evaluation) | {
        "drawdowns": [_with_times(drawdown, times) for drawdown in drawdowns(equity, most=_MOST_DRAWDOWNS)],
        "monthly_returns": monthly_returns(times, equity),
        "return_by_fee_bps": without_nan({f"{fee:g}": value for fee, value in sensitivity.by_fee.items()}),
        "return_by_delay_bars": without_nan({str(delay): value for delay, value in sensitivity.by_delay.items()}),
        "late_gain": None if (gain := sensitivity.late_gain) is None else without_nan(asdict(gain)),
        "break_even_fee_bps": sensitivity.break_even.fee_bps,
        "break_even": without_nan(asdict(sensitivity.break_even))
        | {"tolerance_bps": TOLERANCE_BPS, "largest_fee_bps": LARGEST_FEE_BPS},
    }
    path.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


def _with_times(drawdown: Drawdown, times: NDArray[np.datetime64]) -> dict[str, Any]:
    """A drawdown with times in place of rows."""
    rows = {"peak": drawdown.peak, "trough": drawdown.trough, "end": drawdown.end}
    return asdict(drawdown) | {
        name: None if row is None else str(times[row].astype("datetime64[s]")) for name, row in rows.items()
    }


# Colors of assets, in order; further assets are not drawn.
_ASSET_COLORS = ("#0b5fff", "#e07b00", "#1f8a4c", "#c62f2f", "#7a4fd0", "#008b9a", "#b0518f", "#6b7280")
_MOST_PRICES = 4
# Rolling figures cover this part of a year, or a quarter of the bars if that is less.
_ROLLING_YEARS = 0.25
_FEWEST_ROLLING = 10


def page_charts(evaluation: Evaluation, marked_rows: Sequence[int] = ()) -> list[TimeChart]:
    """The charts from top to bottom. marked_rows: rows of the ledger to mark in the first chart, such as folds."""
    agent, n = evaluation.agent, len(evaluation.agent["time"])
    gross, net, holder = *exposures(agent), evaluation.buy_and_hold["equity"]
    low, high = _random_range(evaluation.random, n)
    folds = [Marks("a new fold", [*marked_rows], agent["equity"][[*marked_rows]], RANDOM_COLOR, "line")]
    equal_weight = [
        Curve("equal weight", padded(evaluation.equal_weight["equity"], n), EQUAL_COLOR, dashed=True)
        for _ in range("equal_weight" in evaluation.columns)
    ]
    charts = [
        TimeChart(
            "Equity",
            "money",
            [
                Curve("agent", agent["equity"], AGENT_COLOR, width=2.0),
                Curve("buy and hold", padded(holder, n), HOLD_COLOR),
                *equal_weight,
                Curve("random, lowest", low, RANDOM_COLOR, width=1.0, coarse=True),
                Curve("random, highest", high, RANDOM_COLOR, width=1.0, coarse=True),
            ],
            folds if marked_rows else (),
            height_px=320,
            log_scale=_is_wide(agent["equity"]),
        ),
        TimeChart(
            "Drawdown",
            "percent",
            [
                Curve("agent", drawdown_fraction(agent["equity"]), AGENT_COLOR, filled=True),
                Curve("buy and hold", padded(drawdown_fraction(holder), n), HOLD_COLOR, width=1.0),
            ],
            height_px=170,
            axis="below the peak",
        ),
        *_rolling(evaluation, n),
        TimeChart(
            "Exposure",
            "percent",
            [
                Curve("gross", gross, RANDOM_COLOR, filled=True, steps=True, width=1.0),
                Curve("net", net, AGENT_COLOR, steps=True, width=1.0),
            ],
            height_px=150,
            axis="of the equity",
        ),
        TimeChart("Costs paid", "money", [Curve("agent", agent["costs_paid"], DOWN_COLOR)], height_px=150),
    ]
    return [*charts, *_by_asset(evaluation), *(_price(agent, symbol) for symbol in _most_traded(agent))]


def _rolling(evaluation: Evaluation, n: int) -> list[TimeChart]:
    per_year = evaluation.calendar.periods_per_year
    window = max(min(round(per_year * _ROLLING_YEARS), n // 4), _FEWEST_ROLLING)
    if n <= window + 1:
        return []
    charts = []
    units: tuple[tuple[str, Unit, str, Callable[[FloatArray, int, float], FloatArray]], ...] = (
        ("Sharpe ratio", "number", "annualized", rolling_sharpe),
        ("Annual volatility", "percent", "of the equity", rolling_volatility),
    )
    for title, unit, axis, figure in units:
        curves = [
            Curve(
                label,
                padded(np.append(np.nan, figure(returns_of(ledger["equity"]), window, per_year)), n),
                color,
                coarse=True,
            )
            for label, ledger, color in (
                ("agent", evaluation.agent, AGENT_COLOR),
                ("buy and hold", evaluation.buy_and_hold, HOLD_COLOR),
            )
        ]
        charts.append(TimeChart(f"{title}, rolling over {window:,} bars", unit, curves, height_px=150, axis=axis))
    return charts


def _by_asset(evaluation: Evaluation) -> list[TimeChart]:
    symbols = symbols_of(evaluation.agent)
    if len(symbols) == 1:
        return []
    costs = costs_of(evaluation.agent, evaluation.rules, evaluation.calendar.periods_per_year)
    profits = profit_curves(evaluation.agent, costs)
    largest = np.argsort(-np.abs(profits[-1]), kind="stable")[: len(_ASSET_COLORS)]
    title = "Profit by asset" if len(symbols) == len(largest) else f"Profit by asset ({len(largest)} largest)"
    curves = [
        Curve(symbols[a], profits[:, a], color, coarse=True)
        for a, color in zip(largest.tolist(), _ASSET_COLORS, strict=False)
    ]
    return [TimeChart(title, "money", curves)]


def _price(ledger: Ledger, symbol: str) -> TimeChart:
    filled, prices = ledger[f"filled_{symbol}"], ledger[f"fill_price_{symbol}"]
    buys, sales = (np.flatnonzero(side) for side in (filled > 0, filled < 0))
    marks = [
        Marks("bought", buys, prices[buys], UP_COLOR, "up"),
        Marks("sold", sales, prices[sales], DOWN_COLOR, "down"),
    ]
    if f"exited_{symbol}" in ledger:
        exited, prices = ledger[f"exited_{symbol}"], ledger[f"exit_price_{symbol}"]
        bought, sold = (np.flatnonzero(side) for side in (exited > 0, exited < 0))
        marks += [
            Marks("bought within the bar", bought, prices[bought], UP_COLOR, "up"),
            Marks("sold within the bar", sold, prices[sold], DOWN_COLOR, "down"),
        ]
    curve = Curve("close", ledger[f"close_{symbol}"], "#7d8590", width=1.0)
    return TimeChart(f"{symbol}: price and fills", "price", [curve], marks)


def _most_traded(ledger: Ledger) -> list[str]:
    symbols, traded = symbols_of(ledger), traded_values(ledger).sum(axis=0)
    return [symbols[a] for a in np.argsort(-traded, kind="stable")[:_MOST_PRICES]]


def _random_range(random: Sequence[Ledger], n: int) -> tuple[FloatArray, FloatArray]:
    """The lowest and the highest equity of the random policies at each bar; a closed account keeps its last equity."""
    equity = np.stack(
        [np.append(each["equity"], np.full(n - len(each["equity"]), each["equity"][-1])) for each in random]
    )
    return equity.min(axis=0), equity.max(axis=0)


def _is_wide(equity: FloatArray | NDArray[np.float64]) -> bool:
    return bool(equity.min() > 0 and equity.max() / equity.min() > 5)


_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
# A monthly return of this size has the full color.
_FULL_COLOR = 0.1
# Most trades whose observations are shown, to limit the size of the page.
_MOST_OBSERVED = 3_000


def trades_table(evaluation: Evaluation, observed: Observed | None) -> SortableTable:
    """Every trade, with the agent's observation when it decided the trade."""
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
    """Sources of the profit: gains, each kind of cost, and profit of each asset."""
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
    """Monthly returns as a heat map: an HTML table with one row per year."""
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
    """An SVG of the total returns of the random policies, the agent and holding, on one axis."""
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

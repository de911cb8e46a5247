"""The charts of the page: what happened at each bar, all over one time axis."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from ml_pipeline.reporting.chart_style import AGENT_COLOR
from ml_pipeline.reporting.interactive_page import Curve, Marks, TimeChart, Unit
from ml_pipeline.trading.accounts.costs import costs_of
from ml_pipeline.trading.accounts.ledger import Ledger, symbols_of, traded_values
from ml_pipeline.trading.evaluation.attribution import profit_curves
from ml_pipeline.trading.evaluation.curves import rolling_sharpe, rolling_volatility
from ml_pipeline.trading.evaluation.metrics import drawdown_fraction, exposures, returns_of
from ml_pipeline.trading.evaluation.results import Evaluation
from ml_pipeline.trading.market.data import FloatArray

HOLD_COLOR, EQUAL_COLOR, RANDOM_COLOR, UP_COLOR, DOWN_COLOR = "#e07b00", "#7a4fd0", "#8a8f98", "#1f8a4c", "#c62f2f"
# Colors of assets, in order; further assets are not drawn.
_ASSET_COLORS = ("#0b5fff", "#e07b00", "#1f8a4c", "#c62f2f", "#7a4fd0", "#008b9a", "#b0518f", "#6b7280")
_MOST_PRICES = 4
# Rolling figures look back over this part of a year, or over a quarter of the bars where those are fewer.
_ROLLING_YEARS = 0.25
_FEWEST_ROLLING = 10


def page_charts(evaluation: Evaluation, marked_rows: Sequence[int] = ()) -> list[TimeChart]:
    """The charts from top to bottom. marked_rows: rows of the ledger to mark in the first, as of folds."""
    agent, n = evaluation.agent, len(evaluation.agent["time"])
    gross, net, holder = *exposures(agent), evaluation.buy_and_hold["equity"]
    low, high = _random_range(evaluation.random, n)
    folds = [Marks("a new fold", [*marked_rows], agent["equity"][[*marked_rows]], RANDOM_COLOR, "line")]
    equal_weight = [
        Curve("equal weight", _padded(evaluation.equal_weight["equity"], n), EQUAL_COLOR, dashed=True)
        for _ in range("equal_weight" in evaluation.columns)
    ]
    charts = [
        TimeChart(
            "Equity",
            "money",
            [
                Curve("agent", agent["equity"], AGENT_COLOR, width=2.0),
                Curve("buy and hold", _padded(holder, n), HOLD_COLOR),
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
                Curve("buy and hold", _padded(drawdown_fraction(holder), n), HOLD_COLOR, width=1.0),
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
        ("Sharpe ratio", "number", "ratio, a year", rolling_sharpe),
        ("Volatility a year", "percent", "of the equity", rolling_volatility),
    )
    for title, unit, axis, figure in units:
        curves = [
            Curve(
                label,
                _padded(np.append(np.nan, figure(returns_of(ledger["equity"]), window, per_year)), n),
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
    title = "Profit by asset" if len(symbols) == len(largest) else f"Profit by asset, the {len(largest)} largest"
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


def _padded(values: FloatArray, n: int) -> FloatArray:
    """NaN after the end of an account that was closed before the agent's."""
    return np.concatenate([values, np.full(n - len(values), np.nan)])


def _random_range(random: Sequence[Ledger], n: int) -> tuple[FloatArray, FloatArray]:
    """The lowest and the highest equity of the random policies at each bar; a closed account stays where it ended."""
    equity = np.stack(
        [np.append(each["equity"], np.full(n - len(each["equity"]), each["equity"][-1])) for each in random]
    )
    return equity.min(axis=0), equity.max(axis=0)


def _is_wide(equity: FloatArray | NDArray[np.float64]) -> bool:
    return bool(equity.min() > 0 and equity.max() / equity.min() > 5)

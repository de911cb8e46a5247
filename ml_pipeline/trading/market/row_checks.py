"""Checks every row of an asset: which rows cannot be used, and a sentence about one of them."""

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from ml_pipeline.trading.market.asset import PRICES, Asset, Cells, column_title
from ml_pipeline.trading.market.plausibility import (
    MOST_ASK_OVER_BID,
    MOST_OUTSIDE,
    MOST_TAKEN_BACK,
    outside_range,
    wrong_ticks,
)
from ml_pipeline.trading.market.times import as_text

# If high is below low in more than this fraction of the bars, their columns are probably swapped.
_SWAPPED = 0.5

# Which rows of the asset are unusable, and a function that describes one of them.
Fault = tuple[NDArray[np.bool_], Callable[[int], str]]
Check = Callable[["Asset", Cells], Fault]


def checks_of(cells: Cells) -> list[Check]:
    """The checks for the columns that there are, in the order in which they are made."""
    checks: list[Check] = [
        partial(check, name) for name in price_columns(cells) for check in (_missing_prices, _bad_prices)
    ]
    if {"high", "low"} <= cells.keys():
        checks.append(partial(_crossed, "low", "high"))
    if {"high", "low", "close"} <= cells.keys():
        checks.append(_far_outside)
    if {"bid", "ask"} <= cells.keys():
        checks += [partial(_crossed, "bid", "ask"), _far_apart]
    return [*checks, _second_bars, *([_wrong_ticks] if "close" in cells else [])]


def _missing_prices(name: str, asset: Asset, cells: Cells) -> Fault:
    remedy = "drop the row, or write in the price that was known at that time"
    return np.isnan(cells[name]), lambda i: f"{column_title(asset, name)} is empty or not a number; {remedy}."


def _bad_prices(name: str, asset: Asset, cells: Cells) -> Fault:
    prices = cells[name]

    def sentence(i: int) -> str:
        return f"{column_title(asset, name)} is {prices[i]:g}, but a price is positive and finite; fix or drop the row."

    return ~(np.isfinite(prices) & (prices > 0)), sentence


def _crossed(lower: str, upper: str, asset: Asset, cells: Cells) -> Fault:
    low, high = cells[lower], cells[upper]
    crossed = high < low

    def sentence(i: int) -> str:
        message = f"the {upper} of {asset.symbol} is {high[i]:g}, below its {lower} of {low[i]:g}"
        if crossed.mean() > _SWAPPED:
            return f"{message}, as in most rows; the columns are probably swapped, rename them."
        return f"{message}; fix or drop the row."

    return crossed, sentence


def _range_and_ends(cells: Cells) -> Cells:
    return {"open": cells.get("open", cells["close"]), **{name: cells[name] for name in ("high", "low", "close")}}


def _far_outside(asset: Asset, cells: Cells) -> Fault:
    """Prices so far outside their bar's range that no order can have been filled there."""
    bars = _range_and_ends(cells)

    def sentence(i: int) -> str:
        with np.errstate(all="ignore"):
            distance = {
                name: max(bars[name][i] / bars["high"][i], bars["low"][i] / bars[name][i]) for name in ("open", "close")
            }
        name = max(distance, key=lambda name: distance[name])
        return (
            f"{name} of {asset.symbol} is {bars[name][i]:g}, far outside its low..high of {bars['low'][i]:g} to "
            f"{bars['high'][i]:g}, where nothing can have been filled; fix or drop the row."
        )

    return outside_range(bars, times=MOST_OUTSIDE), sentence


def _far_apart(asset: Asset, cells: Cells) -> Fault:
    bid, ask = cells["bid"], cells["ask"]

    def sentence(i: int) -> str:
        with np.errstate(over="ignore"):
            times = ask[i] / bid[i]
        return (
            f"the ask of {asset.symbol} is {ask[i]:g}, {times:.3g} times its bid of {bid[i]:g}, which no market "
            "quotes; fix or drop the row."
        )

    with np.errstate(over="ignore"):
        return ask > MOST_ASK_OVER_BID * bid, sentence


def _second_bars(asset: Asset, cells: Cells) -> Fault:
    times = asset.times[asset.rows]
    steps = np.diff(times).astype(np.int64)
    second = np.zeros(len(times), dtype=bool)
    if not ((steps > 0).all() or (steps < 0).all()):
        second[:] = True
        second[np.unique(times, return_index=True)[1]] = False
    return second, lambda i: f"a second bar of {asset.symbol} at {as_text(times[i])}; drop one of the two."


def _wrong_ticks(asset: Asset, cells: Cells) -> Fault:
    """Closes that are impossible beside their neighbours'; rows in no order have no neighbours."""
    close = cells["close"]
    wrong = np.zeros(len(close), dtype=bool)
    steps = np.diff(asset.times[asset.rows]).astype(np.int64)
    if (steps > 0).all() or (steps < 0).all():
        wrong[wrong_ticks(close, times=MOST_TAKEN_BACK)] = True

    def sentence(i: int) -> str:
        return (
            f"close of {asset.symbol} is {close[i]:g}, between {close[i - 1]:g} and {close[i + 1]:g} in the bars "
            "beside it, as a wrong tick is; fix or drop the row."
        )

    return wrong, sentence


def price_columns(cells: Cells) -> list[str]:
    """The columns that hold prices."""
    return [name for name in (*PRICES, "bid", "ask", "adjusted") if name in cells]

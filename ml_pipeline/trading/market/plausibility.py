"""Recognize prices that cannot have been traded: prices outside their bar's range, splits, wrong ticks, wide quotes.

T bars of one asset. Pure arithmetic: `asset_bars` uses it to refuse rows, `data` to mark bars in which no order fills,
and `diagnosis` to describe problems.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ml_pipeline.config.wording import counted
from ml_pipeline.trading.market.times import as_text

FloatArray = NDArray[np.float64]
Prices = Mapping[str, FloatArray]

# Rows are refused if a price lies outside its bar's range by this factor, or the ask is this multiple of the bid.
MOST_OUTSIDE = 1.5
MOST_ASK_OVER_BID = 2.0
# Rows are also refused if their close moves by this factor and the next bar reverses it.
MOST_TAKEN_BACK = 4.0
# A half spread above this fraction of the price is reported.
_WIDE_HALF_SPREAD = 0.05
# Rounded or 32-bit prices may lie this far outside their range.
_ROUNDING = 1e-6
# An outlier is a return above this multiple of the median absolute return: rarer than one in a million by chance, even
# with heavy tails.
_OUTLIER = 40
# A wrong tick moves the price by at least this factor, and the next bar reverses it.
_WRONG_TICK = 1.5
# New shares per old share in splits, and old shares per new share in reverse splits.
_SPLITS = (1.5, 2, 3, 4, 5, 6, 7, 8, 10, 12, 15, 20, 25, 30, 40, 50, 100)
_REVERSE_SPLITS = (4, 5, 6, 7, 8, 10, 12, 15, 20, 25, 30, 40, 50, 100)
# The log return of a split is within this distance of the ratio at the open and at the close, and is larger than this
# multiple of usual moves.
_NEAR_SPLIT = 0.1
_NEAR_SMALL_SPLIT = 0.05
_USUAL_MOVES = 8


class Split(NamedTuple):
    """A split: from bar `row` on, prices are divided by `ratio`, which is 20 for a 20:1 split."""

    row: int
    ratio: float

    def __str__(self) -> str:
        """20:1, 3:2, or 1:10 for a reverse split."""
        if self.ratio < 1:
            return f"1:{1 / self.ratio:g}"
        return "3:2" if self.ratio == 1.5 else f"{self.ratio:g}:1"


class OwnBars(NamedTuple):
    """Bars of one asset, each array (T,). outside: see `outside_range`; None if there is none or it is unknown."""

    times: NDArray[np.datetime64]
    open: FloatArray
    close: FloatArray
    half_spread: FloatArray | None = None
    outside: NDArray[np.bool_] | None = None


def outside_range(prices: Prices, *, times: float = 1.0 + _ROUNDING) -> NDArray[np.bool_]:
    """Whether open or close lies outside low..high by more than the factor `times`; prices may be (T, A)."""
    top = np.maximum(prices["open"], prices["close"])
    bottom = np.minimum(prices["open"], prices["close"])
    with np.errstate(over="ignore"):
        return (top > prices["high"] * times) | (bottom * times < prices["low"])


def find_splits(open: FloatArray, close: FloatArray) -> list[Split]:
    """The bars at which prices change as after a split that the data do not reflect.

    >>> find_splits(np.array([100.0, 100, 5, 5.1]), np.array([100.0, 101, 5.05, 5.1]))
    [Split(row=2, ratio=20)]
    """
    if len(close) < 2:
        return []
    at_close = np.diff(np.log(close))
    usual = _USUAL_MOVES * float(np.median(np.abs(at_close)))
    smallest = np.log(min(_SPLITS)) - _NEAR_SMALL_SPLIT
    ticks = wrong_ticks(close)
    far = np.setdiff1d(np.flatnonzero(np.abs(at_close) > max(usual, smallest)), np.concatenate([ticks - 1, ticks]))
    splits = []
    for i in far:
        ratios = _SPLITS if at_close[i] < 0 else tuple(1 / ratio for ratio in _REVERSE_SPLITS)
        moves = np.array([np.log(open[i + 1] / close[i]), at_close[i]])
        ratio = min(ratios, key=lambda ratio: float(np.abs(moves + np.log(ratio)).max()))
        near = _NEAR_SPLIT if abs(np.log(ratio)) > np.log(3.5) else _NEAR_SMALL_SPLIT
        if np.abs(moves + np.log(ratio)).max() < near:
            splits.append(Split(int(i) + 1, ratio))
    return splits


def severe_problems(symbol: str, bars: OwnBars) -> Iterator[tuple[str, str]]:
    """(problem, remedy) of each problem that makes results of this asset wrong but is not refused."""
    yield from _one_side(symbol, bars)
    for check in (_outside, _split, _wrong_ticks, _wide_quotes):
        yield from check(bars)


def far_returns(close: FloatArray) -> tuple[FloatArray, NDArray[np.int64]]:
    """Log returns (T - 1,), and the indices of the outliers."""
    returns = np.diff(np.log(close))
    sizes = np.abs(returns)
    moved = sizes[sizes > 0]
    if not moved.size:
        return returns, np.empty(0, dtype=np.int64)
    return returns, np.flatnonzero(sizes > max(_OUTLIER * float(np.median(moved)), 0.05))


def quote_side(symbol: str) -> Any:
    """The match of the separate word "bid" or "ask" in the name of a symbol; None if there is none."""
    return re.search(r"(?<![A-Za-z])(ask|bid)(?![A-Za-z])", symbol, re.IGNORECASE)


def _one_side(symbol: str, bars: OwnBars) -> Iterator[tuple[str, str]]:
    side = quote_side(symbol)
    if side and (bars.half_spread is None or not bars.half_spread.any()):
        yield (
            f"by its name it holds only the {side[1].lower()} side",
            "add the file of the other side to the folder (the same name with bid or ask), or add half the spread to "
            "--slippage-bps",
        )


def _outside(bars: OwnBars) -> Iterator[tuple[str, str]]:
    if bars.outside is not None and bars.outside.any():
        outside = np.flatnonzero(bars.outside)
        often = len(outside) > len(bars.times) / 2
        yield (
            f"open or close lies outside low..high in {counted(len(outside), 'bar')}, first at "
            f"{as_text(bars.times[outside[0]])}",
            "the columns are probably swapped: rename them"
            if often
            else "check how the bars were made; no order fills in those bars, and their features of highs and lows are "
            "wrong",
        )


def _split(bars: OwnBars) -> Iterator[tuple[str, str]]:
    splits = find_splits(bars.open, bars.close)
    if splits:
        more = f", and {counted(len(splits) - 1, 'more split')}" if len(splits) > 1 else ""
        yield (
            f"prices change as after an unadjusted {splits[0]} split at {as_text(bars.times[splits[0].row])}{more}",
            "use adjusted prices, or --adjust-splits",
        )


def wrong_ticks(close: FloatArray, *, times: float = _WRONG_TICK) -> NDArray[np.int64]:
    """The bars whose close moves by at least the factor `times` and is reversed by the next bar."""
    returns, far = far_returns(close)
    far = far[(np.abs(returns[far]) > np.log(times)) & (far + 1 < len(returns))]
    undone = far[np.abs(returns[far] + returns[far + 1]) < np.abs(returns[far]) / 2]
    there = np.diff(undone, prepend=-2) > 1  # without the bar that reverses the move
    return undone[there] + 1


def _wrong_ticks(bars: OwnBars) -> Iterator[tuple[str, str]]:
    ticks = wrong_ticks(bars.close)
    if ticks.size:
        first = ticks[0]
        yield (
            f"{counted(len(ticks), 'close')} {'is' if len(ticks) == 1 else 'are'} reversed by the next bar, first "
            f"{bars.close[first] / bars.close[first - 1] - 1:+,.0%} at {as_text(bars.times[first])}",
            "probably a wrong tick: drop the row",
        )


def _wide_quotes(bars: OwnBars) -> Iterator[tuple[str, str]]:
    if bars.half_spread is None:
        return
    wide = np.flatnonzero(bars.half_spread > _WIDE_HALF_SPREAD)
    if wide.size:
        yield (
            f"bid and ask are up to {2 * bars.half_spread[wide].max():.0%} of the price apart, above "
            f"{2 * _WIDE_HALF_SPREAD:.0%} in {counted(len(wide), 'bar')}, first at {as_text(bars.times[wide[0]])}",
            "check the quotes: every fill pays half of that",
        )

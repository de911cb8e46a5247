"""Recognizes prices at which nobody can have traded: bars outside their own range, splits, wrong ticks, wide quotes.

T bars of one asset. Pure arithmetic: `asset_bars` refuses rows by it, `data` marks bars in which nothing is filled, and
`diagnosis` describes what it finds.
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

# Prices this many times outside their bar's range, and an ask this many times its bid, cannot be: rows are refused.
MOST_OUTSIDE = 1.5
MOST_ASK_OVER_BID = 2.0
# So is a close that moves by this factor and is taken back by the next bar.
MOST_TAKEN_BACK = 4.0
# Half a spread above this part of the price is told.
_WIDE_HALF_SPREAD = 0.05
# Prices that were rounded, or kept in 32 bits, may lie this far outside their range.
_ROUNDING = 1e-6
# An outlier is a return this many times the median absolute one: one in millions by chance, even with heavy tails.
_OUTLIER = 40
# A wrong tick moves the price by at least this factor, and the next bar takes it back.
_WRONG_TICK = 1.5
# New shares for one old share that splits give, and old shares for one new share after reverse splits.
_SPLITS = (1.5, 2, 3, 4, 5, 6, 7, 8, 10, 12, 15, 20, 25, 30, 40, 50, 100)
_REVERSE_SPLITS = (4, 5, 6, 7, 8, 10, 12, 15, 20, 25, 30, 40, 50, 100)
# A split's log return is within this of the ratio, at the open and at the close, and is no usual move.
_NEAR_SPLIT = 0.1
_NEAR_SMALL_SPLIT = 0.05
_USUAL_MOVES = 8


class Split(NamedTuple):
    """From the bar `row` on, prices are the earlier ones divided by `ratio`, 20 for a split of 20 to 1."""

    row: int
    ratio: float

    def __str__(self) -> str:
        """As traders write it: 20:1, 3:2, or 1:10 for a reverse split."""
        if self.ratio < 1:
            return f"1:{1 / self.ratio:g}"
        return "3:2" if self.ratio == 1.5 else f"{self.ratio:g}:1"


class OwnBars(NamedTuple):
    """Bars of one asset, each array (T,). outside: see `outside_range`; None where there is none or nothing tells."""

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
    """Where prices go on at a fraction, or a multiple, of the last close, as after a split that they do not reflect.

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
    """(problem, remedy) of everything that makes results of this asset wrong, and that is not refused."""
    yield from _one_side(symbol, bars)
    for check in (_outside, _split, _wrong_ticks, _wide_quotes):
        yield from check(bars)


def far_returns(close: FloatArray) -> tuple[FloatArray, NDArray[np.int64]]:
    """Log returns (T - 1,), and the indices of those that are far out."""
    returns = np.diff(np.log(close))
    sizes = np.abs(returns)
    moved = sizes[sizes > 0]
    if not moved.size:
        return returns, np.empty(0, dtype=np.int64)
    return returns, np.flatnonzero(sizes > max(_OUTLIER * float(np.median(moved)), 0.05))


def quote_side(symbol: str) -> Any:
    """The match of "bid" or "ask" in the name of a symbol, as a word of its own; None if there is none."""
    return re.search(r"(?<![A-Za-z])(ask|bid)(?![A-Za-z])", symbol, re.IGNORECASE)


def _one_side(symbol: str, bars: OwnBars) -> Iterator[tuple[str, str]]:
    side = quote_side(symbol)
    if side and (bars.half_spread is None or not bars.half_spread.any()):
        yield (
            f"by its name it holds only the {side[1].lower()} side",
            "put the file of the other side beside it (the same name with bid or ask), or add half the spread to "
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
            else "check how the bars were made; orders are not filled in those bars, and features of highs and lows "
            "are wrong there",
        )


def _split(bars: OwnBars) -> Iterator[tuple[str, str]]:
    splits = find_splits(bars.open, bars.close)
    if splits:
        more = f", and {counted(len(splits) - 1, 'more split')}" if len(splits) > 1 else ""
        yield (
            f"prices go on as after a split of {splits[0]} at {as_text(bars.times[splits[0].row])}{more}",
            "use adjusted prices, or --adjust-splits",
        )


def wrong_ticks(close: FloatArray, *, times: float = _WRONG_TICK) -> NDArray[np.int64]:
    """The bars whose close is `times` as far up or down from the one before, and that the one after takes back."""
    returns, far = far_returns(close)
    far = far[(np.abs(returns[far]) > np.log(times)) & (far + 1 < len(returns))]
    undone = far[np.abs(returns[far] + returns[far + 1]) < np.abs(returns[far]) / 2]
    there = np.diff(undone, prepend=-2) > 1  # and not the way back
    return undone[there] + 1


def _wrong_ticks(bars: OwnBars) -> Iterator[tuple[str, str]]:
    ticks = wrong_ticks(bars.close)
    if ticks.size:
        first = ticks[0]
        yield (
            f"{counted(len(ticks), 'close')} {'is' if len(ticks) == 1 else 'are'} undone by the next bar, first "
            f"{bars.close[first] / bars.close[first - 1] - 1:+,.0%} at {as_text(bars.times[first])}",
            "it is probably a wrong tick: drop the row",
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

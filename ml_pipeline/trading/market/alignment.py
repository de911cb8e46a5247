"""Assets whose bars are of different length on one clock, so that no bar is known before it is over."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ml_pipeline.config.errors import UserError
from ml_pipeline.trading.market.asset_bars import AssetBars
from ml_pipeline.trading.market.data import BarTime

# With fewer bars, each step between two of them may be a gap.
_FEWEST_TO_TELL_SPACING = 4
# Bars so many times as long as others are of another length; months, of 28 to 31 days, are of one.
_LONGER = 1.5


def align_bars(read: Sequence[AssetBars], bar_time: BarTime | None) -> list[AssetBars]:
    """The assets' bars, each under the time at which the shortest bars that close with it are found.

    bar_time: whether times are when bars open or when they close; None is what the names of columns say. Where all bars
    are of one length that makes no difference, and times stay as they are.
    Raises UserError where it makes one and nothing tells which it is.
    """
    spacings = [_spacing(bars.times) for bars in read]
    clock = min((spacing for spacing in spacings if spacing is not None), default=None)
    if clock is None:
        return list(read)
    long = [spacing is not None and spacing >= _LONGER * clock for spacing in spacings]
    named = [bar_time or bars.bar_time for bars in read]
    if len({*named}) == 1 and not any(long):
        return list(read)
    if None in named:
        raise _unsaid(read, named, long)
    if "open" not in named:
        return list(read)
    return [
        _moved(bars, spacing or clock, clock, is_long=is_long, bar_time=name)
        for bars, spacing, is_long, name in zip(read, spacings, long, named, strict=True)
    ]


def _unsaid(read: Sequence[AssetBars], named: Sequence[BarTime | None], long: Sequence[bool]) -> UserError:
    """That the first asset whose times nothing tells of stands beside another to which it matters."""
    this = named.index(None)
    other = next(i for i in range(len(read)) if long[i] != long[this] or named[i] != named[this])
    why = "are of another length" if long[other] != long[this] else f"are named by when they {named[other]}"
    return UserError(
        f"It matters whether the times of {read[this].symbol} are when its bars open or when they close, since the "
        f"bars of {read[other].symbol} {why}; say which by --bar-time open or --bar-time close."
    )


def _moved(bars: AssetBars, spacing: int, clock: int, *, is_long: bool, bar_time: BarTime | None) -> AssetBars:
    """The bars under the opening time of the clock's bar that closes with them."""
    if bar_time == "open" and not is_long:
        return bars
    ends = bars.times if bar_time == "close" else _ends(bars.times, spacing)
    notices = bars.notices
    if is_long:
        notices = [*notices, f"{bars.symbol}: its bars are longer than others' and were put where they close"]
    return replace(bars, times=ends - np.timedelta64(clock, "ns"), notices=notices)


def _spacing(times: NDArray[np.datetime64]) -> int | None:
    """From one bar to the next in ns, as a rule: neither stray bars nor gaps tell. None where bars are too few."""
    if len(times) < _FEWEST_TO_TELL_SPACING:
        return None
    return int(np.quantile(np.diff(times).astype(np.int64), 0.25, method="lower"))


def _ends(times: NDArray[np.datetime64], spacing: int) -> NDArray[np.datetime64]:
    """When each bar is over: as the next begins, or, before a gap and at the end, after the longest usual bar.

    Months have 28 to 31 days: no bar may be known before its own end.
    """
    steps = np.diff(times).astype(np.int64)
    longest = steps[steps < _LONGER * spacing].max()
    return times + np.minimum(np.append(steps, longest), longest).astype("timedelta64[ns]")

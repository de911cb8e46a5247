"""Aligns assets whose bars have different lengths, so that no bar is known before it closes."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ml_pipeline.config.errors import UserError
from ml_pipeline.trading.market.asset_bars import AssetBars
from ml_pipeline.trading.market.times import BarTime, usual_spacing

# With fewer bars, every step between two of them may be a gap.
_FEWEST_TO_TELL_SPACING = 4
# Bars this many times as long as others are of another length. Months, with 28 to 31 days, are all of one length.
_LONGER = 1.5
# Bars of a day are at least this long, in ns; a day on which clocks change has 23 hours.
_SHORTEST_DAY = 20 * 3_600 * 10**9


def align_bars(read: Sequence[AssetBars], bar_time: BarTime | None) -> list[AssetBars]:
    """The bars of the assets, with each long bar at the time of the shortest bar that closes with it.

    bar_time: whether times are when bars open or close; None: as the names of the time columns say. If all bars have
    the same length, it makes no difference and times stay as they are.
    Raises UserError if it makes a difference and neither `bar_time` nor a column name tells which it is.
    """
    spacings = [_spacing(bars.times) for bars in read]
    shortest = min((spacing for spacing in spacings if spacing is not None), default=None)
    if shortest is None:
        return list(read)
    long = [spacing is not None and spacing >= _LONGER * shortest for spacing in spacings]
    named = [bar_time or bars.bar_time for bars in read]
    if len({*named}) == 1 and not any(long):
        return list(read)
    if None in named:
        raise _ambiguous_bar_time(read, named, long)
    if "open" not in named:
        return list(read)
    return [
        _moved(bars, spacing or shortest, shortest, is_long=is_long, bar_time=name)
        for bars, spacing, is_long, name in zip(read, spacings, long, named, strict=True)
    ]


def with_exchange_days(read: Sequence[AssetBars]) -> list[AssetBars]:
    """The bars; where all assets have bars of a day or longer, those at midnights of an exchange keep its days.

    In UTC, a Monday that begins at midnight in Tokyo lies on Sunday. Beside shorter bars, UTC decides what is
    known when.
    """
    spacings = [_spacing(bars.times) for bars in read]
    if any(spacing is not None and spacing < _SHORTEST_DAY for spacing in spacings):
        return list(read)
    return [
        bars
        if bars.days is None
        else replace(
            bars, times=bars.days, notices=[*bars.notices, f"{bars.symbol}: its bars keep the days of their exchange"]
        )
        for bars in read
    ]


def _ambiguous_bar_time(read: Sequence[AssetBars], named: Sequence[BarTime | None], long: Sequence[bool]) -> UserError:
    """An error about the first asset whose times may be either, and another asset because of which it matters."""
    this = named.index(None)
    other = next(i for i in range(len(read)) if long[i] != long[this] or named[i] != named[this])
    why = "have another length" if long[other] != long[this] else f"are named by when they {named[other]}"
    return UserError(
        f"It matters whether the times of {read[this].symbol} are when its bars open or when they close, since the "
        f"bars of {read[other].symbol} {why}; say which with --bar-time open or --bar-time close."
    )


def _moved(bars: AssetBars, spacing: int, shortest: int, *, is_long: bool, bar_time: BarTime | None) -> AssetBars:
    """The bars, each at the opening time of the shortest bar that closes with it."""
    if bar_time == "open" and not is_long:
        return bars
    ends = bars.times if bar_time == "close" else _ends(bars.times, spacing)
    notices = bars.notices
    if is_long:
        notices = [*notices, f"{bars.symbol}: its bars are longer than others and were moved to where they close"]
    return replace(bars, times=ends - np.timedelta64(shortest, "ns"), notices=notices)


def _spacing(times: NDArray[np.datetime64]) -> int | None:
    """The usual time between bars in ns, unaffected by stray bars and gaps; None if there are too few bars."""
    if len(times) < _FEWEST_TO_TELL_SPACING:
        return None
    return usual_spacing(times)


def _ends(times: NDArray[np.datetime64], spacing: int) -> NDArray[np.datetime64]:
    """When each bar ends: where the next begins or, before a gap and at the end, after the longest usual bar.

    Months have 28 to 31 days, and no bar may be known before its own end.
    """
    steps = np.diff(times).astype(np.int64)
    longest = steps[steps < _LONGER * spacing].max()
    return times + np.minimum(np.append(steps, longest), longest).astype("timedelta64[ns]")

"""Longer bars out of the bars that close together, as they come, with the bits of `market.resampling`.

A longer bar is given out when the last of its bars is, or once nothing more can come for it.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ml_pipeline.live.feeds.bar_assembly import made_late
from ml_pipeline.live.feeds.feed import Correction
from ml_pipeline.trading.market.bar_set import BarSet
from ml_pipeline.trading.market.plausibility import outside_range
from ml_pipeline.trading.market.timeframes import DAY, Timing, long_bars, together

_FIELDS = ("open", "high", "low", "close", "volume")
# So many longer bars that were given out are kept with their bars, to notice what changes in them.
_REMEMBERED = 4


class LongerBarAssembly:
    """Makes bars of `length` ns out of those of `base`, symbol by symbol."""

    def __init__(self, symbols: Sequence[str], base: Timing, length: int) -> None:
        self.symbols = tuple(symbols)
        self.timing = Timing(length, base.stamped, base.clock)
        self._base = base
        self._groups: dict[int, list[BarSet]] = {}
        self._given: int | None = None

    def add(self, bars: BarSet, now: np.datetime64) -> list[BarSet]:
        """Take the next bars in, at the time `now`; the longer bars that they complete, none or one or two."""
        key = self._key(bars.time)
        done = self._open_before(key)
        self._groups.setdefault(key, []).append(bars)
        if self._reaches_end(bars.time):
            done.append(key)
        return self._give(done, now)

    def settle(self, until: np.datetime64, now: np.datetime64) -> list[BarSet]:
        """The longer bars whose time was over by `until`, up to which every bar has been waited for."""
        open_ones = [key for key in self._groups if self._given is None or key > self._given]
        return self._give([key for key in sorted(open_ones) if self._ends(key) <= until], now)

    def correct(self, correction: Correction) -> Correction | None:
        """What a changed bar changes in a longer bar that was given out; None where it was not given out yet."""
        bars = correction.bars
        key = self._key(bars.time)
        group = self._groups.get(key)
        if group is None:
            return None
        self._groups[key] = sorted(
            [*(each for each in group if each.time != bars.time), bars], key=lambda each: each.time
        )
        if self._given is None or key > self._given:
            return None
        return Correction(self._made(key), correction.symbols, correction.late)

    def _give(self, keys: Sequence[int], now: np.datetime64) -> list[BarSet]:
        made = []
        for key in keys:
            bars = self._made(key)
            is_late = now >= bars.closed_at + np.timedelta64(self.timing.length, "ns")
            made.append(made_late(bars) if is_late else bars)
            self._given = key
        for key in sorted(self._groups)[:-_REMEMBERED]:
            if self._given is not None and key <= self._given:
                del self._groups[key]
        return made

    def _open_before(self, key: int) -> list[int]:
        return sorted(each for each in self._groups if each < key and (self._given is None or each > self._given))

    def _made(self, key: int) -> BarSet:
        group = self._groups[key]
        times = np.array([bars.time for bars in group])
        table = {name: np.array([getattr(bars, name) for bars in group]) for name in _FIELDS}
        present = np.array([bars.present for bars in group])
        made = {name: np.full(len(self.symbols), 0.0 if name == "volume" else np.nan) for name in _FIELDS}
        for a in np.flatnonzero(present.any(axis=0)):
            own = present[:, a]
            fields = {name: values[own, a] for name, values in table.items()}
            longer = together(fields, long_bars(times[own], self._base, self.timing.length, causal=False))
            for name, values in longer.items():
                made[name][a] = values[0]
        whole = long_bars(times, self._base, self.timing.length, causal=False)
        return BarSet(
            time=self._stamp(times, whole.starts[0], whole.ends[0]),
            closed_at=_time(whole.ends[0]),
            open=made["open"],
            high=made["high"],
            low=made["low"],
            close=made["close"],
            volume=made["volume"],
            fillable=~np.isnan(made["close"]) & ~outside_range(made),
        )

    def _stamp(self, times: NDArray[np.datetime64], start: int, end: int) -> np.datetime64:
        if self._base.stamped == "close":
            return _time(end)
        if self.timing.length >= DAY and self._base.clock.zone is not None:  # a day of the exchange
            return (
                self._base.clock.days(self._base.opens(times[:1]))[0]
                .astype("datetime64[D]")
                .astype("datetime64[ns]")[0]
            )
        return _time(start)

    def _key(self, time: np.datetime64) -> int:
        """The longer bar that a bar belongs to; those of later bars are larger."""
        times = np.array([time])
        if self.timing.length < DAY:
            return int(long_bars(times, self._base, self.timing.length, causal=False).starts[0])
        day = int(self._base.clock.days(self._base.opens(times))[0][0])
        return day if self.timing.length == DAY else (day - 4) // 7

    def _reaches_end(self, time: np.datetime64) -> bool:
        return bool(long_bars(np.array([time]), self._base, self.timing.length, causal=False).closes[0])

    def _ends(self, key: int) -> np.datetime64:
        times = np.array([self._groups[key][-1].time])
        return _time(long_bars(times, self._base, self.timing.length, causal=False).ends[0])


def _time(nanoseconds: int) -> np.datetime64:
    return np.datetime64(int(nanoseconds), "ns")

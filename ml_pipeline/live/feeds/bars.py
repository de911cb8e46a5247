"""Assemble single bars of symbols, as streams send them, into sets that close together, and into longer bars.

`BarAssembly` depends only on messages and clock readings. It ignores repeated bars, sorts bars that are out of order as
long as it waits for them, and replaces a bar by its correction. A change after delivery becomes a Correction.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ml_pipeline.live.feeds.feed import Correction
from ml_pipeline.trading.market.bar_set import BarSet
from ml_pipeline.trading.market.plausibility import outside_range
from ml_pipeline.trading.market.timeframes import DAY, Timing, long_bars, together

# Number of delivered sets that are kept to detect changes.
_SETS_REMEMBERED = 500
# Number of delivered longer bars that are kept for the same purpose.
_LONGER_BARS_REMEMBERED = 4
_PRICES = ("open", "high", "low", "close")
_FIELDS = (*_PRICES, "volume")


class SymbolBar(NamedTuple):
    """One bar of one symbol. time: by the feed's timing. corrected: it was fetched, or sent as a correction, so a first
    version that arrives later does not replace it."""

    symbol: str
    time: np.datetime64
    open: float
    high: float
    low: float
    close: float
    volume: float
    corrected: bool = False

    @property
    def values(self) -> tuple[float, ...]:
        return self[2:7]

    @property
    def possible(self) -> bool:
        """Whether its prices are positive and finite, its high is not below its low, and its volume is valid."""
        prices = self[2:6]
        return (
            all(0 < price < np.inf for price in prices)
            and self.low <= self.high
            and 0 <= self.volume < np.inf  # comparisons with NaN are False
        )


class BarAssembly:
    """Bars of `symbols` after the time `given`. Each set is delivered when it is complete or the wait is over.

    settled: time up to which missing bars were waited for and fetched; None: no bars yet.
    """

    def __init__(self, symbols: Sequence[str], timing: Timing, *, given: np.datetime64 | None = None) -> None:
        self.symbols = tuple(symbols)
        self.timing = timing
        self.given = given
        self.settled = given
        self.refused = ""
        """Why the latest impossible bar was skipped."""
        self._length = np.timedelta64(timing.length, "ns")
        self._waiting: dict[np.datetime64, dict[str, SymbolBar]] = {}
        self._known: dict[np.datetime64, dict[str, SymbolBar]] = {}

    @property
    def waiting(self) -> Mapping[np.datetime64, Mapping[str, SymbolBar]]:
        """The bars that are not delivered yet, by time and symbol."""
        return self._waiting

    def add(self, bar: SymbolBar) -> Correction | None:
        """Add a bar. Returns a Correction if the bars of its time were delivered without it or with other values."""
        if bar.symbol not in self.symbols or not self._in_session(bar.time):
            return None
        if not bar.possible:
            self.refused = f"the bar of {bar.symbol} at {bar.time} is impossible: {bar.values}"
            return None
        if self.given is None or bar.time > self.given:
            self._put(self._waiting.setdefault(bar.time, {}), bar)
            return None
        if not self._known or bar.time < min(self._known):
            return None
        bars = self._known.setdefault(bar.time, {})
        was_missing = bar.symbol not in bars
        if not self._put(bars, bar):
            return None
        return Correction(self.set_of(bar.time, bars), (bar.symbol,), late=was_missing)

    def give(self, now: np.datetime64) -> BarSet | None:
        """The next bars, if they have closed and no symbol or earlier bar is waited for."""
        if not self._waiting:
            return None
        time = min(self._waiting)
        bars = self._waiting[time]
        if now < self._closes(time) or not (self._is_settled(time) or (self._is_next(time) and self._complete(bars))):
            return None
        self._known[time] = self._waiting.pop(time)
        if len(self._known) > _SETS_REMEMBERED:
            del self._known[min(self._known)]
        self.given = time
        made = self.set_of(time, bars)
        return made if now < made.closed_at + self._length else made_late(made)

    def missing(self, first: np.datetime64, last: np.datetime64) -> tuple[str, ...]:
        """The symbols that lack a bar among the waiting ones from `first` to `last`."""
        sets = [bars for time, bars in self._waiting.items() if first <= time <= last]
        return tuple(symbol for symbol in self.symbols if not sets or any(symbol not in bars for bars in sets))

    def set_of(self, time: np.datetime64, bars: Mapping[str, SymbolBar]) -> BarSet:
        nothing = (np.nan, np.nan, np.nan, np.nan, 0.0)
        rows = np.array([bars[symbol].values if symbol in bars else nothing for symbol in self.symbols])
        prices = dict(zip(_PRICES, rows[:, :4].T.copy(), strict=True))
        present = ~np.isnan(prices["close"])
        return BarSet(
            time=time,
            closed_at=self._closes(time),
            **prices,
            volume=rows[:, 4].copy(),
            fillable=present & ~outside_range(prices),
        )

    @staticmethod
    def _put(bars: dict[str, SymbolBar], bar: SymbolBar) -> bool:
        """Add the bar. Returns whether it is new or different."""
        before = bars.get(bar.symbol)
        if before is not None and (before.corrected > bar.corrected or before.values == bar.values):
            return False
        bars[bar.symbol] = bar
        return True

    def _is_settled(self, time: np.datetime64) -> bool:
        return self.settled is not None and bool(time <= self.settled)

    def _is_next(self, time: np.datetime64) -> bool:
        """Whether no bar between the delivered ones and this time is waited for."""
        before = time - self._length
        return self._is_settled(before) or (self.given is not None and bool(before <= self.given))

    def _complete(self, bars: Mapping[str, SymbolBar]) -> bool:
        return len(bars) == len(self.symbols)

    def _in_session(self, time: np.datetime64) -> bool:
        """Whether the bar is within the session, as in `resampling.in_session`."""
        clock = self.timing.clock
        if not clock.has_session or self.timing.length >= clock.open_for:
            return True
        return bool(clock.days(self.timing.opens(np.array([time])))[1][0] < clock.open_for)

    def _closes(self, time: np.datetime64) -> np.datetime64:
        return self.timing.closes(np.array([time]))[0]


def made_late(bars: BarSet) -> BarSet:
    """The same bars, marked as late."""
    return replace(bars, late=True)


class LongerBarAssembly:
    """Builds bars of `length` ns from those of `base`, symbol by symbol, with the same bits as `market.resampling`.

    A longer bar is delivered with the last of its bars, or when no more of them can arrive.
    """

    def __init__(self, symbols: Sequence[str], base: Timing, length: int) -> None:
        self.symbols = tuple(symbols)
        self.timing = Timing(length, base.stamped, base.clock)
        self._base = base
        self._groups: dict[int, list[BarSet]] = {}
        self._given: int | None = None

    def add(self, bars: BarSet, now: np.datetime64) -> list[BarSet]:
        """Add the next bars at the time `now`. Returns the longer bars that they complete, at most two."""
        key = self._key(bars.time)
        done = self._open_before(key)
        self._groups.setdefault(key, []).append(bars)
        if self._reaches_end(bars.time):
            done.append(key)
        return self._give(done, now)

    def settle(self, until: np.datetime64, now: np.datetime64) -> list[BarSet]:
        """The longer bars that have ended by `until`, up to which all bars have been waited for."""
        open_ones = [key for key in self._groups if self._given is None or key > self._given]
        return self._give([key for key in sorted(open_ones) if self._ends(key) <= until], now)

    def correct(self, correction: Correction) -> Correction | None:
        """The correction of a longer bar by a changed bar; None if the longer bar is not delivered yet."""
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
        for key in sorted(self._groups)[:-_LONGER_BARS_REMEMBERED]:
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
        if self.timing.length >= DAY and self._base.clock.zone is not None:  # the exchange's day
            return (
                self._base.clock.days(self._base.opens(times[:1]))[0]
                .astype("datetime64[D]")
                .astype("datetime64[ns]")[0]
            )
        return _time(start)

    def _key(self, time: np.datetime64) -> int:
        """Key of the longer bar that contains a bar; keys increase with time."""
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

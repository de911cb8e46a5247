"""Bars from a file, or a folder of files, to which another program appends or which it replaces.

A bar has closed when its time is over, or when the next one begins. The backtest's parser reads the files, so the bars
have the same bits. An invalid row is skipped and reported, and never ends the session.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ml_pipeline.config.errors import UserError
from ml_pipeline.live.feeds.config import FeedConfig
from ml_pipeline.live.feeds.feed import FeedEvent, Gap, stamp_sentence, utc_now
from ml_pipeline.live.feeds.file_reading import FileReader, Readings, changed_bars, of_symbols, trusted_from
from ml_pipeline.live.feeds.hours import MarketHours
from ml_pipeline.trading.market.bar_set import BarSet, bar_sets_of
from ml_pipeline.trading.market.data import MarketData
from ml_pipeline.trading.market.files import Reading
from ml_pipeline.trading.market.timeframes import Timing, infer_calendar, timeframe_ns
from ml_pipeline.trading.market.times import Times, as_text, usual_spacing

# The length of bars cannot be inferred from fewer.
_FEWEST_BARS = 3
_POLL_S = 0.05


class GrowingFileFeed:
    """Bars of `reading.symbols` from `path`, as they are written; of all its symbols if none are named.

    clock, wait: for tests. clock returns UTC; wait pauses for seconds and returns whether the feed was closed.
    Raises UserError if the length of bars is unknown: the file has too few, and no timeframe is set.
    """

    def __init__(
        self,
        path: Path,
        reading: Reading,
        config: FeedConfig,
        *,
        clock: Callable[[], np.datetime64] = utc_now,
        wait: Callable[[float], bool] | None = None,
    ) -> None:
        self._path = path
        self._config = config
        self._clock = clock
        self.has_clock = config.follow_clock == "utc"
        self._closing = threading.Event()
        self._pause = wait or self._closing.wait
        self._reader = FileReader(path, reading)
        self._market: MarketData | None = None
        self._newest: np.datetime64 | None = None
        self._given: np.datetime64 | None = None
        self._problem = ""
        self._events: deque[FeedEvent] = deque()
        self._wait = np.timedelta64(round(config.bar_wait_s * 1e9), "ns")
        self._open(reading)
        self._hours = MarketHours(self.timing, self.calendar)
        self._silence_from = self.now()
        self._told_silence = False
        self._told_gap: tuple[np.datetime64, np.datetime64] | None = None
        self._begin_after_closed_bars()

    def history(self, before: np.datetime64 | None = None) -> list[BarSet]:
        """The latest closed bars before this time, or before the first of `next`, as many as configured."""
        market = self._read_whole()
        if market is None:
            return []
        end = self._given if before is None else before - np.timedelta64(1, "ns")
        stop = 0 if end is None else int(np.searchsorted(market.times, end, side="right"))
        most = self._config.warmup_bars
        first = 0 if most is None else max(0, stop - most)
        return list(bar_sets_of(market.bars(first, stop))) if stop > first else []

    def start(self, after: np.datetime64 | None = None) -> None:
        """Start after this bar; by default after the last one that had closed when the feed was opened."""
        if after is not None:
            self._given = after
            self._silence_from = self._closes(after)
            self._market = None  # rows up to that bar are not changes
            self._read_whole()

    def next(self, timeout_s: float | None = None) -> FeedEvent | None:
        """The next bars as soon as they have closed, or a Gap or Correction."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            if self._reader.changed():
                self._read()
            self._settle()
            if self._events:
                return self._events.popleft()
            left = _POLL_S if until is None else min(_POLL_S, until - time.monotonic())
            if left <= 0 or self._pause(left):
                return None

    def times_after(self, time: np.datetime64, n: int) -> NDArray[np.datetime64]:
        """The times of the next bars by session and weekdays; files contain no holidays."""
        return self._hours.times_after(time, n)

    def now(self) -> np.datetime64:
        """This machine's clock, or the latest time in the file; never before the close of delivered bars."""
        now = self._clock() if self._config.follow_clock == "utc" or self._newest is None else self._newest
        return now if self._newest is None else max(now, self._newest)

    @property
    def clock_behind_s(self) -> float:
        """How far this machine's clock must be behind, because the latest row begins later, in seconds."""
        if not self.has_clock or self._newest is None:
            return 0.0
        return max(0.0, float((self._newest - self._clock()) / np.timedelta64(1, "s")))

    def close(self) -> None:
        """Close the feed; this also ends a pause in `next`."""
        self._closing.set()

    def _open(self, reading: Reading) -> None:
        """Determine symbols, timing and calendar."""
        form = reading.form
        try:
            found: Readings | None = self._reader.read(whole=True)
        except UserError as error:
            if not self._path.exists() or form.timeframe is None or not reading.symbols:
                raise UserError(
                    f"{str(error).removesuffix('.')}; set --symbols to trade others, or start when it has "
                    f"{_FEWEST_BARS} bars of each."
                ) from error
            found = None
        times = np.empty(0, dtype="datetime64[ns]") if found is None else found.market.times
        if form.timeframe is None and len(times) < _FEWEST_BARS:
            raise UserError(
                f"{self._path.name} has too few bars to infer their length; set --timeframe, or start when it has "
                f"{_FEWEST_BARS}."
            )
        self.symbols = tuple(reading.symbols or (() if found is None else found.market.symbols))
        assumed = Timing(timeframe_ns(form.timeframe or "1m"), reading.bar_time or "open", form.clock)
        self.timing = assumed if found is None else found.market.timing
        self.calendar = infer_calendar(times)
        self.notices: tuple[str, ...] = () if found is None else (*found.market.notices, *found.market.remarks)
        if found is not None:
            self.notices += (stamp_sentence(times[-1], self.timing),)
            self._take(found)

    def _begin_after_closed_bars(self) -> None:
        if self._market is not None:
            closed = self.timing.closes(self._market.times) <= self.now()
            if closed.any():
                self._given = self._market.times[closed][-1]
                self._silence_from = self._closes(self._given)

    def _read_whole(self) -> MarketData | None:
        self._read(whole=True)
        return self._market

    def _read(self, *, whole: bool = False) -> None:
        """Read the files. If they cannot be read, nothing changes."""
        import polars as pl

        try:
            found = self._reader.read(whole=whole)
            given = self._given
            if not found.whole and given is not None and not found.market.times[0] <= given <= found.market.times[-1]:
                found = self._reader.read(whole=True)
        except (UserError, OSError, ValueError, pl.exceptions.PolarsError) as error:
            self._problem = str(error)
            return
        self._take(found)

    def _take(self, found: Readings) -> None:
        self._problem = found.faults[-1] if found.faults else ""
        market = of_symbols(found.market, self.symbols)
        base = Timing(usual_spacing(found.base_times), self.timing.stamped)
        self._newest = base.opens(found.base_times)[-1]
        before = self._market
        is_cut = not found.whole or (before is not None and market.times[0] > before.times[0])
        first = trusted_from(market, longer=self._reader.makes_longer_bars) if is_cut else 0
        if first and self._given is not None and market.times[first - 1] > self._given:
            lost = market.times[:first][market.times[:first] > self._given]
            self._tell_gap(lost[0], lost[-1], f"the first rows of {self._path.name} were removed")
        if before is not None and self._given is not None:
            self._events.extend(changed_bars(before, market, first=first, last=self._given))
        self._market = market.bars(first, market.n_bars) if first else market

    def _settle(self) -> None:
        """Deliver the bars that have closed, and report missing ones."""
        now = self.now()
        while (row := self._next_row(now)) is not None:
            assert self._market is not None, "it has the row"
            (bars,) = bar_sets_of(self._market.bars(row, row + 1))
            self._tell_missing(bars)
            late = bool(now >= bars.closed_at + np.timedelta64(self.timing.length, "ns"))
            self._events.append(replace(bars, late=late))
            self._given, self._silence_from, self._told_silence = bars.time, bars.closed_at, False
        if self._config.follow_clock == "utc" and not self._events:
            self._tell_silence(now)

    def _next_row(self, now: np.datetime64) -> int | None:
        """The row after the delivered ones, if it has closed and no symbol is waited for."""
        market = self._market
        if market is None:
            return None
        row = 0 if self._given is None else int(np.searchsorted(market.times, self._given, side="right"))
        if row >= market.n_bars:
            return None
        closed_at = self._closes(market.times[row])
        if now < closed_at:
            return None
        gone_on = market.tradable[row:].any(axis=0)
        return row if gone_on.all() or now >= closed_at + self._wait else None

    def _tell_missing(self, bars: BarSet) -> None:
        """Report a gap before these bars if the market was open."""
        if (
            self._given is None
            or self._n_missing(self.timing.opens(np.array([bars.time]))[0]) < self._config.silent_bars
        ):
            return
        due = [each for each in self._due(bars.time) if each < bars.time]
        if due:
            self._tell_gap(due[0], due[-1], f"{self._path.name} has no bars there")

    def _tell_silence(self, now: np.datetime64) -> None:
        if self._told_silence or self._n_missing(now - self._wait) < self._config.silent_bars:
            return
        self._told_silence = True
        due = self._due(now)
        why = f"{self._path.name} has had no new bar since {as_text(self._silence_from)}"
        self._tell_gap(due[0], due[-1], f"{why}: {self._problem}" if self._problem else why)

    def _n_missing(self, until: np.datetime64) -> int:
        return int(self._hours.open_between(self._silence_from, until) // np.timedelta64(self.timing.length, "ns"))

    def _due(self, until: np.datetime64) -> Times:
        """The times of the bars that were due since the last one, at least the first of them."""
        last = self._silence_from if self._given is None else self._given
        n = max(1, self._n_missing(until))
        return self._hours.times_after(last, n)

    def _tell_gap(self, first: np.datetime64, last: np.datetime64, why: str) -> None:
        if self._told_gap is not None and first >= self._told_gap[0] and last <= self._told_gap[1]:
            return  # already reported as silence
        self._told_gap = first, last
        self._events.append(Gap(first, last, self.symbols, f"{why}."))

    def _closes(self, time: np.datetime64) -> np.datetime64:
        return self.timing.closes(np.array([time]))[0]

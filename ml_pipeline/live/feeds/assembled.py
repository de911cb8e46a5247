"""A feed of bars that arrive one by one: it assembles them, waits for missing ones, fetches them, and reports gaps.

The bars come from a `BarSource`, so the feed is independent of their origin.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ml_pipeline.live.feeds.bars import BarAssembly, LongerBarAssembly, SymbolBar
from ml_pipeline.live.feeds.config import FeedConfig
from ml_pipeline.live.feeds.feed import BarsUnavailable, CorporateAction, Correction, FeedEvent, Gap, utc_now
from ml_pipeline.live.feeds.hours import MarketHours, Sessions
from ml_pipeline.trading.market.bar_set import BarSet
from ml_pipeline.trading.market.timeframes import DAY, Calendar, Timing, long_bars
from ml_pipeline.trading.market.times import as_text

# Number of bars to load before the start, if the settings have none.
_WARMUP_BARS = 500
_LOOK_UP_EVERY = np.timedelta64(1, "s")
_LONGEST_WAIT_S = 0.25


class BarSource(Protocol):
    """A source of single bars, whose times are their opens."""

    name: str

    def open(self) -> None:
        """Start to receive."""

    def receive(self, timeout_s: float) -> list[SymbolBar]:
        """The bars that have arrived, after waiting at most `timeout_s` for one. Never raises."""

    def history(self, first: np.datetime64, last: np.datetime64) -> list[SymbolBar]:
        """The bars of all symbols from the time `first` to `last`. Raises BarsUnavailable."""

    def corporate_actions(self, begins: np.datetime64, now: np.datetime64) -> list[CorporateAction]:
        """Those from the day of `begins` to today that were not returned before. Called often; never raises."""

    def close(self) -> None:
        """Close connections and end threads; may be called twice."""


class Market(NamedTuple):
    """The bars to build. base: timing of the source's bars. length: of the bars to trade on, in ns.

    sessions: of the exchange's calendar; None: the market never closes, or only its session is known.
    """

    symbols: tuple[str, ...]
    base: Timing
    length: int
    calendar: Calendar
    sessions: Sessions | None = None


class AssembledFeed:
    """The bars of `market`, from the single bars of `source`. clock: UTC, for tests."""

    def __init__(
        self,
        source: BarSource,
        market: Market,
        config: FeedConfig,
        *,
        notices: Sequence[str] = (),
        clock: Callable[[], np.datetime64] = utc_now,
    ) -> None:
        self.symbols = market.symbols
        self.timing = Timing(market.length, market.base.stamped, market.base.clock)
        self.calendar = market.calendar
        self.notices = tuple(notices)
        self._source = source
        self._base = market.base
        self._config = config
        self._clock = clock
        self._length = np.timedelta64(market.base.length, "ns")
        self._wait = np.timedelta64(round(config.bar_wait_s * 1e9), "ns")
        self._hours = MarketHours(market.base, market.calendar, market.sessions)
        self._own_hours = MarketHours(self.timing, market.calendar, market.sessions)
        self._events: deque[FeedEvent] = deque()
        self._closed = False
        self._loaded = False
        self._started = self.now()
        self._begin(self._latest_closed(self.now()))

    def history(self, before: np.datetime64 | None = None) -> list[BarSet]:
        """The latest closed bars, as many as configured. Raises BarsUnavailable."""
        n = _WARMUP_BARS if self._config.warmup_bars is None else self._config.warmup_bars
        last = self._latest_closed(self.now() if before is None else min(self.now(), before))
        assembly, longer, bars = self._past(last, n)
        if before is None:
            self._loaded = True
            self._assembly, self._longer, self._since = assembly, longer, self._base.closes(np.array([last]))[0]
        return bars[-n:] if n else []

    def start(self, after: np.datetime64 | None = None) -> None:
        """Start to receive, after this bar, after those of `history`, or now."""
        self._started = self.now() if after is None else after
        if after is not None:
            closed = self.timing.closes(np.array([after]))[0]
            self._begin(closed - self._length)
        elif not self._loaded:
            self._begin(self._before_longer(self._latest_closed(self.now())))
        self._source.open()

    def next(self, timeout_s: float | None = None) -> FeedEvent | None:
        """The next bars, or a Gap or Correction."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        wait_s = 0.0
        while not self._closed:
            for bar in self._source.receive(wait_s):
                self._note(self._assembly.add(bar))
            self._events.extend(self._source.corporate_actions(self._started, self.now()))
            self._go_on(self.now())
            if self._events:
                return self._events.popleft()
            wait_s = _LONGEST_WAIT_S if until is None else min(_LONGEST_WAIT_S, until - time.monotonic())
            if wait_s <= 0:
                return None
        return None

    def times_after(self, time: np.datetime64, n: int) -> NDArray[np.datetime64]:
        """The times of the next bars by the exchange's calendar."""
        return self._own_hours.times_after(time, n)

    def now(self) -> np.datetime64:
        """The time by this machine's clock."""
        return self._clock()

    def close(self) -> None:
        """Close the feed and its source."""
        self._closed = True
        self._source.close()

    def _begin(self, given: np.datetime64) -> None:
        """Begin after the source's bar of this time."""
        self._assembly = BarAssembly(self.symbols, self._base, given=given)
        self._longer = self._new_longer()
        self._since = given + self._length
        self._told: np.datetime64 | None = None
        self._gave_up: np.datetime64 | None = None
        self._failures = 0
        self._look_up_at = self._since

    def _before_longer(self, given: np.datetime64) -> np.datetime64:
        """The source's last bar before the longer bar that continues after `given`, so that none is incomplete."""
        if self.timing.length == self._base.length:
            return given
        following = np.array([given + self._length])
        starts = long_bars(following, self._base, self.timing.length, causal=False).starts
        return np.datetime64(int(starts[0]), "ns") - self._length

    def _new_longer(self) -> LongerBarAssembly | None:
        same = self.timing.length == self._base.length
        return None if same else LongerBarAssembly(self.symbols, self._base, self.timing.length)

    def _past(self, last: np.datetime64, n: int) -> tuple[BarAssembly, LongerBarAssembly | None, list[BarSet]]:
        """At least `n` bars up to the source's bar `last`, and the assemblies that continue from there."""
        first = last - self._span(n)
        assembly, longer = BarAssembly(self.symbols, self._base, given=first - self._length), self._new_longer()
        bars: list[BarSet] = []
        if n:
            for bar in self._source.history(first, last):
                assembly.add(bar)
        assembly.settled = last
        closed = last + self._length
        while (each := assembly.give(closed)) is not None:
            bars += [each] if longer is None else longer.add(each, closed)
        if longer is not None:
            bars += longer.settle(closed, closed)
            bars = bars[1:]  # the first may be incomplete
        assembly.given = assembly.settled
        return assembly, longer, bars

    def _span(self, n: int) -> np.timedelta64:
        """A time span that certainly contains `n` bars, including nights, weekends and holidays."""
        open_for = min(self._base.clock.open_for, DAY)
        per_day = max(1.0, open_for / self.timing.length)
        if self.calendar.name == "24/7":
            return np.timedelta64(int((n + 2) * self.timing.length), "ns")
        days = (n + 2) / per_day * max(1.0, self.timing.length / DAY) * 7 / 5
        return np.timedelta64(int(np.ceil(1.1 * days) + 5), "D").astype("timedelta64[ns]")

    def _go_on(self, now: np.datetime64) -> None:
        """Deliver bars, after fetching missing ones."""
        last = self._latest_closed(now - self._wait)
        self._forget_future(last, now)
        self._give(now)
        settled = self._assembly.settled
        if settled is None or last > settled:
            self._settle(last, now)
            self._give(now)
        if self._longer is not None and self._assembly.settled is not None:
            for bars in self._longer.settle(self._assembly.settled + self._length, now):
                self._events.append(bars)

    def _forget_future(self, last: np.datetime64, now: np.datetime64) -> None:
        """If the clock was set back, wait again for bars that it had passed. last: the latest bar waited for by now."""
        assembly = self._assembly
        if assembly.settled is not None and assembly.given is not None:
            assembly.settled = max(assembly.given, min(assembly.settled, last))
        if self._look_up_at > now + self._length + _LOOK_UP_EVERY:
            self._look_up_at = now

    def _give(self, now: np.datetime64) -> None:
        while (bars := self._assembly.give(now)) is not None:
            self._since, self._told = bars.closed_at, None
            self._events.extend([bars] if self._longer is None else self._longer.add(bars, now))

    def _settle(self, last: np.datetime64, now: np.datetime64) -> None:
        """Fetch missing bars up to `last`, before a decision is made without them."""
        assembly = self._assembly
        assert assembly.given is not None, "a feed begins after a bar"
        nothing = np.timedelta64(0, "ns")
        if last <= assembly.given or (
            not assembly.waiting and self._hours.open_between(self._since, last + self._length) <= nothing
        ):
            assembly.settled = last
            return
        if now < self._look_up_at:
            if self._gave_up is not None and self._came(self._gave_up):
                assembly.settled = self._gave_up
            return
        first = max(assembly.given, assembly.settled or assembly.given) + self._length
        try:
            for bar in self._source.history(first, last) if self._config.bar_fetches else ():
                self._note(assembly.add(bar))
        except BarsUnavailable as error:
            self._failures += 1
            self._look_up_at = now + _LOOK_UP_EVERY
            if self._failures >= self._config.bar_fetches:
                self._give_up(first, last, str(error))
            return
        self._failures, assembly.settled = 0, last
        self._tell_silence(first, last)

    def _give_up(self, first: np.datetime64, last: np.datetime64, why: str) -> None:
        """Report bars that could not be fetched as a gap, and try again until newer bars arrive."""
        self._failures = 0
        missing = self._assembly.missing(first, last)
        self._gave_up = last
        came = self._came(last)
        if self._told is None or came:
            times = self._hours.times_after(first - self._length, 1)
            self._tell(times[0] if len(times) and times[0] <= last else first, last, missing, why)
        if came:
            self._assembly.settled = last
        else:
            self._look_up_at += self._length

    def _came(self, last: np.datetime64) -> bool:
        return any(time <= last for time in self._assembly.waiting)

    def _tell_silence(self, first: np.datetime64, last: np.datetime64) -> None:
        """Report once that no bars arrive although the market is open."""
        if self._told is not None or self._came(last):
            return
        n = int(self._hours.open_between(self._since, last + self._length) // self._length)
        if n >= self._config.silent_bars * (self.timing.length // self._base.length):
            why = f"{self._source.name} has sent no bar since {as_text(self._since)}, and its history has none"
            self._tell(first, last, self.symbols, f"{why}; {self._assembly.refused}" if self._assembly.refused else why)

    def _tell(self, first: np.datetime64, last: np.datetime64, symbols: tuple[str, ...], why: str) -> None:
        self._told = last
        self._events.append(Gap(first, last, symbols, f"{why.rstrip('.')}."))

    def _note(self, correction: Correction | None) -> None:
        if correction is not None and self._longer is not None:
            correction = self._longer.correct(correction)
        if correction is not None:
            self._events.append(correction)

    def _latest_closed(self, now: np.datetime64) -> np.datetime64:
        """The time of the source's latest bar that has closed by `now`."""
        moment = now.astype("datetime64[ns]").astype(np.int64)
        return np.datetime64(int(moment // self._base.length * self._base.length), "ns") - self._length

"""Recorded bars as if they arrived now: the same bars as in the backtest, in the same order, with the same bits.

The file is read once, as a whole, as the backtest reads it. A bar is delivered only after it has closed by the replay's
clock. Of later bars only `times_after` is known, like the calendar of an exchange.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import overload

import numpy as np
from numpy.typing import NDArray

from ml_pipeline.config.errors import UserError
from ml_pipeline.live.feeds.feed import END, End, FeedEvent, stamp_sentence
from ml_pipeline.trading.market.bar_set import BarSet, bar_sets_of
from ml_pipeline.trading.market.data import MarketData
from ml_pipeline.trading.market.times import as_text

Wait = Callable[[float], bool]


class ReplayFeed:
    """The bars of `market`, as `load_market` read them.

    speed: multiple of real time, by the closes of bars; None: as fast as possible. begins: `next` starts with the first
    bar from this time on; None: with the first of the market.
    clock, wait: for tests. clock returns seconds; wait pauses for seconds and returns whether the feed was closed.
    Raises UserError if no bar is left to replay.
    """

    def __init__(
        self,
        market: MarketData,
        *,
        speed: float | None = None,
        begins: np.datetime64 | None = None,
        clock: Callable[[], float] = time.monotonic,
        wait: Wait | None = None,
    ) -> None:
        self.symbols = market.symbols
        self.timing = market.timing
        self.calendar = market.calendar
        self.notices = (*market.notices, *market.remarks, stamp_sentence(market.times[0], market.timing))
        self._market = market
        self._speed = speed
        self._clock = clock
        self._closing = threading.Event()
        self._wait = wait or self._closing.wait
        self._first = 0 if begins is None else int(np.searchsorted(market.times, begins, side="left"))
        if begins is not None and self._first >= market.n_bars:
            raise UserError(
                f"{market.source} has no bar from {as_text(begins)} on; its last is of {as_text(market.times[-1])}."
            )
        self._waiting: BarSet | End | None = None
        self._origin: tuple[float, np.datetime64] | None = None
        self._now = market.times[0]
        self._bars: Iterator[BarSet] = iter(())
        self._begin(self._first)

    def history(self, before: np.datetime64 | None = None) -> Sequence[BarSet]:
        """The bars before this time, oldest first; None: before the first of `next`. They are created on access."""
        stop = self._first if before is None else int(np.searchsorted(self._market.times, before, side="left"))
        return _RecordedBars(self._market.bars(0, stop))

    def start(self, after: np.datetime64 | None = None) -> None:
        """Restart with the first bar after this time, but not before the beginning of the replay."""
        if after is not None:
            self._begin(max(self._first, int(np.searchsorted(self._market.times, after, side="right"))))

    def next(self, timeout_s: float | None = None) -> FeedEvent | None:
        """The next bars after they have closed; None if they do not close within `timeout_s`, END after the last."""
        bars: BarSet | End = next(self._bars, END) if self._waiting is None else self._waiting
        self._waiting = bars
        if isinstance(bars, End):
            return END
        if not self._reached(bars.closed_at, timeout_s):
            return None
        self._waiting = None
        self._now = bars.closed_at
        return bars

    def times_after(self, time: np.datetime64, n: int) -> NDArray[np.datetime64]:
        """The times of the next recorded bars; fewer at the end."""
        first = int(np.searchsorted(self._market.times, time, side="right"))
        return self._market.times[first : first + n]

    def now(self) -> np.datetime64:
        """The close of the last delivered bars."""
        return self._now

    def close(self) -> None:
        """Close the feed; this also ends a pause in `next`."""
        self._closing.set()

    def _begin(self, row: int) -> None:
        times = self._market.times
        self._bars = iter(()) if row >= len(times) else bar_sets_of(self._market.bars(row, len(times)))
        self._waiting = None
        reached = times[row - 1 : row] if row else times[:1]
        closes_or_opens = self.timing.closes(reached) if row else self.timing.opens(reached)
        self._now = closes_or_opens[0]
        self._origin = None

    def _reached(self, closed_at: np.datetime64, timeout_s: float | None) -> bool:
        """Whether the replay's clock reaches this time within `timeout_s`. The clock starts with the first bars."""
        if self._speed is None:
            return True
        now = self._clock()
        if self._origin is None:
            self._origin = (now, closed_at)
        since, first = self._origin
        left_s = since + float((closed_at - first) / np.timedelta64(1, "s")) / self._speed - now
        if left_s <= 0:
            return True
        closed = self._wait(left_s if timeout_s is None else min(left_s, timeout_s))
        return not closed and (timeout_s is None or left_s <= timeout_s)


class _RecordedBars(Sequence[BarSet]):
    """The bars of a market as a sequence, without a second copy in memory."""

    def __init__(self, market: MarketData) -> None:
        self._market = market

    def __len__(self) -> int:
        return self._market.n_bars

    @overload
    def __getitem__(self, index: int) -> BarSet: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[BarSet]: ...

    def __getitem__(self, index: int | slice) -> BarSet | Sequence[BarSet]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        row = range(len(self))[index]
        return next(bar_sets_of(self._market.bars(row, row + 1)))

    def __iter__(self) -> Iterator[BarSet]:
        return bar_sets_of(self._market) if len(self) else iter(())

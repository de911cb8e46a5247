"""A file of one symbol that a test writes, beside the feed that follows it."""

from pathlib import Path

import numpy as np

from ml_pipeline.live.feeds.config import FeedConfig
from ml_pipeline.live.feeds.file import GrowingFileFeed
from ml_pipeline.testing.feeds import minutes_market
from ml_pipeline.trading.market.bar_set import bar_sets_of
from ml_pipeline.trading.market.files import Reading
from ml_pipeline.trading.market.resampling import BarForm
from ml_pipeline.trading.market.timeframes import make_clock

HEADER = "time,open,high,low,close,volume\n"


SECOND = np.timedelta64(1, "s")


class Clock:
    def __init__(self, now: np.datetime64) -> None:
        self.now = now

    def __call__(self) -> np.datetime64:
        return self.now


class Written:
    """A file of one symbol that the test writes, and the feed that follows it."""

    def __init__(self, path: Path, n_bars: int = 40, first: int = 5, **settings) -> None:
        self.path = path
        self.market = minutes_market(n_bars, 1)
        self.bars = list(bar_sets_of(self.market))
        self.clock = Clock(self.bars[first - 1].closed_at)
        path.write_text(HEADER + "".join(self.row(i) for i in range(first)))
        reading = Reading(form=BarForm(clock=make_clock("09:30-16:00", "America/New_York")))
        self.feed = GrowingFileFeed(path, reading, FeedConfig(follow=path, **settings), clock=self.clock)
        self.feed.start()

    def row(self, i: int, *, close: float | None = None) -> str:
        bars = self.bars[i]
        close = bars.close[0] if close is None else close
        return f"{bars.time},{bars.open[0]},{bars.high[0]},{bars.low[0]},{close},{bars.volume[0]}\n"

    def write(self, text: str) -> None:
        with self.path.open("a") as file:
            file.write(text)

    def close_of(self, i: int) -> None:
        self.clock.now = self.bars[i].closed_at

    def events(self) -> list:
        events = []
        while (event := self.feed.next(0.0)) is not None:
            events.append(event)
        return events

    def rows_given(self) -> list[int]:
        times = [bars.time for bars in self.bars]
        return [times.index(event.time) for event in self.events()]

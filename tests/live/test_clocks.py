"""The clock of the feed beside the broker's: which time counts, what is told, and a followed file that shows it."""

from pathlib import Path

import numpy as np
import pytest

from ml_pipeline.live.clocks import Clocks
from ml_pipeline.live.config import paper_trade_config
from ml_pipeline.live.feeds.config import FeedConfig
from ml_pipeline.live.feeds.file import GrowingFileFeed
from ml_pipeline.live.session import PaperTrading
from ml_pipeline.testing.feeds import BEGINS, MINUTE, minutes_market
from ml_pipeline.trading.market.bar_set import bar_sets_of
from ml_pipeline.trading.market.files import Reading
from tests.live.feeds.growing_files import HEADER
from tests.live.loop.sessions import ChangedFeed, deploy
from tests.live.loop.test_trading_loop import events_of

SECOND = np.timedelta64(1, "s")


class Fixed:
    """A feed or a broker whose time a test sets."""

    def __init__(self, now=BEGINS, **more) -> None:
        self.time = now
        vars(self).update(more)

    def now(self):
        return self.time


def clocks_of(feed, broker, *, real_time=True):
    told = []
    return Clocks(
        feed, broker, most_s=5.0, real_time=real_time, tell=lambda kind, sentence: told.append(sentence)
    ), told


def test_the_brokers_time_counts_and_a_difference_is_told_once_and_its_end_once():
    feed, broker = Fixed(), Fixed(has_clock=True)
    clocks, told = clocks_of(feed, broker)
    for ahead in (4.9, 180.0, 181.0, -4.9, -6.0, 0.0):
        feed.time = BEGINS + np.timedelta64(round(ahead * 1e9), "ns")
        clocks.look()
        assert clocks.ahead_s == pytest.approx(ahead)
        assert clocks.now() == BEGINS
    assert told == [
        "This machine's clock is 3 minutes ahead of the broker's: nothing is ordered until they agree within 5 s "
        "(guard_clock_s).",
        "The clocks agree again within 5 s.",
        "This machine's clock is 6 s behind the broker's: nothing is ordered until they agree within 5 s "
        "(guard_clock_s).",
        "The clocks agree again within 5 s.",
    ]


def test_a_broker_that_goes_by_the_bars_has_no_clock():
    feed, broker = Fixed(BEGINS + 200 * SECOND), Fixed(BEGINS)
    clocks, told = clocks_of(feed, broker)
    clocks.look()
    clocks.look(BEGINS)
    assert (clocks.now(), clocks.ahead_s, told) == (feed.time, 0.0, [])


def test_a_broker_of_ones_own_that_has_a_clock_shows_it_at_the_first_bar():
    feed, broker = Fixed(BEGINS), Fixed(BEGINS + 200 * SECOND)
    clocks, told = clocks_of(feed, broker)
    clocks.look(BEGINS)
    assert clocks.now() == broker.time
    assert len(told) == 1


def test_a_feed_without_a_clock_and_a_replay_are_compared_with_nothing():
    broker = Fixed(BEGINS + 200 * SECOND, has_clock=True)
    clocks, told = clocks_of(Fixed(has_clock=False), broker)
    clocks.look(BEGINS)
    assert (clocks.now(), clocks.ahead_s, told) == (broker.time, 0.0, [])
    clocks, told = clocks_of(Fixed(), broker, real_time=False)
    clocks.look(BEGINS)
    assert (clocks.now(), clocks.ahead_s, told) == (BEGINS, 0.0, [])


class Followed:
    """A session that follows a file, to which a row is written after each minute. wrong: of this machine's clock."""

    def __init__(self, root: Path, at) -> None:
        model = deploy(root / "model", ["A"], features=("log_return_1", "rsi_3"))
        self.path = root / "A.csv"
        self.bars = list(bar_sets_of(minutes_market(60, 1)))
        self.written, self.right, self.wrong = 10, BEGINS + 10 * MINUTE, 0 * SECOND
        self.path.write_text(HEADER + "".join(map(self._row, range(self.written))))
        feed = GrowingFileFeed(
            self.path, Reading(("A",)), FeedConfig(follow=self.path), clock=self.clock, wait=lambda s: False
        )
        values = {"model": model, "root": root / "live", "name": "NAME", "broker": "simulated", "follow": self.path}
        self._at = at
        changed = ChangedFeed(feed, self._next)
        self.session = PaperTrading(paper_trade_config(values), feed=changed)

    def clock(self):
        return self.right + self.wrong

    def _row(self, i):
        bars = self.bars[i]
        values = (bars.open[0], bars.high[0], bars.low[0], bars.close[0], bars.volume[0])
        return f"{bars.time},{','.join(map(str, values))}\n"

    def _next(self, feed, timeout_s):
        if (item := feed.next(0.0)) is not None:
            return item
        self.right = self.right + 20 * SECOND
        if self.bars[self.written].time + MINUTE <= self.right:
            with self.path.open("a") as file:
                file.write(self._row(self.written))
            self.written += 1
        self._at(self, self.written - 10)
        if self.written >= 50:
            self.session.stop.request("Enough.")
        return feed.next(0.0)


@pytest.mark.parametrize("seconds", [180, -180, 86_400, -86_400])
def test_a_followed_file_shows_a_wrong_clock_and_nothing_is_ordered_until_it_is_right(tmp_path, seconds):
    folder = tmp_path / "live" / "NAME"
    counts = {}

    def at(followed, minutes):
        for moment, wrong in ((10, seconds), (20, 0)):
            if minutes >= moment and moment not in counts:
                followed.wrong = wrong * SECOND
                counts[moment] = len(events_of(folder, "order"))

    followed = Followed(tmp_path, at)
    result = followed.session.run()

    assert result.status == "stopped"
    ordered = len(events_of(folder, "order"))
    assert counts[10] > 0
    assert counts[20] <= counts[10] + 1  # of the bar that had closed
    assert ordered > counts[20]
    if seconds < 0:
        alerts = [each["sentence"] for each in events_of(folder, "alert")]
        assert "behind the times in the followed file" in alerts[0]
        assert alerts[-1] == "The clocks agree again within 5 s."

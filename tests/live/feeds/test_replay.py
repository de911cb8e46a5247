from contextlib import contextmanager

import numpy as np
import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.live.feeds.feed import END
from ml_pipeline.live.feeds.replay import ReplayFeed
from ml_pipeline.testing.feeds import BEGINS, FIRST, MINUTE, FeedContract, assert_same_bars, minutes_market
from ml_pipeline.trading.market.bar_set import BarSet, bar_sets_of
from ml_pipeline.trading.market.data import market_from_arrays
from ml_pipeline.trading.market.files import load_market
from ml_pipeline.trading.market.resampling import BarForm
from ml_pipeline.trading.market.timeframes import Timing, make_clock
from tests.live.feeds.markets import write_long


class TestReplayFeed(FeedContract):
    @contextmanager
    def open_feed(self, market):
        feed = ReplayFeed(market, begins=market.times[FIRST])
        yield feed
        feed.close()


class TestReplayFeedWithAbsentBars(TestReplayFeed):
    market = minutes_market(n_symbols=3, absent=0.3, seed=5)


class Time:
    """A clock that pauses alone move on."""

    def __init__(self) -> None:
        self.seconds = 1_000.0

    def __call__(self) -> float:
        return self.seconds

    def wait(self, seconds: float) -> bool:
        self.seconds += seconds
        return False


def all_of(feed: ReplayFeed) -> list[BarSet]:
    bars = []
    while (event := feed.next(10.0)) is not END:
        assert isinstance(event, BarSet)
        bars.append(event)
    return bars


def test_the_end_comes_once_and_stays():
    feed = ReplayFeed(minutes_market(3))

    assert len(all_of(feed)) == 3
    assert feed.next(0.0) is END
    assert feed.next() is END


def test_bars_come_at_their_closing_times_at_the_given_speed():
    time = Time()
    market = minutes_market(4)
    feed = ReplayFeed(market, speed=60.0, clock=time, wait=time.wait)

    came = []
    while feed.next() is not END:
        came.append(time.seconds)

    assert came == [1_000.0, 1_001.0, 1_002.0, 1_003.0]


def test_a_pause_between_sessions_takes_as_long_as_its_closing_times_say():
    time = Time()
    times = BEGINS + np.array([0, 1, 61]) * MINUTE
    market = market_from_arrays(["S"], times, np.array([1.0, 2.0, 3.0]), timing=Timing(60 * 10**9, "open"))
    feed = ReplayFeed(market, speed=60.0, clock=time, wait=time.wait)

    came = []
    while feed.next() is not END:
        came.append(time.seconds)

    assert came == [1_000.0, 1_001.0, 1_061.0]


def test_a_bar_that_has_not_closed_yet_is_not_given_out():
    time = Time()
    feed = ReplayFeed(minutes_market(3), speed=1.0, clock=time, wait=time.wait)
    first = feed.next(0.0)

    assert feed.next(59.0) is None
    assert feed.now() == first.closed_at
    assert feed.next(2.0).time == first.time + MINUTE


def test_closing_ends_a_pause():
    feed = ReplayFeed(minutes_market(3), speed=1e-3)
    feed.next()
    feed.close()

    assert feed.next() is None


def test_bars_that_are_not_recorded_are_refused_with_the_last_that_is():
    with pytest.raises(UserError, match=r"minutes has no bar from 2030-01-01 on; its last is of 2024-03-01 14:32:00"):
        ReplayFeed(minutes_market(3), begins=np.datetime64("2030-01-01"))


def test_only_times_are_known_of_the_future():
    market = minutes_market(5)
    feed = ReplayFeed(market)

    assert list(feed.times_after(market.times[3], 5)) == [market.times[4]]
    assert list(feed.times_after(market.times[4], 5)) == []
    assert list(feed.times_after(BEGINS - MINUTE, 2)) == list(market.times[:2])


def test_later_bars_change_nothing_that_was_given_out_before():
    market = minutes_market(8)
    changed = market_from_arrays(
        market.symbols,
        market.times,
        np.vstack([market.close[:5], market.close[5:] * 2]),
        open=np.vstack([market.open[:5], market.open[5:] * 2]),
        high=np.vstack([market.high[:5], market.high[5:] * 2]),
        low=np.vstack([market.low[:5], market.low[5:] * 2]),
        volume=market.volume,
        timing=market.timing,
    )

    for got, expected in zip(all_of(ReplayFeed(changed))[:5], all_of(ReplayFeed(market))[:5], strict=True):
        assert_same_bars(got, expected)


def test_longer_bars_of_a_session_are_those_of_the_backtest(tmp_path):
    market = minutes_market(20, 3, absent=0.4)
    file = write_long(tmp_path / "prices.csv", list(bar_sets_of(market)), market.symbols)
    form = BarForm(timeframe="5m", clock=make_clock("09:32-16:00", "America/New_York"))
    of_backtest = load_market(file, form=form)

    given = all_of(ReplayFeed(load_market(file, form=form)))

    assert [bars.time for bars in given] == list(of_backtest.times)
    for bars, expected in zip(given, bar_sets_of(of_backtest), strict=True):
        assert_same_bars(bars, expected)


def test_history_is_read_like_a_list():
    market = minutes_market(6)
    history = ReplayFeed(market, begins=market.times[4]).history()

    assert len(history) == 4
    assert_same_bars(history[-1], list(bar_sets_of(market))[3])
    assert [bars.time for bars in history[1:3]] == list(market.times[1:3])
    with pytest.raises(IndexError):
        history[4]
    assert list(ReplayFeed(market).history()) == []

"""What every feed does. A class of tests of one feed inherits this one and makes the feed."""

from collections.abc import Iterator
from contextlib import AbstractContextManager

import numpy as np
import pytest

from ml_pipeline.live.feeds.feed import END, Feed
from ml_pipeline.trading.market.bar_set import BarSet
from ml_pipeline.trading.market.data import MarketData
from ml_pipeline.trading.market.tape import bar_sets_of
from tests.live.feeds.markets import assert_same_bars, minutes_market

FIRST = 4


class FeedContract:
    """The feed's market has been recorded up to the bar `FIRST`; the bars from there on come after its start."""

    market = minutes_market()

    def open_feed(self, market: MarketData) -> AbstractContextManager[Feed]:
        raise NotImplementedError

    @pytest.fixture
    def feed(self) -> Iterator[Feed]:
        with self.open_feed(self.market) as feed:
            yield feed
            feed.close()

    @pytest.fixture
    def expected(self) -> list[BarSet]:
        return list(bar_sets_of(self.market))

    def taken(self, feed: Feed, n: int) -> list[BarSet]:
        """The next `n` bars."""
        bars = []
        while len(bars) < n:
            event = feed.next(10.0)
            assert isinstance(event, BarSet), f"{event} came in place of bars"
            bars.append(event)
        return bars

    def test_it_gives_the_bars_of_the_market_in_order_and_with_the_same_bits(self, feed, expected):
        feed.start()

        for got, want in zip(self.taken(feed, len(expected) - FIRST), expected[FIRST:], strict=True):
            assert_same_bars(got, want)

    def test_history_is_what_comes_before_the_first_bars(self, feed, expected):
        history = feed.history()
        feed.start()
        (first,) = self.taken(feed, 1)

        assert [bars.time for bars in history] == [bars.time for bars in expected[:FIRST]]
        for got, want in zip([*history, first], expected, strict=False):
            assert_same_bars(got, want)

    def test_history_before_a_time_ends_there(self, feed, expected):
        history = feed.history(before=expected[2].time)

        assert [bars.time for bars in history] == [bars.time for bars in expected[:2]]

    def test_it_goes_on_after_a_given_bar(self, feed, expected):
        feed.start(after=expected[FIRST + 1].time)

        (first,) = self.taken(feed, 1)

        assert_same_bars(first, expected[FIRST + 2])

    def test_it_says_how_its_bars_stand_in_time(self, feed):
        assert feed.symbols == self.market.symbols
        assert feed.timing[:2] == self.market.timing[:2]
        assert feed.calendar.periods_per_year > 0
        assert any("the 1m bar of" in notice for notice in feed.notices)

    def test_it_knows_when_the_next_bars_are_due(self, feed, expected):
        due = feed.times_after(expected[FIRST].time, 2)

        assert list(due) == [bars.time for bars in expected[FIRST + 1 : FIRST + 3]]

    def test_its_clock_has_passed_the_close_of_what_it_gave(self, feed):
        feed.start()
        (first,) = self.taken(feed, 1)

        assert feed.now() >= first.closed_at

    def test_without_bars_it_says_so_and_neither_waits_for_ever_nor_raises(self, feed, expected):
        feed.start()
        self.taken(feed, len(expected) - FIRST)

        assert feed.next(0.0) in (None, END)
        assert feed.next(0.0) in (None, END)

    def test_it_can_be_closed_twice(self, feed):
        feed.start()
        feed.close()
        feed.close()

    def test_no_bar_is_handed_out_that_a_caller_can_change_in_another(self, feed):
        feed.start()
        first, second = self.taken(feed, 2)
        copy = np.array(second.close)

        if first.close.flags.writeable:
            first.close[:] = 1.0

        np.testing.assert_array_equal(second.close, copy)

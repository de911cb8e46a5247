"""The tests that every feed must pass: derive a test class for a new feed, and open the feed in it."""

from collections.abc import Iterator
from contextlib import AbstractContextManager

import numpy as np
import pytest

from ml_pipeline.live.feeds.feed import END, Feed
from ml_pipeline.trading.market.bar_set import BarSet, bar_sets_of
from ml_pipeline.trading.market.data import MarketData, market_from_arrays
from ml_pipeline.trading.market.timeframes import Timing

MINUTE = np.timedelta64(60, "s")
BEGINS = np.datetime64("2024-03-01T14:30", "ns")


def minutes_market(n_bars: int = 12, n_symbols: int = 2, *, seed: int = 0, absent: float = 0.0) -> MarketData:
    """One-minute bars from `BEGINS` on. absent: the fraction of bars that a symbol does not have."""
    generator = np.random.default_rng(seed)
    shape = (n_bars, n_symbols)
    close = np.round(100 * np.exp(np.cumsum(generator.normal(0, 1e-3, shape), axis=0)), 4)
    open = np.round(close * np.exp(generator.normal(0, 5e-4, shape)), 4)
    high = np.maximum(open, close) + 0.01
    low = np.minimum(open, close) - 0.01
    missing = generator.random(shape) < absent
    missing[0] = missing[-1] = False
    times = BEGINS + np.arange(n_bars) * MINUTE
    volume = np.round(generator.random(shape) * 1_000, 2)
    tables = [np.where(missing, np.nan, values) for values in (close, open, high, low, volume)]
    close, open, high, low, volume = (table[~missing.all(axis=1)] for table in tables)
    return market_from_arrays(
        [f"S{i}" for i in range(n_symbols)],
        times[~missing.all(axis=1)],
        close,
        open=open,
        high=high,
        low=low,
        volume=volume,
        timing=Timing(60 * 10**9, "open"),
        source="minutes",
    )


def assert_same_bars(got: BarSet, expected: BarSet) -> None:
    """Compare all bits, except whether the bars were late."""
    assert got.time == expected.time
    assert got.closed_at == expected.closed_at
    for name in ("open", "high", "low", "close", "volume", "fillable"):
        left, right = getattr(got, name), getattr(expected, name)
        if name == "volume":
            left, right = np.where(got.present, left, 0.0), np.where(expected.present, right, 0.0)
        np.testing.assert_array_equal(left, right, err_msg=f"{name} at {got.time}")
    if expected.half_spread is not None:
        np.testing.assert_array_equal(got.half_spread, expected.half_spread)
    assert got.columns.keys() == expected.columns.keys()
    for name, values in expected.columns.items():
        np.testing.assert_array_equal(got.columns[name], values)


FIRST = 4


class FeedContract:
    """The feed's market is recorded up to the bar `FIRST`; later bars arrive after the start."""

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
        bars: list[BarSet] = []
        while len(bars) < n:
            event = feed.next(10.0)
            assert isinstance(event, BarSet), f"{event} came in place of bars"
            bars.append(event)
        return bars

    def test_it_gives_the_bars_of_the_market_with_the_same_bits(self, feed: Feed, expected: list[BarSet]) -> None:
        feed.start()

        for got, want in zip(self.taken(feed, len(expected) - FIRST), expected[FIRST:], strict=True):
            assert_same_bars(got, want)

    def test_history_is_what_comes_before_the_first_bars(self, feed: Feed, expected: list[BarSet]) -> None:
        history = feed.history()
        feed.start()
        (first,) = self.taken(feed, 1)

        assert [bars.time for bars in history] == [bars.time for bars in expected[:FIRST]]
        for got, want in zip([*history, first], expected, strict=False):
            assert_same_bars(got, want)

    def test_history_before_a_time_ends_there(self, feed: Feed, expected: list[BarSet]) -> None:
        history = feed.history(before=expected[2].time)

        assert [bars.time for bars in history] == [bars.time for bars in expected[:2]]

    def test_it_goes_on_after_a_given_bar(self, feed: Feed, expected: list[BarSet]) -> None:
        feed.start(after=expected[FIRST + 1].time)

        (first,) = self.taken(feed, 1)

        assert_same_bars(first, expected[FIRST + 2])

    def test_it_says_how_its_bars_stand_in_time(self, feed: Feed) -> None:
        assert feed.symbols == self.market.symbols
        assert feed.timing[:2] == self.market.timing[:2]
        assert feed.calendar.periods_per_year > 0
        assert any("the 1m bar of" in notice for notice in feed.notices)

    def test_it_knows_when_the_next_bars_are_due(self, feed: Feed, expected: list[BarSet]) -> None:
        due = feed.times_after(expected[FIRST].time, 2)

        assert list(due) == [bars.time for bars in expected[FIRST + 1 : FIRST + 3]]

    def test_its_clock_has_passed_the_close_of_what_it_gave(self, feed: Feed) -> None:
        feed.start()
        (first,) = self.taken(feed, 1)

        assert feed.now() >= first.closed_at

    def test_without_bars_it_neither_waits_for_ever_nor_raises(self, feed: Feed, expected: list[BarSet]) -> None:
        feed.start()
        self.taken(feed, len(expected) - FIRST)

        assert feed.next(0.0) in (None, END)
        assert feed.next(0.0) in (None, END)

    def test_it_can_be_closed_twice(self, feed: Feed) -> None:
        feed.start()
        feed.close()
        feed.close()

    def test_no_bar_is_handed_out_that_a_caller_can_change_in_another(self, feed: Feed) -> None:
        feed.start()
        first, second = self.taken(feed, 2)
        copy = np.array(second.close)

        if first.close.flags.writeable:
            first.close[:] = 1.0

        np.testing.assert_array_equal(second.close, copy)

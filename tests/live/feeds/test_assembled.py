from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ml_pipeline.live.feeds.assembled import AssembledFeed, Market
from ml_pipeline.live.feeds.bars import SymbolBar
from ml_pipeline.live.feeds.config import FeedConfig
from ml_pipeline.live.feeds.feed import BarsUnavailable, Correction, Gap
from ml_pipeline.testing.feeds import BEGINS, FIRST, MINUTE, FeedContract, assert_same_bars, minutes_market
from ml_pipeline.trading.market.bar_set import BarSet, bar_sets_of
from ml_pipeline.trading.market.data import MarketData
from ml_pipeline.trading.market.files import load_market
from ml_pipeline.trading.market.resampling import BarForm
from ml_pipeline.trading.market.timeframes import Calendar, Timing, make_clock, timeframe_ns
from tests.examples import COSTLY
from tests.live.feeds.markets import write_long

SECOND = np.timedelta64(1, "s")
DAY = np.timedelta64(1, "D")
ALWAYS = Calendar("24/7", 365.0 * 1440, "")


class Message(NamedTuple):
    arrives: np.datetime64
    bar: SymbolBar


def bars_of(market: MarketData) -> list[SymbolBar]:
    return [
        SymbolBar(
            symbol,
            bars.time,
            *(float(getattr(bars, name)[i]) for name in ("open", "high", "low", "close", "volume")),
        )
        for bars in bar_sets_of(market)
        for i, symbol in enumerate(market.symbols)
        if bars.present[i]
    ]


class Source:
    """Sends messages when the clock reaches them. history: what it answers. fails: so many look-ups raise."""

    name = "the source"

    def __init__(self, messages=(), history=()) -> None:
        self.now = BEGINS
        self.messages = sorted(messages, key=lambda each: each.arrives)
        self.past = list(history)
        self.asked = []
        self.fails = 0

    def open(self) -> None:
        pass

    def corporate_actions(self, begins, now):
        return []

    def receive(self, timeout_s):
        came = [each.bar for each in self.messages if each.arrives <= self.now]
        self.messages = self.messages[len(came) :]
        return came

    def history(self, first, last):
        self.asked.append((first, last))
        if self.fails:
            self.fails -= 1
            raise BarsUnavailable("the source does not answer")
        return [bar._replace(corrected=True) for bar in self.past if first <= bar.time <= last]

    def close(self) -> None:
        pass

    def clock(self) -> np.datetime64:
        return self.now


def feed_of(source: Source, market: MarketData, *, timeframe: str = "1m", clock=None, **changes) -> AssembledFeed:
    base = Timing(60 * 10**9, "open", clock or make_clock(None, None))
    what = Market(market.symbols, base, timeframe_ns(timeframe), ALWAYS)
    notices = ("the 1m bar of",)
    return AssembledFeed(source, what, FeedConfig(**changes), notices=notices, clock=source.clock)


def events_of(feed: AssembledFeed) -> list:
    events = []
    while (event := feed.next(0.0)) is not None:
        events.append(event)
    return events


def events_until(feed: AssembledFeed, source: Source, readings) -> list:
    """What comes while the clock stands at these times, one after the other."""
    events = []
    for source.now in readings:
        events += events_of(feed)
    return events


def assert_all_same(given, market: MarketData, *, first: int = 0) -> None:
    expected = list(bar_sets_of(market))[first:]
    assert [each.time for each in given] == [each.time for each in expected]
    for each, wanted in zip(given, expected, strict=True):
        assert_same_bars(each, wanted)


class TestAssembledFeed(FeedContract):
    market = minutes_market(n_symbols=3, absent=0.3, seed=5)

    @contextmanager
    def open_feed(self, market):
        bars = bars_of(market)
        source = Source([Message(bar.time + MINUTE, bar) for bar in bars[::-1]], bars)
        source.now = market.times[FIRST - 1] + MINUTE
        feed = feed_of(source, market)
        feed.history()
        source.now = market.times[-1] + 2 * MINUTE
        yield feed
        feed.close()

    def test_history_is_what_comes_before_the_first_bars(self, expected):
        bars = bars_of(self.market)
        source = Source((), bars)
        source.now = expected[FIRST].time
        feed = feed_of(source, self.market, warmup_bars=3)

        history = feed.history()
        feed.start()
        source.now = expected[FIRST].closed_at + 5 * SECOND
        (first,) = self.taken(feed, 1)

        assert [bars.time for bars in history] == [bars.time for bars in expected[1:FIRST]]
        for got, want in zip([*history, first], expected[1:], strict=False):
            assert_same_bars(got, want)


@st.composite
def deliveries(draw) -> tuple[MarketData, list[Message], list[np.datetime64]]:
    """A market, its bars as messages in any order, some twice, each at most 5 s late, and readings of the clock."""
    n_symbols = draw(st.integers(1, 3))
    market = minutes_market(8, n_symbols, seed=draw(st.integers(0, 99)), absent=draw(st.sampled_from([0.0, 0.4])))
    messages = []
    for bar in bars_of(market):
        for _ in range(draw(st.integers(1, 2))):
            delay = np.timedelta64(draw(st.integers(0, 5_000)), "ms")
            messages.append(Message(bar.time + MINUTE + delay, bar))
    more = draw(st.lists(st.integers(0, 9 * 60_000), max_size=10))
    readings = {each.arrives for each in messages} | {BEGINS + np.timedelta64(each, "ms") for each in more}
    return market, draw(st.permutations(messages)), sorted(readings)


@given(deliveries())
def test_in_whatever_order_bars_come_in_time_they_are_those_of_the_sorted_file(delivery):
    market, messages, readings = delivery
    source = Source(messages)
    source.now = BEGINS
    feed = feed_of(source, market, silent_bars=100)
    feed.start()

    given_out = events_until(feed, source, [*readings, market.times[-1] + MINUTE + 5 * SECOND])

    assert_all_same(given_out, market)
    assert not given_out[-1].late


@settings(max_examples=COSTLY)
@given(deliveries(), st.data())
def test_bars_that_were_lost_are_looked_up_before_the_next_bars(delivery, data):
    market, messages, readings = delivery
    lost = data.draw(st.sets(st.sampled_from(range(len(messages)))))
    source = Source([each for i, each in enumerate(messages) if i not in lost], bars_of(market))
    source.now = BEGINS
    feed = feed_of(source, market, silent_bars=100)
    feed.start()

    given_out = events_until(feed, source, [*readings, market.times[-1] + MINUTE + 5 * SECOND])

    assert_all_same(given_out, market)


@pytest.mark.parametrize(("timeframe", "absent"), [("5m", 0.3), ("15m", 0.3), ("1h", 0.0), ("1d", 0.0)])
@pytest.mark.parametrize(("session", "timezone"), [(None, None), ("09:37-10:21", "America/New_York")])
def test_longer_bars_have_the_bits_of_the_backtest(tmp_path, timeframe, absent, session, timezone):
    market = minutes_market(80, 2, absent=absent, seed=3)
    clock = make_clock(session, timezone)
    bars = list(bar_sets_of(market))
    # In the file, a longer bar has ended once a later one begins: on Monday.
    file = write_long(
        tmp_path / "prices.csv", [*bars, replace(bars[0], time=BEGINS + 3 * DAY + 10 * MINUTE)], market.symbols
    )
    form = BarForm(timeframe=timeframe, clock=clock)
    expected = load_market(file, symbols=market.symbols, form=form)
    source = Source([Message(bar.time + MINUTE, bar) for bar in bars_of(market)])
    feed = feed_of(source, market, timeframe=timeframe, clock=clock, silent_bars=10_000)
    feed.start()

    given_out = events_until(feed, source, BEGINS + np.arange(1, 572) * MINUTE)  # past midnight

    assert [each.time for each in given_out] == list(expected.times)
    for each, wanted in zip(given_out, bar_sets_of(expected), strict=True):
        for name in ("open", "high", "low", "close", "volume", "fillable"):
            np.testing.assert_array_equal(getattr(each, name)[each.present], getattr(wanted, name)[wanted.present])
        assert not each.late


class Late:
    """Two symbols, of which S1's bar of the second minute comes late or never."""

    def __init__(self, delay, history=(), **changes) -> None:
        self.market = minutes_market(4, 2)
        bars = bars_of(self.market)
        self.bars = list(bar_sets_of(self.market))
        messages = [Message(bar.time + MINUTE, bar) for bar in bars if bar is not bars[3]]
        if delay is not None:
            messages.append(Message(bars[3].time + MINUTE + delay, bars[3]))
        self.source = Source(messages, [bars[i] for i in history])
        self.feed = feed_of(self.source, self.market, **changes)
        self.feed.start()

    def events_at(self, *seconds_after_the_second_close):
        readings = [
            self.bars[1].closed_at + np.timedelta64(round(1_000 * s), "ms") for s in seconds_after_the_second_close
        ]
        return events_until(self.feed, self.source, readings)


def test_a_symbol_is_waited_for_until_the_deadline_and_no_longer():
    late = Late(None)

    first, *rest = late.events_at(0, 4.9)
    assert_same_bars(first, late.bars[0])
    assert rest == []

    (second,) = late.events_at(5)
    assert list(second.present) == [True, False]
    assert list(second.fillable) == [True, False]
    assert late.source.asked[-1] == (late.bars[1].time, late.bars[1].time)


def test_a_missing_bar_is_looked_up_at_the_deadline():
    late = Late(None, history=[3])

    _, second = late.events_at(0, 5)

    assert_same_bars(second, late.bars[1])


def test_a_bar_that_comes_after_the_deadline_is_told_as_late():
    late = Late(7 * SECOND)

    _, second, correction = late.events_at(0, 5, 7)

    assert list(second.present) == [True, False]
    assert isinstance(correction, Correction)
    assert correction.late
    assert correction.symbols == ("S1",)
    assert_same_bars(correction.bars, late.bars[1])


def test_look_ups_that_fail_are_tried_again_each_second_and_then_told_as_a_gap():
    late = Late(None, history=[3])
    late.source.fails = 3

    (_,) = late.events_at(0, 5, 5.5)
    assert len(late.source.asked) == 1
    gap, second = late.events_at(6, 7)

    assert isinstance(gap, Gap)
    assert (gap.first, gap.last, gap.symbols) == (late.bars[1].time, late.bars[1].time, ("S1",))
    assert gap.why == "the source does not answer."
    assert list(second.present) == [True, False]
    assert len(late.source.asked) == 3


def test_a_look_up_that_succeeds_at_last_leaves_no_gap():
    late = Late(None, history=[3])
    late.source.fails = 2

    _, second = late.events_at(0, 5, 6, 7)

    assert_same_bars(second, late.bars[1])


def test_nothing_is_looked_up_where_the_settings_say_so():
    late = Late(None, history=[3], bar_fetches=0)

    _, second = late.events_at(0, 5)

    assert list(second.present) == [True, False]
    assert late.source.asked == []


def corrected(bar: SymbolBar) -> SymbolBar:
    return bar._replace(close=bar.low, corrected=True)


def test_a_correction_before_the_bars_were_given_out_replaces_the_bar_even_if_the_first_version_comes_after_it():
    market = minutes_market(1, 2)
    first, second = bars_of(market)
    close = BEGINS + MINUTE
    messages = [Message(close, corrected(first)), Message(close + SECOND, first), Message(close + 2 * SECOND, second)]
    source = Source(messages)
    feed = feed_of(source, market)
    feed.start()

    (bars,) = events_until(feed, source, [close, close + SECOND, close + 2 * SECOND])

    assert bars.close[0] == first.low
    assert bars.close[1] == second.close


def test_a_correction_after_the_bars_were_given_out_is_told_once():
    market = minutes_market(1, 2)
    first, second = bars_of(market)
    close = BEGINS + MINUTE
    messages = [Message(close, first), Message(close, second)]
    messages += [Message(close + 30 * SECOND, corrected(first)), Message(close + 31 * SECOND, corrected(first))]
    source = Source([*messages, Message(close + 32 * SECOND, first)])
    feed = feed_of(source, market)
    feed.start()

    bars, correction = events_until(feed, source, [close + s * SECOND for s in (0, 30, 31, 32)])

    assert isinstance(bars, BarSet)
    assert isinstance(correction, Correction)
    assert correction.symbols == ("S0",)
    assert not correction.late
    assert correction.bars.close[0] == first.low
    assert correction.bars.close[1] == second.close


def test_a_correction_within_a_longer_bar_is_taken_in_and_after_it_is_told():
    market = minutes_market(6, 1)
    bars = bars_of(market)
    messages = [Message(bar.time + MINUTE, bar) for bar in bars]
    messages.append(Message(bars[1].time + 2 * MINUTE, corrected(bars[1])))
    high = bars[3]._replace(high=500.0, corrected=True)
    messages.append(Message(BEGINS + 6 * MINUTE, high))
    source = Source(messages)
    feed = feed_of(source, market, timeframe="5m")
    feed.start()

    longer, correction = events_until(feed, source, BEGINS + np.arange(1, 7) * MINUTE)

    expected = max(bar.high for bar in bars[:5])
    assert longer.time == BEGINS
    assert longer.high[0] == expected
    assert isinstance(correction, Correction)
    assert correction.bars.time == BEGINS
    assert correction.bars.high[0] == 500.0
    assert correction.bars.volume[0] == longer.volume[0]


def test_an_outage_is_told_once_and_its_bars_are_looked_up_when_it_is_over():
    market = minutes_market(12, 1)
    bars = bars_of(market)
    messages = [Message(bar.time + MINUTE, bar) for i, bar in enumerate(bars) if i < 2 or i >= 10]
    source = Source(messages, bars)
    feed = feed_of(source, market)
    feed.start()
    before = events_until(feed, source, [BEGINS + MINUTE, BEGINS + 2 * MINUTE])
    source.fails = 10**6

    during = events_until(feed, source, [BEGINS + 2 * MINUTE + i * SECOND for i in range(60, 8 * 60)])
    source.fails = 0
    after = events_until(feed, source, [BEGINS + 10 * MINUTE, BEGINS + 11 * MINUTE, BEGINS + 12 * MINUTE])
    after += events_until(feed, source, [BEGINS + 12 * MINUTE + 5 * SECOND])

    assert len(before) == 2
    (gap,) = during
    assert isinstance(gap, Gap)
    assert gap.first == bars[2].time
    assert_all_same(after, market, first=2)
    assert [bars.late for bars in after][:5] == [True] * 5
    assert not after[-1].late


def test_silence_is_told_once_though_the_history_answers():
    market = minutes_market(2, 1)
    source = Source([Message(bar.time + MINUTE, bar) for bar in bars_of(market)])
    feed = feed_of(source, market)
    feed.start()

    events = events_until(feed, source, BEGINS + np.arange(1, 20) * MINUTE + 5 * SECOND)

    first, second, gap = events
    assert isinstance(gap, Gap)
    assert gap.why == "the source has sent no bar since 2024-03-01 14:32:00, and its history has none."
    assert [type(first), type(second)] == [BarSet, BarSet]


@pytest.mark.parametrize(
    "changes",
    [{"close": float("nan")}, {"open": 0.0}, {"low": -1.0}, {"high": 1.0}, {"volume": -1.0}, {"close": float("inf")}],
)
def test_an_impossible_bar_is_left_out(changes):
    market = minutes_market(1, 2)
    first, second = bars_of(market)
    close = BEGINS + MINUTE
    source = Source([Message(close, first._replace(**changes)), Message(close, second)])
    feed = feed_of(source, market)
    feed.start()

    (bars,) = events_until(feed, source, [close, close + 5 * SECOND])

    assert list(bars.present) == [False, True]


def test_symbols_that_are_not_traded_are_ignored():
    market = minutes_market(1, 1)
    (bar,) = bars_of(market)
    source = Source([Message(bar.time, bar._replace(symbol="OTHER")), Message(bar.time, bar)])
    feed = feed_of(source, market)
    feed.start()

    (bars,) = events_until(feed, source, [BEGINS + MINUTE])

    assert list(bars.close) == [bar.close]


def test_no_bar_is_given_out_before_it_has_closed():
    market = minutes_market(1, 1)
    (bar,) = bars_of(market)
    source = Source([Message(bar.time, bar)])
    feed = feed_of(source, market)
    feed.start()

    assert events_until(feed, source, [BEGINS, BEGINS + 59 * SECOND]) == []
    assert len(events_until(feed, source, [BEGINS + 60 * SECOND])) == 1


def test_history_of_longer_bars_goes_on_in_the_middle_of_one():
    market = minutes_market(25, 1)
    bars = bars_of(market)
    source = Source([Message(bar.time + MINUTE, bar) for bar in bars[13:]], bars)
    source.now = BEGINS + 13 * MINUTE
    feed = feed_of(source, market, timeframe="5m", warmup_bars=1)
    history = feed.history()
    feed.start()

    (longer,) = events_until(feed, source, BEGINS + np.arange(13, 16) * MINUTE)

    assert [each.time for each in history] == [BEGINS + 5 * MINUTE]
    assert longer.time == BEGINS + 10 * MINUTE
    assert longer.open[0] == bars[10].open
    assert longer.volume[0] == pytest.approx(sum(bar.volume for bar in bars[10:15]))


def test_of_history_that_cannot_be_had_the_caller_is_told():
    source = Source()
    source.fails = 1
    feed = feed_of(source, minutes_market(2, 1), warmup_bars=5)

    with pytest.raises(BarsUnavailable):
        feed.history()


def test_a_bar_that_comes_after_its_look_up_failed_goes_on_at_once():
    late = Late(7 * SECOND, bar_fetches=1)
    late.source.messages = [
        each for each in late.source.messages if each.bar.time != late.bars[1].time or each.bar.symbol == "S1"
    ]
    late.source.fails = 10

    _, gap, second = late.events_at(0, 5, 7, 7.1)

    assert gap.symbols == ("S0", "S1")
    assert list(second.present) == [False, True]


def test_a_longer_bar_that_had_begun_before_the_start_is_made_of_its_history():
    market = minutes_market(10, 1)
    bars = bars_of(market)
    source = Source([Message(bar.time + MINUTE, bar) for bar in bars[3:]], bars)
    source.now = BEGINS + 3 * MINUTE
    feed = feed_of(source, market, timeframe="5m")
    feed.start()

    (longer,) = events_until(feed, source, [BEGINS + 5 * MINUTE + 5 * SECOND])

    assert longer.time == BEGINS
    assert longer.open[0] == bars[0].open


class SteppedSource(Source):
    """A source whose feed has a clock that is wrong by `step`."""

    step = 0 * SECOND

    def clock(self) -> np.datetime64:
        return self.now + self.step


@pytest.mark.parametrize("fails", [0, 1])
@pytest.mark.parametrize("step", [DAY, 3 * MINUTE, -DAY])
def test_once_a_clock_is_right_again_each_symbol_is_waited_for_as_before(step, fails):
    market = minutes_market(4, 2)
    bars = bars_of(market)
    late = bars[5]  # of S1, in the third minute
    source = SteppedSource(
        [Message(bar.time + MINUTE + (2 * SECOND if bar is late else 0 * SECOND), bar) for bar in bars]
    )
    feed = feed_of(source, market, silent_bars=10_000)
    feed.start()
    (first,) = events_until(feed, source, [BEGINS + MINUTE])

    source.step, source.fails = step, fails
    during = events_until(feed, source, [BEGINS + MINUTE + s * SECOND for s in (10, 20, 30)])
    source.step = 0 * SECOND
    (second,) = events_until(feed, source, [BEGINS + 2 * MINUTE])
    before, third = (events_until(feed, source, [BEGINS + 3 * MINUTE + s * SECOND]) for s in (0, 2))

    assert during == []
    assert_all_same([first, second, *third], market.bars(0, 3))
    assert before == []

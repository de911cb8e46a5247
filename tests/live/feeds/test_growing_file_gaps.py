"""Bars that do not come to a growing file, and symbols that come late."""

from ml_pipeline.live.feeds.config import FeedConfig
from ml_pipeline.live.feeds.feed import Correction, Gap
from ml_pipeline.live.feeds.file import GrowingFileFeed
from ml_pipeline.testing.feeds import MINUTE, assert_same_bars, minutes_market
from ml_pipeline.trading.market.bar_set import BarSet, bar_sets_of
from ml_pipeline.trading.market.files import Reading
from tests.live.feeds.growing_files import SECOND, Clock, Written
from tests.live.feeds.markets import rows_of, write_long


def fill_gaps(written: Written, missing: range, last: int) -> list:
    written.write("".join(written.row(i) for i in range(5, last + 1) if i not in missing))
    written.close_of(last)
    return written.events()


def test_a_gap_as_long_as_configured_is_told_before_the_bars_that_follow(written):
    events = fill_gaps(written, range(7, 10), 11)

    gaps = [event for event in events if isinstance(event, Gap)]
    assert [type(event) for event in events] == [BarSet, BarSet, Gap, BarSet, BarSet]
    assert (gaps[0].first, gaps[0].last) == (written.bars[7].time, written.bars[9].time)
    assert gaps[0].symbols == ("S0",)
    assert gaps[0].why == "S0.csv has no bars there."


def test_times_without_trades_are_no_gap(written):
    events = fill_gaps(written, range(7, 9), 10)

    assert all(isinstance(event, BarSet) for event in events)


def test_silence_while_the_market_is_open_is_told_once(written):
    written.clock.now = written.bars[7].closed_at
    assert written.events() == []

    written.clock.now += 5 * SECOND
    (gap,) = written.events()

    assert isinstance(gap, Gap)
    assert (gap.first, gap.last) == (written.bars[5].time, written.bars[7].time)
    assert gap.why == "S0.csv has had no new bar since 2024-03-01 14:35:00."
    written.clock.now += 10 * MINUTE
    assert written.events() == []


def test_a_gap_that_was_told_as_silence_is_not_told_again_when_bars_come(written):
    written.clock.now = written.bars[7].closed_at + 5 * SECOND
    (gap,) = written.events()
    written.write(written.row(8))
    written.close_of(8)

    assert isinstance(gap, Gap)
    assert written.rows_given() == [8]


def test_silence_is_told_with_the_reason_why_the_file_cannot_be_read(written):
    written.path.write_text("time,open\n2024-03-01,1.0\n")
    written.clock.now = written.bars[8].closed_at

    (gap,) = written.events()

    assert gap.why.startswith("S0.csv has had no new bar since 2024-03-01 14:35:00: S0.csv has no price column")


def test_a_symbol_that_is_late_is_waited_for_and_then_left_out(tmp_path):
    market = minutes_market(8, 2)
    bars = list(bar_sets_of(market))
    file = write_long(tmp_path / "prices.csv", bars[:5], market.symbols)
    clock = Clock(bars[4].closed_at)
    feed = GrowingFileFeed(file, Reading(market.symbols), FeedConfig(follow=file), clock=clock)
    feed.start()
    first, second = rows_of(bars[5], market.symbols)
    with file.open("a") as opened:
        opened.write(first)
    clock.now = bars[5].closed_at + 4 * SECOND
    assert feed.next(0.0) is None

    clock.now += SECOND
    alone = feed.next(0.0)
    with file.open("a") as opened:
        opened.write(second)
    correction = feed.next(0.0)

    assert list(alone.present) == [True, False]
    assert isinstance(correction, Correction)
    assert correction.late
    assert correction.symbols == ("S1",)
    assert_same_bars(correction.bars, bars[5])


def test_a_symbol_that_has_gone_on_is_not_waited_for(tmp_path):
    market = minutes_market(8, 2)
    bars = list(bar_sets_of(market))
    file = write_long(tmp_path / "prices.csv", bars[:5], market.symbols)
    clock = Clock(bars[4].closed_at)
    feed = GrowingFileFeed(file, Reading(market.symbols), FeedConfig(follow=file), clock=clock)
    feed.start()
    with file.open("a") as opened:
        opened.writelines([rows_of(bars[5], market.symbols)[0], *rows_of(bars[6], market.symbols)])
    clock.now = bars[5].closed_at

    assert list(feed.next(0.0).present) == [True, False]

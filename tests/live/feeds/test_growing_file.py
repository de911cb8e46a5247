"""Bars of a file that grows: when each counts, which rows are read, and what comes late."""

import gzip

import numpy as np
import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.live.feeds import file_reading
from ml_pipeline.live.feeds.config import FeedConfig
from ml_pipeline.live.feeds.feed import Correction
from ml_pipeline.live.feeds.file import GrowingFileFeed
from ml_pipeline.testing.feeds import assert_same_bars, minutes_market
from ml_pipeline.trading.market.bar_set import bar_sets_of
from ml_pipeline.trading.market.files import Reading, load_market
from ml_pipeline.trading.market.resampling import BarForm
from ml_pipeline.trading.market.tables import Faults
from ml_pipeline.trading.market.timeframes import make_clock
from tests.live.feeds.growing_files import HEADER, SECOND, Clock, Written
from tests.live.feeds.markets import LONG_HEADER, append_long, rows_of, write_long


def test_a_bar_counts_once_its_time_is_over(written):
    written.write(written.row(5))
    written.clock.now = written.bars[5].closed_at - SECOND
    assert written.events() == []

    written.close_of(5)
    (bars,) = written.events()

    assert_same_bars(bars, written.bars[5])
    assert not bars.late


def test_a_bar_counts_once_the_next_one_begins(tmp_path):
    written = Written(tmp_path / "S0.csv", follow_clock="bars")
    assert [bars.time for bars in written.feed.history()] == [bars.time for bars in written.bars[:4]]
    assert written.rows_given() == []

    written.write(written.row(5))

    assert written.rows_given() == [4]


def test_a_file_whose_times_are_ahead_of_the_clock_is_followed_one_bar_behind(written):
    written.write(written.row(5) + written.row(6))
    written.clock.now = written.bars[3].closed_at

    assert written.rows_given() == [5]


def test_a_bar_in_the_making_may_change_until_it_closes(written):
    before = written.path.read_text()
    written.clock.now = written.bars[5].closed_at - SECOND
    written.path.write_text(before + written.row(5, close=1.0))
    assert written.events() == []

    written.path.write_text(before + written.row(5))
    written.close_of(5)

    (bars,) = written.events()
    assert_same_bars(bars, written.bars[5])


def test_rows_that_come_twice_or_out_of_order_are_the_bars_of_the_sorted_file(written):
    written.close_of(8)
    written.write("".join(written.row(i) for i in (7, 5, 7, 8, 6, 5, 4)))

    events = written.events()

    assert len(events) == 4
    for bars, expected in zip(events, written.bars[5:], strict=False):
        assert_same_bars(bars, expected)


def test_bars_that_were_missed_come_as_late_and_the_last_does_not(written):
    written.write("".join(written.row(i) for i in (5, 6, 7)))
    written.close_of(7)

    assert [bars.late for bars in written.events()] == [True, True, False]


def test_a_bar_that_changes_after_it_was_given_out_is_a_correction(written):
    written.write(written.row(5))
    written.close_of(5)
    written.events()
    text = written.path.read_text()

    written.path.write_text(text.replace(written.row(3), written.row(3, close=99.99)))
    (event,) = written.events()

    assert isinstance(event, Correction)
    assert event.bars.time == written.bars[3].time
    assert event.bars.close[0] == 99.99
    assert event.symbols == ("S0",)
    assert not event.late
    assert written.events() == []


def test_a_feature_that_was_empty_and_gets_a_value_is_a_correction_and_one_that_stays_empty_is_none(tmp_path):
    file = tmp_path / "S0.csv"
    rows = [f"2024-03-01 14:3{i},1.0,2.0,0.5,{i + 1},10," for i in range(6)]

    def write(n: int, first_news: str) -> None:
        file.write_text(
            "time,open,high,low,close,volume,feature_news\n"
            + "".join(f"{row}{first_news if i == 0 else '' if i == 1 else i}\n" for i, row in enumerate(rows[:n]))
        )

    write(5, "")
    clock = Clock(np.datetime64("2024-03-01T14:35", "ns"))
    feed = GrowingFileFeed(file, Reading(), FeedConfig(follow=file), clock=clock)
    feed.start()
    write(6, "7.5")
    correction = feed.next(0.0)

    assert isinstance(correction, Correction)
    assert correction.bars.time == np.datetime64("2024-03-01T14:30")
    assert correction.bars.columns["feature_news"][0] == 7.5
    assert feed.next(0.0) is None
    feed.close()


def test_a_bar_that_comes_after_later_ones_is_a_late_correction(written):
    written.write(written.row(5) + written.row(7))
    written.close_of(7)
    assert written.rows_given() == [5, 7]

    written.write(written.row(6))
    (event,) = written.events()

    assert isinstance(event, Correction)
    assert event.late
    assert_same_bars(event.bars, written.bars[6])


def test_of_two_rows_of_one_time_the_first_counts_as_in_a_backtest_that_drops_bad_rows(written):
    written.write(written.row(5) + written.row(5, close=1.0))
    written.close_of(5)
    (bars,) = written.events()
    written.write(written.row(5, close=2.0) + written.row(6))
    written.close_of(6)

    assert_same_bars(bars, written.bars[5])
    assert written.rows_given() == [6]
    of_backtest = load_market(written.path, faults=Faults("drop"))
    assert list(of_backtest.close[:, 0]) == [each.close[0] for each in written.bars[:7]]


def test_of_a_file_of_many_symbols_enough_rows_of_each_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(file_reading, "TAIL_BYTES", 64)
    market = minutes_market(300, 5)
    bars = list(bar_sets_of(market))
    file = write_long(tmp_path / "prices.csv", bars[:290], market.symbols)
    clock = Clock(bars[289].closed_at)
    feed = GrowingFileFeed(file, Reading(form=BarForm(timeframe="5m")), FeedConfig(follow=file), clock=clock)
    feed.start()
    append_long(file, bars[290:295], market.symbols)
    clock.now = bars[294].closed_at

    longer = feed.next(0.0)

    assert longer.time == bars[290].time
    np.testing.assert_array_equal(longer.close, bars[294].close)


def test_times_that_go_back_are_sorted_in_and_give_no_second_bar(written):
    written.write(written.row(5) + written.row(2) + written.row(3) + written.row(6))
    written.close_of(6)

    assert written.rows_given() == [5, 6]


@pytest.mark.parametrize("timeframe", ["5m", "15m"])
def test_longer_bars_are_made_with_the_bits_of_the_backtest(tmp_path, timeframe):
    market = minutes_market(60, 2, absent=0.2)
    bars = list(bar_sets_of(market))
    file = write_long(tmp_path / "prices.csv", bars[:20], market.symbols)
    form = BarForm(timeframe=timeframe, clock=make_clock("09:32-10:21", "America/New_York"))
    clock = Clock(bars[19].closed_at)
    feed = GrowingFileFeed(file, Reading(market.symbols, form=form), FeedConfig(follow=file), clock=clock)
    given = feed.history()
    feed.start()
    for each in bars[20:]:
        append_long(file, [each], market.symbols)
        clock.now = each.closed_at
        while (event := feed.next(0.0)) is not None:
            given.append(event)
    clock.now += 10 * SECOND
    given += [event] if (event := feed.next(0.0)) else []

    expected = list(bar_sets_of(load_market(file, symbols=market.symbols, form=form)))

    assert [each.time for each in given] == [each.time for each in expected]
    for each, wanted in zip(given, expected, strict=True):
        assert_same_bars(each, wanted)


def test_of_a_large_file_the_latest_rows_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(file_reading, "TAIL_BYTES", 512)
    monkeypatch.setattr(file_reading, "SYMBOL_BYTES", 256)
    market = minutes_market(60, 2, absent=0.3)
    bars = list(bar_sets_of(market))
    file = write_long(tmp_path / "prices.csv", bars[:40], market.symbols)
    clock = Clock(bars[39].closed_at)
    feed = GrowingFileFeed(file, Reading(market.symbols), FeedConfig(follow=file), clock=clock)
    feed.start()
    given = []
    for each in bars[40:]:
        append_long(file, [each], market.symbols)
        clock.now = each.closed_at + 5 * SECOND
        while (event := feed.next(0.0)) is not None:
            given.append(event)

    content, is_whole, n_rows = file_reading.complete_lines(file, 512)
    assert not is_whole
    assert n_rows < 15
    assert len(content) < 1_000
    for each, wanted in zip(given, bars[40:], strict=True):
        assert_same_bars(each, wanted)


def test_a_file_with_the_newest_row_first_is_read_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(file_reading, "TAIL_BYTES", 256)
    monkeypatch.setattr(file_reading, "SYMBOL_BYTES", 256)
    written = Written(tmp_path / "S0.csv", n_bars=60, first=40)

    written.path.write_text(HEADER + "".join(written.row(i) for i in reversed(range(41))))
    written.close_of(40)

    assert written.rows_given() == [40]


def test_a_packed_file_is_read(tmp_path):
    market = minutes_market(8, 1)
    bars = list(bar_sets_of(market))
    rows = [row for each in bars for row in rows_of(each, market.symbols)]
    file = tmp_path / "S0.csv.gz"
    file.write_bytes(gzip.compress((LONG_HEADER + "".join(rows[:5])).encode()))
    clock = Clock(bars[4].closed_at)
    feed = GrowingFileFeed(file, Reading(), FeedConfig(follow=file), clock=clock)
    feed.start()

    file.write_bytes(gzip.compress((LONG_HEADER + "".join(rows)).encode()))
    clock.now = bars[5].closed_at

    assert_same_bars(feed.next(0.0), bars[5])


def test_an_empty_file_needs_a_timeframe(tmp_path):
    file = tmp_path / "S0.csv"
    file.write_text(HEADER)

    with pytest.raises(UserError, match=r"has no complete row yet; .* start when it has 3 bars"):
        GrowingFileFeed(file, Reading(), FeedConfig(follow=file))


def test_a_file_that_begins_with_a_header_alone_is_followed_from_its_first_bar(tmp_path):
    market = minutes_market(8, 1)
    bars = list(bar_sets_of(market))
    file = tmp_path / "prices.csv"
    file.write_text(LONG_HEADER)
    clock = Clock(bars[0].time)
    reading = Reading(market.symbols, form=BarForm(timeframe="1m"))
    feed = GrowingFileFeed(file, reading, FeedConfig(follow=file), clock=clock)
    feed.start()
    assert feed.history() == []

    given = []
    for each in bars:
        append_long(file, [each], market.symbols)
        clock.now = each.closed_at
        while (event := feed.next(0.0)) is not None:
            given.append(event)

    assert [each.time for each in given] == [each.time for each in bars]


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(UserError, match="There is no market data at"):
        GrowingFileFeed(
            tmp_path / "no.csv", Reading(("S0",), form=BarForm(timeframe="1m")), FeedConfig(follow=tmp_path / "no.csv")
        )


def test_closing_ends_the_wait_for_bars(written):
    written.feed.close()

    assert written.feed.next() is None

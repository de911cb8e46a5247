"""A growing file that is torn, cut, replaced, gone or filled with something else."""

import itertools

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ml_pipeline.live.feeds.feed import Gap
from ml_pipeline.testing.feeds import assert_same_bars
from ml_pipeline.trading.market.bar_set import BarSet
from tests.examples import COSTLY
from tests.live.feeds.growing_files import HEADER, Written


@pytest.mark.parametrize("at", [1, 12, -3, -1])
def test_half_a_line_is_no_bar(written, at):
    line = written.row(5)
    written.close_of(5)
    written.write(line[:at])
    assert written.events() == []

    written.write(line[at:])

    (bars,) = written.events()
    assert_same_bars(bars, written.bars[5])


def test_a_file_that_is_cut_short_goes_on(written):
    written.write(written.row(5))
    written.close_of(5)
    assert written.rows_given() == [5]

    written.path.write_text(HEADER + written.row(5) + written.row(6))
    written.close_of(6)

    assert written.rows_given() == [6]


def test_a_file_that_begins_anew_with_nothing_but_a_header_goes_on(written):
    written.path.write_text(HEADER)
    assert written.events() == []

    written.write(written.row(5))
    written.close_of(5)

    assert written.rows_given() == [5]


def test_a_file_that_is_gone_for_a_while_goes_on(written):
    text = written.path.read_text()
    written.path.unlink()
    assert written.events() == []

    written.path.write_text(text + written.row(5))
    written.close_of(5)

    assert written.rows_given() == [5]


def test_a_row_that_cannot_be_used_is_left_out_and_told_once_bars_are_missing(tmp_path):
    written = Written(tmp_path / "S0.csv", silent_bars=1)
    written.write(written.row(5).replace(f"{written.bars[5].high[0]}", "-1"))
    written.close_of(5)
    assert written.events() == []

    written.write(written.row(6))
    written.close_of(6)
    gap, bars = written.events()

    assert isinstance(gap, Gap)
    assert (gap.first, gap.last) == (written.bars[5].time, written.bars[5].time)
    assert_same_bars(bars, written.bars[6])


@pytest.mark.parametrize("garbage", ["not a row\n", "1,2,3,4,5,6,7,8,9\n", "\n\n", '"\n', "\0\0\n"])
def test_garbage_in_the_file_ends_nothing(written, garbage):
    text = written.path.read_text()
    written.write(garbage)
    written.close_of(5)
    written.events()

    written.path.write_text(text + written.row(5))

    assert written.rows_given() == [5]


@settings(max_examples=COSTLY, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_in_whatever_pieces_a_file_is_written_its_bars_are_those_of_the_whole(tmp_path, data):
    written = Written(tmp_path / "S0.csv", n_bars=12, first=5, silent_bars=100)
    in_order = data.draw(st.booleans())
    order = range(5, 12) if in_order else data.draw(st.permutations(range(5, 12)))
    text = "".join(written.row(i) * data.draw(st.integers(1, 2)) for i in order)
    # A bar is not waited for once a later one is there: rows out of order are sorted where they come together.
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8))) if in_order else []
    if in_order:
        written.close_of(11)
    given_out = []
    for start, stop in itertools.pairwise([0, *cuts, len(text)]):
        written.write(text[start:stop])
        given_out += written.events()
    written.close_of(11)
    given_out += written.events()
    written.feed.close()

    assert [each.time for each in given_out] == [each.time for each in written.bars[5:]]
    for each, expected in zip(given_out, written.bars[5:], strict=True):
        assert_same_bars(each, expected)


@settings(max_examples=COSTLY, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.binary(max_size=60) | st.sampled_from([b"", HEADER.encode(), b"time,close\n1,2\n"]), max_size=6))
def test_whatever_a_file_holds_for_a_while_the_feed_goes_on(tmp_path, contents):
    written = Written(tmp_path / "S0.csv", n_bars=12, first=5)
    text = written.path.read_bytes()
    for content in contents:
        written.path.write_bytes(content if len(content) % 2 else text + content)
        written.events()

    written.path.write_bytes(text + written.row(5).encode())
    written.close_of(5)

    assert written.bars[5].time in [event.time for event in written.events() if isinstance(event, BarSet)]
    written.feed.close()

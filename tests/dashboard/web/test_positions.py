import pytest
from hypothesis import given
from hypothesis import strategies as st

from ml_pipeline.dashboard.web.updates import SERVER, Position, Rows

counts = st.integers(0, 10**9)


@given(counts, st.lists(st.builds(Rows, counts, counts, counts), max_size=5))
def test_what_is_written_is_read(version, rows):
    assert Position.parse(str(Position(version, rows)), len(rows)) == Position(version, rows)


@given(st.one_of(st.text(), st.from_regex(r"[0-9a-f]{8}-[0-9]{1,3};[0-9.,]{0,20}")))
def test_anything_else_is_the_beginning_or_a_version(text):
    found = Position.parse(text.replace(SERVER, "ffffffff"), 2)
    assert found == Position(0, [Rows(), Rows()])


@pytest.mark.parametrize("rows", ["..", "1.2.3,..", "-1.1.1,1.1.1", f"{'9' * 5000}.1.1,1.1.1", "٣.1.1,1.1.1"])
def test_rows_that_nobody_wrote_are_the_beginning(rows):
    found = Position.parse(f"{SERVER}-7;{rows}", 2)
    assert found.rows == [Rows(), Rows()]


def test_with_other_runs_the_list_still_goes_on():
    assert Position.parse(f"{SERVER}-7;1.2.3", 2) == Position(7, [Rows(), Rows()])

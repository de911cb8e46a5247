from datetime import UTC, date, datetime, timedelta, timezone

import numpy as np
import polars as pl
import pytest

from ml_pipeline.trading.market.times import AmbiguousTimesError, parse_times

NOON = np.datetime64("2024-01-31T12:00:00", "ns")
DAY = np.datetime64("2024-01-31", "ns")


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        ("2024-01-31", DAY),
        ("2024/01/31", DAY),
        ("20240131", DAY),
        ("31.01.2024", DAY),
        ("31/01/2024", DAY),
        ("01/31/2024", DAY),
        ("31-01-2024", DAY),
        ("Jan 31, 2024", DAY),
        ("2024-01-31 12:00:00", NOON),
        (" 2024-01-31T12:00:00 ", NOON),
        ("2024-01-31T12:00:00.000Z", NOON),
        ("2024-01-31 12:00:00 UTC", NOON),
        ("2024-01-31 12:00", NOON),
        ("2024-01-31 14:00:00+02:00", NOON),
        ("2024-01-31T06:30:00-0530", NOON),
        ("31.01.2024 12:00:00.000", NOON),
        ("2024.01.31 12:00", NOON),
        ("01/31/2024 12:00 PM", NOON),
        ("20240131 120000", NOON),
        ("1706702400", NOON),
        ("1706702400.0", NOON),
        ("1706702400000", NOON),
        (1706702400, NOON),
        (1706702400000, NOON),
        (1706702400000000, NOON),
        (1706702400000000000, NOON),
        (date(2024, 1, 31), DAY),
        (datetime(2024, 1, 31, 12), NOON),
        (datetime(2024, 1, 31, 12, tzinfo=UTC), NOON),
        (datetime(2024, 1, 31, 14, tzinfo=timezone(timedelta(hours=2))), NOON),
    ],
    ids=str,
)
def test_spellings(cell, expected):
    times = parse_times(pl.Series([cell, cell]))
    assert times.dtype == "datetime64[ns]"
    np.testing.assert_array_equal(times, [expected, expected])


def test_what_is_no_time_is_nat():
    np.testing.assert_array_equal(parse_times(pl.Series(["2024-01-31", "x", "", None]))[0], DAY)
    assert np.isnat(parse_times(pl.Series(["2024-01-31", "x", "", None]))[1:]).all()
    assert np.isnat(parse_times(pl.Series([0, 1, 2]))).all()  # a row number is no time
    assert np.isnat(parse_times(pl.Series([None, ""]))).all()


def test_one_day_past_the_12th_tells_day_from_month():
    times = parse_times(pl.Series(["03/04/2024", "04/04/2024", "13/04/2024"]))
    np.testing.assert_array_equal(times, np.array(["2024-04-03", "2024-04-04", "2024-04-13"], dtype="datetime64[ns]"))
    with pytest.raises(AmbiguousTimesError, match="03/04/2024"):
        parse_times(pl.Series(["03/04/2024", "04/04/2024"]))

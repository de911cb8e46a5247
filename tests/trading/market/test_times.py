from datetime import UTC, date, datetime, timedelta, timezone

import numpy as np
import polars as pl
import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.trading.market.columns import find_layout
from ml_pipeline.trading.market.times import AmbiguousTimesError, parse_times, zone_in

NOON = np.datetime64("2024-01-31T12:00:00", "ns")
DAY = np.datetime64("2024-01-31", "ns")


def utc(*times):
    return np.array(times, dtype="datetime64[ns]")


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
        ("31-Jan-2024", DAY),
        ("31.01.24", DAY),
        ("31/01/24", DAY),
        ("01/31/24", DAY),
        ("31-Jan-24", DAY),
        ("31.01.24 12:00", NOON),
        ("99-12-31", np.datetime64("1999-12-31", "ns")),
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
    times = parse_times(pl.Series([cell, cell])).utc
    assert times.dtype == "datetime64[ns]"
    np.testing.assert_array_equal(times, [expected, expected])


def test_what_is_no_time_is_nat():
    np.testing.assert_array_equal(parse_times(pl.Series(["2024-01-31", "x", "", None])).utc[0], DAY)
    assert np.isnat(parse_times(pl.Series(["2024-01-31", "x", "", None])).utc[1:]).all()
    assert np.isnat(parse_times(pl.Series([0, 1, 2])).utc).all()  # a row number is no time
    assert np.isnat(parse_times(pl.Series([None, ""])).utc).all()


def test_one_day_past_the_12th_tells_day_from_month():
    times = parse_times(pl.Series(["03/04/2024", "04/04/2024", "13/04/2024"])).utc
    np.testing.assert_array_equal(times, np.array(["2024-04-03", "2024-04-04", "2024-04-13"], dtype="datetime64[ns]"))
    with pytest.raises(AmbiguousTimesError, match="03/04/2024"):
        parse_times(pl.Series(["03/04/2024", "04/04/2024"]))


@pytest.mark.parametrize("cells", [["03/04/24", "04/04/24"], ["24-01-02"]])
def test_years_of_two_digits_are_ambiguous_unless_a_row_tells(cells):
    with pytest.raises(AmbiguousTimesError, match=cells[0]):
        parse_times(pl.Series(cells))
    told = parse_times(pl.Series(["03/04/24", "13/04/24"])).utc
    np.testing.assert_array_equal(told, np.array(["2024-04-03", "2024-04-13"], dtype="datetime64[ns]"))


@pytest.mark.parametrize("spelling", ["%d-%m-%y", "%y-%m-%d", "%m-%d-%y", "%d/%m/%y"])
@pytest.mark.parametrize("order", [1, -1])
def test_the_order_of_the_rows_tells_a_year_of_two_digits_from_a_day(spelling, order):
    days = np.arange("2022-01-03", "2022-04-01", dtype="datetime64[D]")[::order]
    column = pl.Series([day.strftime(spelling) for day in days.astype(object)])
    np.testing.assert_array_equal(parse_times(column).utc, days)


MINUTE_MS = 60_000
SWITCH_MS = 1_735_689_600_000  # 2025-01-01, when an exchange went from ms to us


@pytest.mark.parametrize("as_text", [False, True])
@pytest.mark.parametrize("factor", [1_000, 1_000_000])
def test_every_row_is_read_in_its_own_unit_where_the_unit_changes(as_text, factor):
    stamps = [SWITCH_MS + i * MINUTE_MS for i in range(-3, 3)]
    mixed = [stamp * (factor if stamp >= SWITCH_MS else 1) for stamp in stamps]
    times = parse_times(pl.Series([str(stamp) for stamp in mixed] if as_text else mixed))
    np.testing.assert_array_equal(times.utc, np.array(stamps, dtype="datetime64[ms]"))
    assert times.unit_change == (3, "ms", "us" if factor == 1_000 else "ns")
    assert parse_times(pl.Series(stamps)).unit_change is None


def test_bars_of_1970_do_not_look_like_another_unit():
    days = np.arange("1969-12-01", "2024-01-01", dtype="datetime64[D]").astype("datetime64[ms]")
    times = parse_times(pl.Series(days.astype(np.int64)))
    np.testing.assert_array_equal(times.utc, days)
    assert times.unit_change is None


def test_whole_nanoseconds_keep_their_last_digit():
    (time,) = parse_times(pl.Series([1_706_702_400_123_456_789])).utc
    assert str(time).endswith(".123456789")


def test_the_days_of_an_exchange_are_told_where_every_bar_is_at_its_midnight():
    tokyo = [f"2024-01-{day:02} 00:00:00+09:00" for day in (8, 9, 10)]
    days = np.arange("2024-01-08", "2024-01-11", dtype="datetime64[D]")
    for column in (
        pl.Series(tokyo),
        pl.Series(tokyo).str.to_datetime("%Y-%m-%d %H:%M:%S%:z").dt.convert_time_zone("Asia/Tokyo"),
    ):
        times = parse_times(column)
        np.testing.assert_array_equal(times.days, days)
        np.testing.assert_array_equal(times.utc, days - np.timedelta64(9, "h"))
    new_york = ["2024-03-09T00:00:00-05:00", "2024-03-11T00:00:00-04:00"]  # clocks change on the 10th
    np.testing.assert_array_equal(
        parse_times(pl.Series(new_york)).days, np.array(["2024-03-09", "2024-03-11"], "M8[D]")
    )
    assert parse_times(pl.Series(["2024-01-08 00:00:00+09:00", "2024-01-08 01:00:00+09:00"])).days is None
    assert parse_times(pl.Series(["2024-01-08", "2024-01-09"])).days is None


@pytest.mark.parametrize(
    ("title", "cell", "expected"),
    [
        ("Time (EET)", "2023.01.02 03:00:00", "2023-01-02T01:00"),
        ("Time (EET)", "2023.07.03 03:00:00", "2023-07-03T00:00"),  # summer time
        ("Gmt time", "03.07.2023 03:00:00.000", "2023-07-03T03:00"),
        ("Time (UTC+2)", "2023-07-03 03:00:00", "2023-07-03T01:00"),
        ("datetime (GMT-05:30)", "2023-07-03 03:00", "2023-07-03T08:30"),
        ("Date (America/New_York)", "2023-07-03 09:30:00", "2023-07-03T13:30"),
        ("Time (EET)", "2023-07-03T03:00:00+05:00", "2023-07-02T22:00"),  # what the cell says counts
        ("Time (EET)", "2023-07-03 03:00:00Z", "2023-07-03T03:00"),
        ("Time (EET)", "1688353200", "2023-07-03T03:00"),  # Unix times have no zone
        ("Time", "2023-07-03 03:00:00", "2023-07-03T03:00"),
        ("Date/Time", "2023-07-03 03:00:00", "2023-07-03T03:00"),  # a slash makes no place
        ("Date/Time (UTC)", "2023-07-03 03:00:00", "2023-07-03T03:00"),
        ("Date/Time (US/Eastern)", "2023-07-03 09:30:00", "2023-07-03T13:30"),
        ("Time (CET/CEST)", "2023-07-03 03:00:00", "2023-07-03T01:00"),
        ("Time (CEST/CET)", "2023-01-02 03:00:00", "2023-01-02T02:00"),
        ("Time (EET/EEST)", "2023-07-03 03:00:00", "2023-07-03T00:00"),
        ("Time (WET/WEST)", "2023-07-03 03:00:00", "2023-07-03T02:00"),
        ("Time (utc+2)", "2023-07-03 03:00:00", "2023-07-03T01:00"),
        ("Time (UTC + 2)", "2023-07-03 03:00:00", "2023-07-03T01:00"),
        ("timeGMT+0530", "2023-07-03 08:30:00", "2023-07-03T03:00"),
        ("Time (UTC\u22125)", "2023-07-03 03:00:00", "2023-07-03T08:00"),
        ("Time (Etc/GMT+5)", "2023-07-03 03:00:00", "2023-07-03T08:00"),  # its sign is the other way round
        ("Time (America/Port-au-Prince)", "2023-01-02 03:00:00", "2023-01-02T08:00"),
    ],
)
def test_the_zone_in_a_title_is_that_of_its_times(title, cell, expected):
    assert find_layout([title, "close"]).time == (title,)
    assert parse_times(pl.Series([cell]), zone=zone_in(title)).utc.tolist() == utc(expected).tolist()


@pytest.mark.parametrize(
    ("cell", "zone"), [("2023-07-03 03:00", "EET"), ("1688353200", None), ("2023-07-03 03:00:00Z", None)]
)
def test_a_zone_is_named_if_times_were_converted_from_it(cell, zone):
    assert parse_times(pl.Series([cell]), zone="EET").zone == zone


@pytest.mark.parametrize("title", ["EST time", "Time (EST)", "timeCST", "timestamp_ist", "Date (CEST)"])
def test_a_zone_in_a_title_that_means_several_is_refused(title):
    with pytest.raises(
        UserError, match=r"is ambiguous, with and without daylight saving time; write another one in the title"
    ):
        zone_in(title)


@pytest.mark.parametrize("offset", ["UTC+15", "GMT-14:30", "UTC+0575", "utc + 5.5", "UTC+123456"])
def test_an_offset_in_a_title_that_no_clocks_have_is_refused(offset):
    with pytest.raises(UserError, match=r"must be hours, or hours and minutes, of at most 14 hours; write it like"):
        zone_in(f"Time ({offset})")


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize(("minutes", "symbols"), [(15, 1), (60, 1), (15, 2)])
def test_an_hour_that_clocks_repeat_is_read_as_two(order, minutes, symbols):
    bars = np.arange("2023-10-28T20:00", "2023-10-29T08:00", np.timedelta64(minutes, "m"), dtype="datetime64[ns]")
    bars = np.repeat(bars, symbols)[::order]
    there = pl.Series(bars).dt.replace_time_zone("UTC").dt.convert_time_zone("Europe/Athens")
    text = there.dt.strftime("%Y-%m-%d %H:%M")
    assert parse_times(text, zone="EET").utc.tolist() == bars.tolist()


def test_days_of_a_zone_stay_days():
    days = parse_times(pl.Series(["2023-07-03", "2023-07-05"]), zone="America/New_York").days
    assert days is not None
    assert days.tolist() == utc("2023-07-03", "2023-07-05").tolist()

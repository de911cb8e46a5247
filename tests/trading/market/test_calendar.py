import numpy as np
import pytest

from ml_pipeline.trading.market.timeframes import infer_calendar


def _every(step, start="2024-01-01", stop="2024-06-01"):
    return np.arange(start, stop, np.timedelta64(*step), dtype="datetime64[m]").astype("datetime64[ns]")


def _hour_of_week(times):
    return (times.astype("datetime64[h]").astype(int) + 72) % 168  # 0 is Monday 00:00


@pytest.mark.parametrize(
    ("times", "name", "periods"),
    [
        (_every((1, "h")), "24/7", 365 * 24),
        (_every((15, "m")), "24/7", 365 * 96),
        (_every((1, "D")), "24/7", 365),
        (np.busday_offset("2024-01-01", np.arange(100)), "weekdays", 252),
        (_every((7, "D")), "weekdays", 52),
        (np.arange("2015-01", "2020-01", dtype="datetime64[M]"), "weekdays", 12),
        (_every((10, "D")), "24/7", 36.525),
    ],
    ids=["crypto hourly", "crypto 15 minutes", "crypto daily", "stocks daily", "weekly", "monthly", "every ten days"],
)
def test_bars_a_year(times, name, periods):
    calendar = infer_calendar(times)
    assert calendar.periods_per_year == pytest.approx(periods)
    if periods > 60:
        assert calendar.name == name


def test_hourly_forex_counts_whole_weekdays_though_sunday_evening_trades():
    times = _every((1, "h"))
    hour = _hour_of_week(times)
    calendar = infer_calendar(times[(hour < 4 * 24 + 22) | (hour >= 6 * 24 + 22)])  # Sunday 22:00 to Friday 22:00
    reason = "hourly bars round the clock on weekdays (24x5): 260 x 24 a year"
    assert calendar == ("weekdays", 260 * 24, reason)


def test_a_stock_exchange_counts_its_own_hours():
    times = _every((5, "m"))
    minute = times.astype("datetime64[m]").astype(int) % 1440
    weekday = _hour_of_week(times) < 5 * 24
    calendar = infer_calendar(times[weekday & (minute >= 570) & (minute < 960)])  # 9:30 to 16:00
    assert calendar.periods_per_year == 252 * 78
    assert calendar.reason == "5-minute bars on weekdays: 252 x 78 a year"


def test_a_session_of_every_day_counts_its_own_bars():
    """09:30 to 16:00 of a market that trades round the clock has 78 bars of five minutes a day."""
    times = _every((5, "m"))
    minute = times.astype("datetime64[m]").astype(int) % 1440
    calendar = infer_calendar(times[(minute >= 570) & (minute < 960)])
    assert calendar == ("24/7", 365 * 78, "5-minute bars in a part of every day: 365 x 78 a year")


def test_too_few_bars_are_taken_as_daily_and_it_says_so():
    assert infer_calendar(_every((1, "h"))[:2]).periods_per_year == 252
    assert "fewer than 3" in infer_calendar(_every((1, "h"))[:1]).reason


def test_daily_forex_that_counts_sunday_evening_as_a_day_is_not_open_on_saturdays():
    days = _every((1, "D"))
    weekday = (days.astype("datetime64[D]").astype(int) + 3) % 7
    assert infer_calendar(days[weekday != 5])[:2] == ("weekdays", 312)
    # An exchange that is open from Sunday to Thursday has five days a week.
    assert infer_calendar(days[(weekday != 4) & (weekday != 5)])[:2] == ("weekdays", 252)


def test_futures_that_close_for_an_hour_a_day_keep_the_holidays_of_their_exchange():
    times = _every((1, "h"))
    hour = _hour_of_week(times)
    calendar = infer_calendar(times[(hour < 5 * 24) & (hour % 24 != 21)])
    assert calendar == ("weekdays", 252 * 23, "hourly bars on weekdays: 252 x 23 a year")


def test_bars_of_a_sunday_alone_have_a_calendar():
    minutes = np.datetime64("2024-03-10", "ns") + np.arange(5) * np.timedelta64(1, "m")
    assert infer_calendar(minutes).periods_per_year == 252 * 5


@pytest.mark.parametrize(
    ("start", "n", "step", "calendar"),
    [
        # Ten minutes of one Saturday are not on weekdays, and no ten bars a day either.
        (
            "2024-03-09T10:00",
            10,
            (1, "m"),
            (
                "24/7",
                365 * 1440,
                "1-minute bars, taken as round the clock: 365 x 1440 a year; less than a week of bars",
            ),
        ),
        ("2024-03-11", 4, (1, "D"), ("weekdays", 252, "daily bars on weekdays: 252 a year; less than a week of bars")),
        ("2024-03-08", 3, (1, "D"), ("24/7", 365, "daily bars on weekends: 365 a year; less than a week of bars")),
    ],
)
def test_less_than_a_week_of_bars_is_said_to_be(start, n, step, calendar):
    times = np.datetime64(start, "ns") + np.arange(n) * np.timedelta64(*step)
    assert infer_calendar(times) == calendar


@pytest.mark.parametrize(
    ("closed", "words"),
    [
        ((4, 5), "daily bars on Mondays, Tuesdays, Wednesdays, Thursdays, Sundays: 252 a year"),
        ((3, 4), "daily bars on Mondays, Tuesdays, Wednesdays, Saturdays, Sundays: 252 a year"),
        ((5, 6), "daily bars on weekdays: 252 a year"),
    ],
)
def test_an_exchange_with_another_week_has_its_days_named(closed, words):
    days = _every((1, "D"))
    weekday = (days.astype("datetime64[D]").astype(int) + 3) % 7
    assert infer_calendar(days[~np.isin(weekday, closed)]) == ("weekdays", 252, words)

import numpy as np
import pytest

from ml_pipeline.live.brokers.broker import TradingSession
from ml_pipeline.live.feeds.market_hours import MarketHours
from ml_pipeline.trading.market.calendar import Calendar
from ml_pipeline.trading.market.timeframes import DAY, Timing, make_clock

MINUTE = 60 * 10**9
STOCKS = Calendar("weekdays", 252.0 * 390, "")
CRYPTO = Calendar("24/7", 365.0 * 1440, "")
FOREX = Calendar("weekdays", 260.0 * 1440, "")
NEW_YORK = make_clock("09:30-16:00", "America/New_York")


def at(text: str) -> np.datetime64:
    return np.datetime64(text, "ns")


def minutes(span: np.timedelta64) -> float:
    return float(span / np.timedelta64(MINUTE, "ns"))


def half_day_after_a_holiday(first, last):
    """Closed on Thursday the 28th; on Friday the 29th of November 2024 until 13:00 in New York."""
    days = [("2024-11-27T14:30", "2024-11-27T21:00"), ("2024-11-29T14:30", "2024-11-29T18:00")]
    sessions = [TradingSession(at(opens), at(closes)) for opens, closes in days]
    return [each for each in sessions if each.closes > first and each.opens < last]


@pytest.mark.parametrize(
    ("stamped", "last", "following"),
    [
        ("open", "2024-03-01T20:58", ["2024-03-01T20:59", "2024-03-04T14:30", "2024-03-04T14:31"]),
        ("close", "2024-03-01T20:59", ["2024-03-01T21:00", "2024-03-04T14:31", "2024-03-04T14:32"]),
    ],
)
def test_the_session_begins_again_on_monday(stamped, last, following):
    hours = MarketHours(Timing(MINUTE, stamped, NEW_YORK), STOCKS)

    assert list(hours.times_after(at(last), 3)) == [at(text) for text in following]


def test_the_session_moves_with_daylight_saving():
    hours = MarketHours(Timing(MINUTE, "open", NEW_YORK), STOCKS)

    assert list(hours.times_after(at("2024-03-08T20:59"), 1)) == [at("2024-03-11T13:30")]


def test_the_last_bar_of_a_session_is_shorter_where_the_length_does_not_divide_it():
    hours = MarketHours(Timing(60 * MINUTE, "close", NEW_YORK), STOCKS)

    assert list(hours.times_after(at("2024-03-01T20:30"), 2)) == [at("2024-03-01T21:00"), at("2024-03-04T15:30")]


def test_holidays_and_half_days_are_those_of_the_calendar():
    hours = MarketHours(Timing(MINUTE, "open", NEW_YORK), STOCKS, half_day_after_a_holiday)

    assert list(hours.times_after(at("2024-11-27T20:59"), 1)) == [at("2024-11-29T14:30")]
    assert list(hours.times_after(at("2024-11-29T17:59"), 1)) == []
    assert minutes(hours.open_between(at("2024-11-27T20:50"), at("2024-11-29T14:35"))) == 15


def test_days_follow_the_calendar():
    hours = MarketHours(Timing(DAY, "open"), STOCKS, half_day_after_a_holiday)

    assert list(hours.times_after(at("2024-11-27"), 2)) == [at("2024-11-29")]


def test_days_without_a_calendar_are_weekdays():
    assert list(MarketHours(Timing(DAY, "open"), STOCKS).times_after(at("2024-03-01"), 2)) == [
        at("2024-03-04"),
        at("2024-03-05"),
    ]
    assert list(MarketHours(Timing(DAY, "open"), CRYPTO).times_after(at("2024-03-01"), 1)) == [at("2024-03-02")]


def test_crypto_is_always_open():
    hours = MarketHours(Timing(MINUTE, "open"), CRYPTO)

    assert list(hours.times_after(at("2024-03-01T23:59"), 1)) == [at("2024-03-02")]
    assert minutes(hours.open_between(at("2024-03-01T23:59"), at("2024-03-03"))) == 24 * 60 + 1


def test_forex_is_closed_on_weekends():
    hours = MarketHours(Timing(MINUTE, "open"), FOREX)

    assert minutes(hours.open_between(at("2024-03-01T19:00"), at("2024-03-03T23:00"))) == 60
    assert minutes(hours.open_between(at("2024-02-29T23:59"), at("2024-03-01T00:02"))) == 3


def test_another_day_may_be_a_holiday_where_no_calendar_tells():
    hours = MarketHours(Timing(MINUTE, "open", NEW_YORK), STOCKS)

    assert minutes(hours.open_between(at("2024-11-27T20:50"), at("2024-11-29T18:00"))) == 10
    assert minutes(hours.open_between(at("2024-11-27T21:00"), at("2024-11-29T18:00"))) == 0


def test_hours_of_stocks_without_a_session_are_not_guessed():
    hours = MarketHours(Timing(MINUTE, "open"), STOCKS)

    assert minutes(hours.open_between(at("2024-11-27T20:50"), at("2024-11-27T22:00"))) == 0


def test_a_session_that_begins_on_the_evening_before_is_open_on_sunday_and_not_on_friday_evening():
    hours = MarketHours(Timing(60 * MINUTE, "open", make_clock("18:00-17:00", "America/New_York")), STOCKS)

    assert list(hours.times_after(at("2024-03-01T21:00"), 2)) == [at("2024-03-03T23:00"), at("2024-03-04T00:00")]

"""When a market is open, beside clocks, calendars and recorded markets."""

import numpy as np
import pytest

from ml_pipeline.live.brokers.broker import TradingSession
from ml_pipeline.live.feeds.hours import BarCalendar, MarketHours, SessionTimes, session_near
from ml_pipeline.trading.market.timeframes import DAY, Calendar, Timing, make_clock
from tests.live.risk.guarded_accounts import session

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


AN_HOUR = np.timedelta64(1, "h")


@pytest.mark.parametrize("zone", [None, "America/New_York"])
@pytest.mark.parametrize("stamped", ["open", "close"])
def test_days_and_sessions_are_those_of_the_recorded_market(zone, stamped):
    hours = np.datetime64("2024-03-07T00:00", "ns") + np.arange(24 * 7) * AN_HOUR
    weekdays = np.isin((hours.astype("datetime64[D]").astype(int) + 3) % 7, range(5))
    times = hours[weekdays & (np.arange(len(hours)) % 24 > 12)]
    timing = Timing(int(AN_HOUR / np.timedelta64(1, "ns")), stamped, make_clock(None, zone))
    days = timing.clock.days(timing.opens(times))[0]
    ends = np.append(days[1:] != days[:-1], True)
    calendar = BarCalendar(lambda time, n: times[np.searchsorted(times, time, side="right") :][:n], timing)

    charged = np.append(np.diff(days), 0).astype(float)  # as `PreparedMarket` charges them
    assert [calendar.interest_days(time) for time in times] == charged.tolist()
    at_close = [calendar.last_fill_of_session(time, at_close=True) for time in times[:-1]]
    assert at_close == ends[:-1].tolist()
    at_open = [calendar.last_fill_of_session(time, at_close=False) for time in times[:-1]]
    assert at_open == ends[1:].tolist()
    assert 3.0 in charged  # a weekend


WHOLE_DAY = session("2026-11-25T14:30", "2026-11-25T21:00")
HALF_DAY = session("2026-11-27T14:30", "2026-11-27T18:00")


def test_the_session_of_a_bar_is_the_one_it_lies_in_or_the_nearest():
    days = [WHOLE_DAY, HALF_DAY]
    assert session_near(days, np.datetime64("2026-11-25T21:00")) == WHOLE_DAY
    assert session_near(days, np.datetime64("2026-11-26T01:00")) == WHOLE_DAY
    assert session_near(days, np.datetime64("2026-11-27T13:00")) == HALF_DAY
    assert session_near([], np.datetime64("2026-11-25T12:00")) is None


def test_the_broker_is_asked_once_for_a_week():
    asked = []

    class Calendar:
        def sessions(self, first, last):
            asked.append((first, last))
            return [WHOLE_DAY, HALF_DAY]

    times = SessionTimes(Calendar())
    assert times(np.datetime64("2026-11-25T15:00")) == WHOLE_DAY
    assert times(np.datetime64("2026-11-27T17:00")) == HALF_DAY
    assert len(asked) == 1
    times(np.datetime64("2026-12-09T15:00"))
    assert len(asked) == 2

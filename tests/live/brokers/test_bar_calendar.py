"""Days and sessions from the times of the next bars, beside those of a recorded market."""

import numpy as np
import pytest

from ml_pipeline.live.brokers.bar_calendar import BarCalendar
from ml_pipeline.trading.market.timeframes import Timing, make_clock

HOUR = np.timedelta64(1, "h")


@pytest.mark.parametrize("zone", [None, "America/New_York"])
@pytest.mark.parametrize("stamped", ["open", "close"])
def test_days_and_sessions_are_those_of_the_recorded_market(zone, stamped):
    hours = np.datetime64("2024-03-07T00:00", "ns") + np.arange(24 * 7) * HOUR
    weekdays = np.isin((hours.astype("datetime64[D]").astype(int) + 3) % 7, range(5))
    times = hours[weekdays & (np.arange(len(hours)) % 24 > 12)]
    timing = Timing(int(HOUR / np.timedelta64(1, "ns")), stamped, make_clock(None, zone))
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

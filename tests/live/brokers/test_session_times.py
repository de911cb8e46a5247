"""The market's session that a bar lies in, by the broker's calendar."""

import numpy as np

from ml_pipeline.live.brokers.session_times import SessionTimes, session_near
from tests.live.guards.guarded_accounts import session

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

"""A retraining is due by the times of bars alone."""

import hypothesis.strategies as st
import numpy as np
from hypothesis import given

from ml_pipeline.live.retraining.due import due_bar
from ml_pipeline.live.retraining.retrain_config import Interval

MINUTE = np.timedelta64(1, "m")
START = np.datetime64("2024-01-01T00:00", "ns")
GAPS = st.lists(st.integers(1, 5000), min_size=1, max_size=60)  # minutes between bars


def times_of(gaps):
    return START + np.concatenate([[0], np.cumsum(gaps)]) * MINUTE


@given(GAPS, st.integers(1, 3000))
def test_the_first_bar_after_the_latest_whole_span_is_due(gaps, minutes):
    times, span = times_of(gaps), minutes * MINUTE
    found = due_bar(times, START, Interval(span, None))
    reached = list(range(1, int((times[-1] - START) / span) + 1))
    if not reached:
        assert found is None
        return
    moment = START + reached[-1] * span
    assert times[found] >= moment > times[found - 1]


@given(GAPS, st.integers(1, 20))
def test_bars_are_counted_after_the_one_it_is_counted_from(gaps, n):
    times = times_of(gaps)
    found = due_bar(times, START, Interval(None, n))
    assert found == (len(gaps) // n * n or None)


def test_a_market_that_has_not_gone_on_is_not_due():
    times = times_of([1, 1])
    assert due_bar(times, times[-1], Interval(MINUTE, None)) is None
    assert due_bar(times, times[-1], Interval(None, 1)) is None

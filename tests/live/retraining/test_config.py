"""How often a model is trained again, as a person writes it."""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from ml_pipeline.config.errors import UserError
from ml_pipeline.live.retraining.config import Interval, RetrainConfig, due_bar, read_interval


@pytest.mark.parametrize(("text", "hours"), [("7d", 168), ("12h", 12), ("90m", 1.5), ("1w", 168), (" 1800s ", 0.5)])
def test_a_span_is_a_number_and_a_unit(text, hours):
    assert read_interval(text) == (np.timedelta64(round(hours * 3600), "s"), None)


@pytest.mark.parametrize("text", [2000, "2000"])
def test_a_number_alone_counts_bars(text):
    assert read_interval(text) == (None, 2000)


def test_nothing_is_retrained_unless_asked_for():
    assert RetrainConfig().interval is None


@pytest.mark.parametrize("text", ["7y", "d", "0d", "-3", "1.5h", "", "7 days", 0])
def test_anything_else_is_refused(text):
    with pytest.raises(UserError, match="retrain_every must be a span such as 7d"):
        RetrainConfig(retrain_every=text)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("retrain_from", "random"), ("retrain_bars", 0), ("retrain_timesteps", 0), ("retrain_cores", 0)),
        *(("retrain_validation", 1.0), ("retrain_validation", float("nan")), ("retrain_min_dsr", 1.5)),
        *(("retrain_margin", -1.0), ("retrain_margin", float("inf")), ("retrain_time_limit_s", 0.0)),
    ],
)
def test_a_value_out_of_range_is_named(name, value):
    with pytest.raises(UserError, match=name):
        RetrainConfig(**{name: value})


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

"""What a broker tells goes to the bar in which it happened, whatever the order in which it is told."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ml_pipeline.live.booking import by_bar
from ml_pipeline.live.brokers.broker import Charge, Fill

NOON = np.datetime64("2024-03-01T12:00", "ns")


def minutes(n: int) -> np.datetime64:
    return NOON + np.timedelta64(n, "m")


def test_a_charge_that_is_told_after_a_younger_fill_loses_neither():
    fill = Fill("f", "order", "A", 1.0, 10.0, 0.0, minutes(7))
    charge = Charge("c", 1.0, "interest", minutes(0))
    assert by_bar([fill, charge], [minutes(5), minutes(10)]) == [[charge], [fill]]


@given(st.lists(st.integers(-5, 40), max_size=12), st.lists(st.integers(0, 30), min_size=1, max_size=5, unique=True))
def test_every_event_is_in_one_bar_the_first_that_closed_after_it(times, closings):
    closings = sorted(closings)
    events = [Charge(str(i), 1.0, "fee", minutes(time)) for i, time in enumerate(times)]
    found = by_bar(events, [minutes(closing) for closing in closings])
    assert sorted(event for part in found for event in part) == sorted(events)
    for i, part in enumerate(found):
        for event in part:
            assert i == len(closings) - 1 or event.time <= minutes(closings[i])
            assert i == 0 or event.time > minutes(closings[i - 1])


def test_a_fill_at_the_open_of_a_bar_is_not_in_the_row_of_the_close_before():
    """The bars wait together, and one opens as the other closes."""
    fill = Fill("f", "order", "A", 1.0, 10.0, 0.0, minutes(5))
    stop = Fill("s", "", "B", -1.0, 10.0, 0.0, minutes(5), exit=True)
    charge = Charge("c", 1.0, "borrowing", minutes(5))
    assert by_bar([fill, stop, charge], [minutes(5), minutes(10)]) == [[stop, charge], [fill]]

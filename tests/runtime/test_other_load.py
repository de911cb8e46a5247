"""What is said of a busy machine, by loads that are given."""

import os

import pytest

from ml_pipeline.runtime import other_load
from ml_pipeline.runtime.other_load import BackgroundLoad


@pytest.fixture
def others(monkeypatch):
    """A BackgroundLoad on two cores, of which others use as many as are given at each measurement."""

    def using(*busy):
        free = iter(2.0 - each for each in busy)

        class Watch:
            def free_cores(self):
                return next(free)

        monkeypatch.setattr(other_load, "IdleWatch", Watch)
        monkeypatch.setattr(other_load, "usable_cores", lambda: 2.0)
        monkeypatch.setattr(other_load, "_LOOK_S", 0.0)
        monkeypatch.setattr(os, "getloadavg", lambda: (4.57, 1.0, 1.0))
        return BackgroundLoad()

    return using


def test_a_quiet_machine_is_no_word_worth(others):
    load = others(0.1, 0.29, 0.0)
    assert load.warning_before() is None
    load.measure()
    load.measure()
    assert load.warning_during() is None


def test_a_busy_one_is_told_with_figures_before_and_during(others):
    load = others(1.25, 0.4, 1.5, 0.0)
    assert (
        load.warning_before()
        == "the machine is busy: others use 1.2 of 2 cores (load average 4.6); the figures may mislead"
    )
    for _ in range(3):
        load.measure()
    assert (
        load.warning_during()
        == "the machine was busy: others used up to 1.5 of 2 cores (load average 4.6); measure again when it is quiet"
    )


def test_what_is_measured_during_needs_no_look_before(others):
    load = others(1.0)
    load.measure()
    assert load.warning_during().startswith("the machine was busy: others used up to 1.0 of 2 cores")


def test_what_was_before_is_not_told_as_during(others):
    load = others(1.5, 0.0)
    load.warning_before()
    load.measure()
    assert load.warning_during() is None


def test_a_system_without_a_load_average_says_the_rest(others, monkeypatch):
    load = others(1.0)
    monkeypatch.delattr(os, "getloadavg")
    assert load.warning_before() == "the machine is busy: others use 1.0 of 2 cores; the figures may mislead"

"""Quotas of control groups, from files written here."""

import os
from pathlib import Path

import pytest

from ml_pipeline.runtime import cores
from ml_pipeline.runtime.cores import BackgroundLoad


@pytest.fixture
def quota_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cpu.max of the root group, which every process is in."""
    monkeypatch.setattr(cores, "_CGROUP_ROOT", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(4)))
    return tmp_path / "cpu.max"


def test_affinity_counts_where_there_is_no_quota(quota_file: Path) -> None:
    assert cores.usable_cores() == 4.0
    quota_file.write_text("max 100000\n")
    assert cores.usable_cores() == 4.0


def test_the_smaller_of_quota_and_affinity_counts(quota_file: Path) -> None:
    quota_file.write_text("150000 100000\n")
    assert cores.usable_cores() == 1.5
    quota_file.write_text("800000 100000\n")
    assert cores.usable_cores() == 4.0


@pytest.mark.parametrize(
    ("idle_s", "own_s", "free"),
    [
        (6.0, 0.0, 3.0),  # of four cores, one was busy for others in these two seconds
        (5.0, 2.0, 3.5),  # what this process used itself is free for it
        (0.0, 0.2, 0.5),  # a full machine shares
        (9.0, 2.0, 4.0),  # clocks are coarse; there are no more than there are
        (None, 1.0, 4.0),  # not known here
    ],
)
def test_cores_that_others_use_are_not_free(
    quota_file: Path, monkeypatch: pytest.MonkeyPatch, idle_s: float | None, own_s: float, free: float
) -> None:
    moments = iter([(100.0, 1.0, 50.0), (102.0, 1.0 + own_s, None if idle_s is None else 50.0 + idle_s)])
    monkeypatch.setattr(cores.IdleWatch, "_now", staticmethod(lambda: next(moments)))
    assert cores.IdleWatch().free_cores() == pytest.approx(free)


def test_idle_time_is_read_where_the_system_tells_it() -> None:
    idle_s = cores._idle_s()
    assert (idle_s is not None and idle_s >= 0) == Path("/proc/stat").exists()


def test_ranks_of_one_machine_share_its_cores(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    alone = cores.usable_cores()
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert cores.usable_cores() == alone  # a variable that somebody else set
    monkeypatch.setenv("RANK", "0")
    assert cores.usable_cores() == alone / 4


@pytest.fixture
def others(monkeypatch):
    """A BackgroundLoad on two cores, of which others use as many as are given at each measurement."""

    def using(*busy):
        free = iter(2.0 - each for each in busy)

        class Watch:
            def free_cores(self):
                return next(free)

        monkeypatch.setattr(cores, "IdleWatch", Watch)
        monkeypatch.setattr(cores, "usable_cores", lambda: 2.0)
        monkeypatch.setattr(cores, "_LOOK_S", 0.0)
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

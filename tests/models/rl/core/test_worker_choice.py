"""How many workers are chosen, from times that are given."""

import os
import threading

import pytest

from ml_pipeline.models.rl.core.probe_envs import FaultyEnv, TimedEnv
from ml_pipeline.models.rl.core.worker_choice import StepCost, choose_workers, measure_step, measure_wake


@pytest.mark.parametrize(
    ("cpu_s", "wait_s", "num_envs", "cores", "expected"),
    [
        (1e-6, 0.0, 8, 2, 0),  # waking workers takes longer than all eight steps
        (1e-3, 0.0, 8, 2, 2),  # computing: a worker a core
        (1e-3, 0.0, 8, 1, 0),  # computing on one core: nothing to gain
        (1e-3, 0.0, 8, 16, 8),
        (1e-3, 0.0, 64, 16, 16),
        (1e-5, 2e-3, 8, 2, 8),  # waiting: all at once
        (1e-5, 2e-3, 8, 1, 8),
        (1e-3, 0.0, 1, 8, 0),
    ],
)
def test_the_fastest_count_is_chosen(cpu_s: float, wait_s: float, num_envs: int, cores: float, expected: int) -> None:
    assert choose_workers(StepCost(cpu_s, wait_s), num_envs, cores, wake_s=2e-5) == expected


def test_an_unknown_cost_gets_a_worker_a_core() -> None:
    assert choose_workers(None, num_envs=8, cores=3.5, wake_s=2e-5) == 3
    assert choose_workers(None, num_envs=8, cores=1.0, wake_s=2e-5) == 0


def test_computing_and_waiting_are_told_apart() -> None:
    busy = measure_step(TimedEnv(busy_s=2e-3), budget_s=0.05)
    waiting = measure_step(TimedEnv(wait_s=2e-3), budget_s=0.05)
    assert busy is not None
    assert waiting is not None
    assert busy.cpu_s >= 2e-3 > waiting.cpu_s
    assert waiting.wait_s > 1e-3


def test_an_environment_that_refuses_is_not_measured() -> None:
    assert measure_step(FaultyEnv("raise"), budget_s=0.05) is None


def test_where_waking_is_dear_short_steps_stay_in_process() -> None:
    # Eight steps of 10 µs: 80 µs in-process. Two workers: 40 µs, 16 µs for their system calls, and the waking.
    cost = StepCost(cpu_s=1e-5, wait_s=0.0)
    assert choose_workers(cost, num_envs=8, cores=2, wake_s=1e-5) == 2
    assert choose_workers(cost, num_envs=8, cores=2, wake_s=1e-4) == 0


def test_measuring_a_wake_up_leaves_no_thread_and_no_descriptor() -> None:
    threads, descriptors = threading.active_count(), len(os.listdir("/proc/self/fd")) if os.path.exists("/proc") else 0
    assert 0 < measure_wake() < 1
    assert threading.active_count() == threads
    if os.path.exists("/proc"):
        assert len(os.listdir("/proc/self/fd")) == descriptors

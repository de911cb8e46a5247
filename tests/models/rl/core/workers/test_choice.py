"""How many workers are chosen, from times that are given."""

import os
import threading
import time
from typing import Any

import numpy as np
import pytest

from ml_pipeline.models.rl.core.probe_envs import FaultyEnv, TimedEnv
from ml_pipeline.models.rl.core.workers.choice import (
    HERE,
    Division,
    StepCost,
    choose_division,
    measure_step,
    measure_wake,
)
from tests.contracts.envs import MaskedEnv


@pytest.mark.parametrize(
    ("cpu_s", "wait_s", "num_envs", "cores", "expected"),
    [
        (1e-6, 0.0, 8, 2, HERE),  # handing over takes longer than all eight steps
        (1e-3, 0.0, 8, 2, Division(1, steps_here=True)),  # computing: a block a core, this process's included
        (1e-3, 0.0, 8, 1, HERE),  # computing on one core: nothing to gain
        (1e-3, 0.0, 8, 16, Division(7, steps_here=True)),
        (1e-3, 0.0, 64, 16, Division(15, steps_here=True)),
        (1e-5, 2e-3, 8, 2, Division(8, steps_here=False)),  # waiting: all at once
        (1e-5, 2e-3, 8, 1, Division(8, steps_here=False)),
        (0.5, 0.0, 8, 2, Division(2, steps_here=False)),  # a long step here would hide that a worker died
        (1e-3, 0.0, 1, 8, HERE),
    ],
)
def test_the_fastest_division_is_chosen(
    cpu_s: float, wait_s: float, num_envs: int, cores: float, expected: Division
) -> None:
    assert choose_division(StepCost(cpu_s, wait_s), num_envs, cores, wake_s=2e-5) == expected


def test_an_unknown_cost_gets_a_worker_a_core() -> None:
    assert choose_division(None, num_envs=8, cores=3.5, wake_s=2e-5) == Division(3, steps_here=False)
    assert choose_division(None, num_envs=8, cores=1.0, wake_s=2e-5) == HERE


def test_computing_and_waiting_are_told_apart() -> None:
    busy = measure_step(TimedEnv(busy_s=2e-3), budget_s=0.05)
    waiting = measure_step(TimedEnv(wait_s=2e-3), budget_s=0.05)
    assert busy is not None
    assert waiting is not None
    assert busy.cpu_s >= 2e-3 > waiting.cpu_s
    assert waiting.wait_s > 1e-3


def test_measuring_leaves_the_global_generators_as_they_were() -> None:
    class DrawingEnv(TimedEnv):
        def step(self, action: Any) -> Any:
            np.random.random()
            return super().step(action)

    before = np.random.get_state()[1].tolist()
    assert measure_step(DrawingEnv(), budget_s=0.01) is not None
    assert np.random.get_state()[1].tolist() == before


class SlowMaskedEnv(MaskedEnv):
    """Takes 1 ms for a step, and 20 ms to say what is allowed."""

    def _mask(self) -> np.ndarray:
        _compute(20e-3)
        return super()._mask()

    def step(self, action: Any) -> Any:
        _compute(1e-3)
        return super().step(action)


def _compute(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def test_masks_are_kept_to_and_choosing_is_no_part_of_the_step() -> None:
    cost = measure_step(SlowMaskedEnv("method"), budget_s=0.05)
    assert cost is not None
    assert 1e-3 <= cost.cpu_s < 10e-3


def test_an_environment_that_refuses_is_not_measured() -> None:
    assert measure_step(FaultyEnv("raise"), budget_s=0.05) is None


def test_where_waking_is_dear_few_wait_together() -> None:
    # Eight waits of 20 µs: 160 µs in-process; by four workers 40 µs, 32 µs for their system calls, and the waking.
    cost = StepCost(cpu_s=0.0, wait_s=2e-5)
    assert choose_division(cost, num_envs=8, cores=1, wake_s=1e-5).n_workers == 4
    assert choose_division(cost, num_envs=8, cores=1, wake_s=1e-4) == HERE


def test_measuring_a_wake_up_leaves_no_thread_and_no_descriptor() -> None:
    threads, descriptors = threading.active_count(), len(os.listdir("/proc/self/fd")) if os.path.exists("/proc") else 0
    assert 0 < measure_wake() < 1
    assert threading.active_count() == threads
    if os.path.exists("/proc"):
        assert len(os.listdir("/proc/self/fd")) == descriptors

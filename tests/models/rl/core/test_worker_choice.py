"""How many workers are chosen, from times that are given."""

import pytest

from ml_pipeline.models.rl.core.probe_envs import FaultyEnv, TimedEnv
from ml_pipeline.models.rl.core.worker_choice import StepCost, choose_workers, measure_step


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
    assert choose_workers(StepCost(cpu_s, wait_s), num_envs, cores) == expected


def test_an_unknown_cost_gets_a_worker_a_core() -> None:
    assert choose_workers(None, num_envs=8, cores=3.5) == 3
    assert choose_workers(None, num_envs=8, cores=1.0) == 0


def test_computing_and_waiting_are_told_apart() -> None:
    busy = measure_step(TimedEnv(busy_s=2e-3), budget_s=0.05)
    waiting = measure_step(TimedEnv(wait_s=2e-3), budget_s=0.05)
    assert busy is not None
    assert waiting is not None
    assert busy.cpu_s >= 2e-3 > waiting.cpu_s
    assert waiting.wait_s > 1e-3


def test_an_environment_that_refuses_is_not_measured() -> None:
    assert measure_step(FaultyEnv("raise"), budget_s=0.05) is None

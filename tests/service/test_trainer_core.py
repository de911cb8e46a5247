"""What environments are expected to be worth is what the choice of workers expects of them."""

import pytest

from ml_pipeline.models.rl.core import arguments
from ml_pipeline.models.rl.core.probe_envs import CountingEnv
from ml_pipeline.models.rl.core.vec_env import ParallelEnv, SerialEnv
from ml_pipeline.models.rl.core.workers.choice import StepCost
from ml_pipeline.service import trainer_core
from ml_pipeline.service.trainer_core import measure


@pytest.fixture(autouse=True)
def slow_steps_on_two_cores(monkeypatch):
    """In place of what is measured here: 1 ms of computing a step, and 50 us to wake a worker."""
    monkeypatch.setattr(arguments, "measure_step", lambda _: StepCost(cpu_s=1e-3, wait_s=0.0))
    monkeypatch.setattr(arguments, "measure_wake", lambda: 5e-5)
    monkeypatch.setattr(arguments, "_free_cores", lambda _: 2.0)
    monkeypatch.setattr(trainer_core, "_ROUND_S", 1e-3)


def test_environments_of_one_process_are_expected_to_gain_nothing():
    with ParallelEnv([CountingEnv] * 4, num_workers=0) as envs:
        assert measure(envs, CountingEnv).expected_speedup == 1.0


@pytest.mark.parametrize(("free_cores", "expected"), [(2.0, 4.0 / 2.05), (1.0, 4.0 / 4.05)])
def test_two_workers_halve_the_time_of_four_steps_where_two_cores_are_free(free_cores, expected, monkeypatch):
    """4 ms one after another; 2 ms on each of two cores, or 4 ms on one, and 50 us to wake them."""
    monkeypatch.setattr(arguments, "_free_cores", lambda _: free_cores)
    with ParallelEnv([CountingEnv] * 4, num_workers=2) as envs:
        assert measure(envs, CountingEnv).expected_speedup == pytest.approx(expected, rel=0.05)


def test_nothing_is_expected_where_workers_could_not_be_chosen(monkeypatch):
    monkeypatch.setattr(arguments, "measure_step", lambda _: None)
    with ParallelEnv([CountingEnv] * 2, num_workers=1) as envs:
        assert measure(envs, CountingEnv).expected_speedup is None
    with SerialEnv([CountingEnv] * 2) as envs:
        assert measure(envs, CountingEnv).expected_speedup is None

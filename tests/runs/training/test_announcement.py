"""What a run tells before it trains: its length, and settings that have no effect."""

from dataclasses import replace

import pytest

from ml_pipeline.monitoring.listener import RunListener
from ml_pipeline.runs.run import Run
from ml_pipeline.runs.tasks import make_task
from tests.small_runs import PPO, config_of


class Stop(Exception):
    """Raised by the listener as soon as a run has announced itself."""


def announced(folder, **settings):
    """The RunStart of a run of 32 steps per environment and iteration, which ends there."""
    heard = []

    class Listener(RunListener):
        def started(self, start):
            heard.append(start)
            raise Stop

    config = config_of(folder, **settings)
    with pytest.raises(Stop):
        Run(config, make_task(config), listener=Listener()).train()
    return heard[0]


def test_a_length_in_iterations_multiplies_with_the_environments_and_total_timesteps_does_not(tmp_path):
    single, double = (
        announced(tmp_path / str(n), n_envs=n, ppo=replace(PPO, minibatch_size=32), iterations=4) for n in (1, 2)
    )
    assert (single.total_steps, double.total_steps) == (128, 256)
    assert single.one_env_steps == double.one_env_steps == 128
    fair = announced(tmp_path / "fair", n_envs=2, iterations=None, total_timesteps=double.one_env_steps)
    assert (fair.total_steps, fair.one_env_steps) == (128, None)


@pytest.mark.parametrize("vec_env", ["parallel", "serial"])
def test_a_start_method_is_unused_if_no_worker_is_started(tmp_path, vec_env):
    given = announced(tmp_path / "given", vec_env=vec_env, n_workers=0, parallel_start_method="spawn")
    assert (given.n_workers, given.start_method, given.unused_start_method) == (0, None, "spawn")
    assert announced(tmp_path / "not", vec_env=vec_env, n_workers=0).unused_start_method is None


def test_a_start_method_of_workers_is_used(tmp_path):
    start = announced(tmp_path, vec_env="parallel", n_workers=1, parallel_start_method="spawn")
    assert (start.n_workers, start.start_method, start.unused_start_method) == (1, "spawn", None)

"""What environments are expected to be worth beside a single one."""

from contextlib import closing

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from ml_pipeline.models.rl.core.vec_env import ParallelEnv
from ml_pipeline.service.agent.training_performance import measure, shared_speedup


class Large(gymnasium.Env):
    """Its step costs nothing and its observation is large, so that a vector has the work, once for each."""

    observation_space = spaces.Box(-1.0, 1.0, (300_000,))
    action_space = spaces.Discrete(2)

    def __init__(self):
        self.obs = np.zeros(300_000, np.float32)

    def reset(self, *, seed=None, options=None):
        return self.obs, {}

    def step(self, action):
        return self.obs, 0.0, False, False, {}


@pytest.mark.slow
def test_what_a_vector_does_for_each_environment_is_not_expected_to_be_shared():
    with closing(ParallelEnv([Large] * 8, num_workers=0)) as envs:
        figures = measure(envs, Large)
    assert 1.0 <= figures.expected_speedup < 4.0


@pytest.mark.parametrize(("single_s", "several_s"), [(3.0, 6.0), (1.0, 4.0), (2.0, 2.0)])
def test_the_expected_speedup_is_that_of_the_vectors_it_was_measured_on(single_s, several_s):
    seconds = {"single_s": single_s, "several": 4, "several_s": several_s}
    assert shared_speedup(1.0, 1, **seconds) == pytest.approx(1.0)
    assert shared_speedup(1.0, 4, **seconds) == pytest.approx(4 * single_s / several_s)
    assert 1.0 <= shared_speedup(1.0, 8, **seconds) <= shared_speedup(2.0, 8, **seconds) <= 8 * 2.0

"""Each environment of a batch gets a random action that its own mask allows."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from ml_pipeline.models.rl.core.allowed_actions import random_actions
from ml_pipeline.models.rl.core.probe_envs import CountingEnv
from ml_pipeline.models.rl.core.serial_env import SerialEnv


class Only(gymnasium.Env):
    """Allows one choice of each part of its action, `k`; reports it in its observation, its info or by a method."""

    action_space = spaces.MultiDiscrete([3, 3])

    def __init__(self, k, where):
        self.mask = np.tile(np.arange(3) == k, 2).astype(np.int8)
        self.k, self.where = k, where
        parts = {"action_mask": spaces.MultiBinary(6)} if where == "observation" else {}
        self.observation_space = spaces.Dict(x=spaces.Discrete(2), **parts)
        if where == "method":
            self.action_masks = lambda: self.mask.astype(bool)

    def _seen(self):
        observation = {"x": 1, "action_mask": self.mask} if self.where == "observation" else {"x": 1}
        return observation, {"action_mask": self.mask} if self.where == "info" else {}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._seen()

    def step(self, action):
        assert action.tolist() == [self.k, self.k]
        observation, info = self._seen()
        return observation, 0.0, False, False, info


@pytest.mark.parametrize("where", ["observation", "info", "method"])
def test_masks_are_kept_to_wherever_they_are_reported(where):
    with SerialEnv([lambda k=k: Only(k, where) for k in range(3)]) as envs:
        observations, infos = envs.reset(seed=0)
        for _ in range(5):
            actions = random_actions(envs, observations, infos, each=envs.envs)
            assert actions.tolist() == [[0, 0], [1, 1], [2, 2]]
            observations, _, _, _, infos = envs.step(actions)


def test_an_environment_that_reports_no_mask_this_time_gets_any_action():
    with SerialEnv([lambda: Only(0, "info"), lambda: Only(1, "info")]) as envs:
        observations, infos = envs.reset(seed=0)
        infos["_action_mask"][1] = False
        drawn = [random_actions(envs, observations, infos).tolist() for _ in range(50)]
    assert {tuple(first) for first, _ in drawn} == {(0, 0)}
    assert len({tuple(second) for _, second in drawn}) > 3


def test_without_masks_the_batch_is_drawn_as_the_space_draws_it():
    with SerialEnv([CountingEnv] * 3) as envs:
        observations, infos = envs.reset(seed=0)
        envs.action_space.seed(7)
        drawn = random_actions(envs, observations, infos)
        envs.action_space.seed(7)
        assert drawn.tolist() == envs.action_space.sample().tolist()

"""Masks on their way from infos to observations, and what they may not forbid."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from ml_pipeline.config.errors import UserError
from ml_pipeline.models.rl.preprocessing.action_mask import (
    ActionMaskInObservation,
    check_masks,
    reports_mask_outside_observation,
)


class Told(gymnasium.Env):
    """Says in its infos what is allowed: in step t, all but t."""

    def __init__(self, observation_space, key="action_mask"):
        self.observation_space = observation_space
        self.action_space = spaces.Discrete(3)
        self.key = key

    def _info(self):
        return {self.key: np.arange(3) != self.t}

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return self.observation_space.sample(), self._info()

    def step(self, action):
        self.t += 1
        return self.observation_space.sample(), 0.0, False, False, self._info()


@pytest.mark.parametrize(
    ("space", "keys"),
    [
        (spaces.Box(-1, 1, (2,)), {"observation", "action_mask"}),
        (spaces.Dict(a=spaces.Discrete(2)), {"a", "action_mask"}),
    ],
)
def test_masks_of_infos_become_part_of_the_observation(space, keys):
    env = ActionMaskInObservation(Told(space))
    first, _ = env.reset(seed=0)
    second, *_ = env.step(0)
    for observation in (first, second):
        assert set(observation) == keys
        assert env.observation_space.contains(observation)
    assert (first["action_mask"].tolist(), second["action_mask"].tolist()) == ([0, 1, 1], [1, 0, 1])


def test_an_info_without_a_mask_is_told():
    env = ActionMaskInObservation(Told(spaces.Discrete(2), key="mask"))
    with pytest.raises(UserError, match=r"""must hold "action_mask", but holds \['mask'\]"""):
        env.reset()


def test_a_mask_that_leaves_no_choice_for_a_part_is_told():
    space = spaces.MultiDiscrete([2, 3])
    check_masks(np.array([[1.0, 0, 0, 0, 1]]), space)
    with pytest.raises(UserError, match="environment 1 forbids every choice of part 1 of the action"):
        check_masks(np.array([[1.0, 0, 0, 0, 1], [1, 1, 0, 0, 0]]), space)


def test_a_mask_of_another_size_is_told():
    env = ActionMaskInObservation(Told(spaces.Discrete(2)))
    env.unwrapped.action_space = spaces.Discrete(3)
    env.reset()
    env.unwrapped._info = lambda: {"action_mask": [1, 1]}
    with pytest.raises(UserError, match='"action_mask" of the info must have 3 entries, one per choice, but has 2'):
        env.step(0)


class Asked(gymnasium.Wrapper):
    """Reports its mask by a method alone, as for MaskablePPO."""

    def step(self, action):
        return *self.env.step(action)[:4], {}

    def reset(self, **arguments):
        return self.env.reset(**arguments)[0], {}

    def action_masks(self):
        return self.unwrapped._info()["action_mask"]


def test_masks_of_the_method_become_part_of_the_observation():
    env = ActionMaskInObservation(Asked(Told(spaces.Discrete(2))))
    first, _ = env.reset(seed=0)
    second, *_ = env.step(0)
    assert (first["action_mask"].tolist(), second["action_mask"].tolist()) == ([0, 1, 1], [1, 0, 1])
    assert first["action_mask"].dtype == np.int8


def test_a_mask_of_the_method_of_another_size_is_told():
    env = ActionMaskInObservation(Asked(Told(spaces.Discrete(2))))
    env.unwrapped._info = lambda: {"action_mask": [1, 1]}
    with pytest.raises(UserError, match=r"action_masks\(\) must have 3 entries, one per choice, but has 2"):
        env.reset()


@pytest.mark.parametrize(
    ("make", "outside"),
    [
        (lambda: Told(spaces.Discrete(2)), True),
        (lambda: Asked(Told(spaces.Discrete(2))), True),
        (lambda: Told(spaces.Discrete(2), key="mask"), False),
        (lambda: ActionMaskInObservation(Told(spaces.Discrete(2))), False),
        (lambda: ActionMaskInObservation(Asked(Told(spaces.Discrete(2)))), False),
    ],
)
def test_whether_a_mask_is_reported_outside_the_observation_is_found_out(make, outside):
    env = make()
    assert reports_mask_outside_observation(env, env.reset()[1]) == outside

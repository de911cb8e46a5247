"""Where an episode begins is known to what remembers, and to nothing else."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from ml_pipeline.config.errors import UserError
from ml_pipeline.models.rl.core.probe_envs import CountingEnv
from ml_pipeline.models.rl.core.serial_env import SerialEnv
from ml_pipeline.runtime.acting import (
    begin_episode,
    mask_method,
    n_choices,
    random_action,
    random_actions,
    reported_mask,
)
from tests.contracts.envs import MaskedEnv


class Counting:
    def __init__(self):
        self.n_observations = 0

    def begin_episode(self):
        self.n_observations = 0

    def __call__(self, observation):
        self.n_observations += 1
        return self.n_observations


def test_what_remembers_forgets_the_episode_before():
    act = Counting()
    assert (act(0.0), act(0.0)) == (1, 2)
    begin_episode(act)
    assert act(0.0) == 1


def test_a_plain_function_acts_in_any_episode():
    begin_episode(abs)
    begin_episode(lambda observation: observation)


MASK = np.array([0, 1, 0], np.int8)


ASKED = MaskedEnv("method")
ASKED.t = 1  # so that it allows the second action


class Attribute(gymnasium.Env):
    action_masks = None


@pytest.mark.parametrize(
    ("env", "observation", "info"),
    [
        (None, {"x": 1, "action_mask": MASK}, {}),
        (None, {"inner": ({"action_mask": MASK}, 2)}, {}),
        (None, 1, {"action_mask": MASK}),
        (ASKED, 1, {}),
        (gymnasium.Wrapper(ASKED), 1, {}),
        (ASKED, 1, {"action_mask": MASK}),
        (None, {"action_mask": MASK}, {"action_mask": 1 - MASK}),
    ],
)
def test_the_mask_is_found_in_observation_info_or_method(env, observation, info):
    assert reported_mask(env, observation, info).tolist() == [0, 1, 0]


@pytest.mark.parametrize("env", [None, Attribute()])
def test_without_a_mask_there_is_none(env):
    assert reported_mask(env, (1, {"x": 2}), {"mask": MASK}) is None
    assert env is None or mask_method(env) is None


# Of MultiDiscrete([[2, 3], [4, 1]]) these choices alone are allowed: 1, 2, 0, 0.
GRID = np.array([0, 1, 0, 0, 1, 1, 0, 0, 0, 1], np.int8)


@pytest.mark.parametrize(
    ("space", "mask", "only"),
    [
        (spaces.Discrete(3), [0, 0, 1], 2),
        (spaces.Discrete(3, start=-1), [True, False, False], -1),
        (spaces.MultiDiscrete([2, 3]), [0, 1, 1, 0, 0], [1, 0]),
        (spaces.MultiDiscrete([[2, 3], [4, 1]]), GRID, [[1, 2], [0, 0]]),
    ],
)
def test_no_action_is_drawn_that_the_mask_forbids(space, mask, only):
    assert n_choices(space) == len(mask)
    for _ in range(20):
        action = random_action(space, np.array(mask))
        assert np.array_equal(action, only)
        assert space.contains(action)


def test_every_allowed_action_is_drawn_and_what_has_no_choices_is_drawn_as_ever():
    drawn = {int(random_action(spaces.Discrete(4), np.array([1, 0, 1, 1]))) for _ in range(200)}
    assert drawn == {0, 2, 3}
    box = spaces.Box(0, 1, (2,))
    assert box.contains(random_action(box, np.array([0, 0])))
    assert 0 <= random_action(spaces.Discrete(4), None) < 4


def test_a_mask_of_another_size_is_told():
    with pytest.raises(UserError, match="The action mask must have 5 entries, one per choice, but has 3"):
        random_action(spaces.MultiDiscrete([2, 3]), np.array([0, 1, 0]))


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

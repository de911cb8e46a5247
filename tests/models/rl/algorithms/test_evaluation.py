"""Evaluation on an environment whose returns are known."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from ml_pipeline.config.errors import UserError
from ml_pipeline.models.rl.algorithms.evaluation import evaluate, random_actions


class Countdown(gymnasium.Env):
    """Episode of seed s: s % 5 + 1 steps, the reward is the action."""

    observation_space = gymnasium.spaces.Box(0, 10, (1,))
    action_space = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = seed % 5 + 1
        return np.array([self.left], np.float32), {}

    def step(self, action):
        self.left -= 1
        return np.array([self.left], np.float32), float(action), self.left == 0, False, {}


def test_episode_k_is_reset_with_seed_plus_k_and_returns_are_summed():
    result = evaluate(Countdown(), lambda obs: 2, n_episodes=3, seed=1)
    assert result.lengths == (2, 3, 4)
    assert result.returns == (4.0, 6.0, 8.0)
    assert result.mean_return == 6.0
    assert result.std_return == np.std([4, 6, 8])


class Endless(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 10, (1,))
    action_space = gymnasium.spaces.Discrete(3)

    def __init__(self, reward=1.0, length=10_001):
        self._reward, self._length = reward, length

    def reset(self, *, seed=None, options=None):
        self._t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self._t += 1
        return np.zeros(1, np.float32), self._reward, self._t >= self._length, False, {}


def test_a_reward_of_several_parts_is_one_sentence_with_a_wrapper():
    with pytest.raises(UserError) as error:
        evaluate(Endless(np.ones(2, np.float32)), lambda obs: 0, n_episodes=1, seed=0)
    assert str(error.value) == (
        "Evaluation failed in step 1 of episode 1: reward must be one number, but got an array of shape (2,); combine "
        "its 2 parts in a wrapper, as mo_gymnasium.wrappers:LinearReward does."
    )


def test_an_episode_that_may_never_end_is_a_warning():
    with pytest.warns(UserWarning, match="has taken 10,000 steps and has not ended; .*max_episode_steps"):
        evaluate(Endless(), lambda obs: 0, n_episodes=1, seed=0)
    evaluate(Endless(length=9_999), lambda obs: 0, n_episodes=1, seed=0)  # warnings are errors in these tests


def test_an_actor_that_remembers_is_told_where_episodes_begin():
    class Actor:
        log = ""

        def begin_episode(self):
            self.log += "begin "

        def __call__(self, observation):
            self.log += "act "
            return 0

    actor = Actor()
    evaluate(Countdown(), actor, n_episodes=2, seed=0)
    assert actor.log == "begin act begin act act "


def test_the_policy_sees_what_the_environment_gave():
    seen = []
    evaluate(Countdown(), lambda obs: seen.append(float(obs[0])) or 0, n_episodes=1, seed=2)
    assert seen == [3.0, 2.0, 1.0]


def test_random_actions_are_seeded_and_obey_the_mask():
    discrete, several = spaces.Discrete(4), spaces.MultiDiscrete([2, 3])
    draws = [[int(random_actions(discrete, seed=seed)(None)) for _ in range(2)] for seed in (0, 0, 1)]
    assert draws[0] == draws[1]
    act = random_actions(discrete, seed=0)
    assert {int(act({"action_mask": np.array([0, 1, 0, 1])})) for _ in range(50)} == {1, 3}
    act = random_actions(several, seed=0)
    drawn = {tuple(act({"action_mask": np.array([0, 1, 1, 0, 1])}).tolist()) for _ in range(50)}
    assert drawn == {(1, 0), (1, 2)}


def test_an_episode_that_never_ends_is_left_out_after_the_steps_that_there_are():
    class Endless(gymnasium.Env):
        observation_space = spaces.Box(-1, 1, (1,))
        action_space = spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            return np.zeros(1, np.float32), {}

        def step(self, action):
            return np.zeros(1, np.float32), 1.0, False, False, {}

    assert evaluate(Endless(), lambda _: 0, n_episodes=3, seed=0, most_steps=100).returns == ()

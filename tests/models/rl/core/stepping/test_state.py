"""States as plain data hold all that the environment is, and nothing else can be restored from them."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from ml_pipeline.models.rl.core.stepping import state as env_state
from ml_pipeline.models.rl.core.stepping.errors import StateNotAvailable
from ml_pipeline.models.rl.core.stepping.state import plain_state_of, set_plain_state
from ml_pipeline.models.rl.preprocessing.action_mask import ActionMaskInObservation
from ml_pipeline.runtime.plain_data import NotPlain

CLASSIC = ["CartPole-v1", "Pendulum-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Acrobot-v1"]


def play(env, n_steps, seed):
    env.action_space.seed(seed)
    seen = []
    for _ in range(n_steps):
        observation, reward, terminated, truncated, _ = env.step(env.action_space.sample())
        if terminated or truncated:
            observation, _ = env.reset()
        seen.append((observation, reward, terminated, truncated))
    return seen


def begun(env_id, n_steps):
    env = gymnasium.make(env_id)
    env.reset(seed=3)
    play(env, n_steps, seed=1)
    return env


@pytest.mark.parametrize("env_id", CLASSIC)
@pytest.mark.parametrize("n_steps", [0, 1, 17])
def test_gymnasiums_own_go_on_with_the_same_bits_in_a_new_or_a_used_environment(env_id, n_steps):
    env = begun(env_id, n_steps)
    states = plain_state_of(env)
    expected = play(env, 300, seed=2)
    for other in (gymnasium.make(env_id), begun(env_id, 5)):
        set_plain_state(other, states)
        np.testing.assert_equal(play(other, 300, seed=2), expected)


def test_a_state_from_before_the_first_reset_takes_back_what_came_later():
    states = plain_state_of(gymnasium.make("CartPole-v1"))
    env = begun("CartPole-v1", 3)
    set_plain_state(env, states)
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(0)


class Own(gymnasium.Env):
    """Describes itself."""

    observation_space = spaces.Box(-1, 1, (2,))
    action_space = spaces.Discrete(2)

    def __init__(self):
        self.position = np.zeros(2, np.float32)

    def get_plain_state(self):
        return {"position": self.position}

    def set_plain_state(self, state):
        self.position = state["position"]


class Longer(Own):
    """Holds what the base class does not know of."""


def test_an_environment_may_describe_itself_and_a_wrapper_of_ours_adds_nothing():
    env = ActionMaskInObservation(Own())
    env.unwrapped.position[0] = 0.5
    state = env_state.dump(0, env, rest=(1, None))
    env.unwrapped.position[0] = 0.7
    other = ActionMaskInObservation(Own())
    assert env_state.load(0, other, state) == (other, (1, None))
    assert other.unwrapped.position.tolist() == [0.5, 0.0]


class Subclass(type(gymnasium.make("CartPole-v1").unwrapped)):
    pass


@pytest.mark.parametrize(
    "env", [Longer(), Subclass(), gymnasium.wrappers.FrameStackObservation(Own(), 2)], ids=lambda e: type(e).__name__
)
def test_what_may_hold_more_is_pickled(env):
    with pytest.raises(NotPlain):
        plain_state_of(env)
    assert isinstance(env_state.dump(0, env, rest=None), env_state.PickledState)


def test_an_attribute_that_is_no_data_makes_the_state_a_pickle():
    env = gymnasium.make("CartPole-v1")
    env.unwrapped.screen = object()
    with pytest.raises(NotPlain):
        plain_state_of(env)


@pytest.mark.parametrize(
    "state",
    [
        b"cut short",
        "text",
        {},
        {"layers": None, "rest": None},
        {"layers": [{}], "rest": None},
        {"layers": [{}, {}, {}, 3], "rest": None},
        {"layers": [{}, {}, {}, {"step": 3}], "rest": None},
        {"layers": [{}, {}, {}, {"np_random": 3, "render_mode": "human"}], "rest": None},
        {"layers": [{}, {"env": None}, {}, {}], "rest": None},
    ],
    ids=repr,
)
def test_anything_else_is_refused_in_a_sentence(state):
    with pytest.raises(StateNotAvailable, match="environment 4 is not available: it cannot be restored") as told:
        env_state.load(4, gymnasium.make("CartPole-v1"), state)
    assert "\n" not in str(told.value)

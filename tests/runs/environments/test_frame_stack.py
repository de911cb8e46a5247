"""Stacked frames: numbers side by side, images as channels, the last mask alone, and a run resumed bit for bit."""

from contextlib import closing

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from ml_pipeline.config.errors import UserError
from ml_pipeline.models.rl.core.serial_env import SerialEnv
from ml_pipeline.models.rl.preprocessing.observations import channels_last, observation_layout
from ml_pipeline.runs.environments.gym_env import stacked

MASKS = np.eye(3, dtype=np.int8)


class Clock(gymnasium.Env):
    """Observes the number of steps since the reset, in every point of its space."""

    action_space = spaces.Discrete(3)

    def __init__(self, space):
        self.observation_space = space

    def _observe(self):
        if isinstance(self.observation_space, spaces.Dict):
            return {"x": np.full(2, self.t, np.float32), "action_mask": MASKS[self.t % 3]}
        if isinstance(self.observation_space, spaces.Tuple):
            return np.full(2, self.t, np.float32), self.t
        if isinstance(self.observation_space, spaces.Discrete):
            return self.t
        shape, dtype = self.observation_space.shape, self.observation_space.dtype
        return np.full(shape, self.t, dtype) + np.arange(shape[-1], dtype=dtype) * 10

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self._observe(), {}

    def step(self, action):
        self.t += 1
        return self._observe(), 0.0, False, False, {}


def seen(space, n_frames, n_steps):
    """The stacked environment's space, and what it observes after so many steps."""
    env = stacked(Clock(space), n_frames)
    observation, _ = env.reset(seed=0)
    assert env.observation_space.contains(observation)
    for _ in range(n_steps):
        observation, *_ = env.step(0)
        assert env.observation_space.contains(observation)
    return env.observation_space, observation


def test_numbers_stand_in_rows_oldest_first():
    space, observation = seen(spaces.Box(-99, 99, (2,)), 3, 1)
    assert (space.shape, space.dtype) == ((3, 2), np.float32)
    assert observation.tolist() == [[0, 10], [0, 10], [1, 11]]


def test_grayscale_frames_are_channels_of_one_image():
    space, observation = seen(spaces.Box(0, 255, (40, 50), np.uint8), 4, 2)
    assert (space.shape, space.dtype, observation.dtype) == ((4, 40, 50), np.uint8, np.uint8)
    assert observation[:, 0, 0].tolist() == [0, 0, 1, 2]
    (image,) = observation_layout(space).images
    assert image.shape == (4, 40, 50)


@pytest.mark.parametrize(
    ("shape", "merged", "first_point"),
    [
        ((40, 50, 3), (40, 50, 6), [0, 10, 20, 1, 11, 21]),
        ((3, 40, 50), (6, 40, 50), [0, 0, 0, 1, 1, 1]),
        ((40, 50, 1), (40, 50, 2), [0, 1]),
    ],
)
def test_colour_frames_are_channels_of_one_image(shape, merged, first_point):
    space, observation = seen(spaces.Box(0, 255, shape, np.uint8), 2, 1)
    assert (space.shape, space.dtype, observation.dtype) == (merged, np.uint8, np.uint8)
    channels = observation[0, 0] if channels_last(shape) else observation[:, 0, 0]
    assert channels.tolist() == first_point
    (image,) = observation_layout(space).images
    assert image.shape[0] == len(first_point)


@pytest.mark.parametrize(
    ("shape", "n_frames", "most"),
    [((40, 50, 3), 16, 13), ((3, 50, 40), 16, 13), ((30, 40, 3), 16, 10), ((40, 50), 50, 49)],
    ids=str,
)
def test_more_channels_than_an_image_can_have_are_refused(shape, n_frames, most):
    space = spaces.Box(0, 255, shape, np.uint8)
    with pytest.raises(UserError, match=rf"frame_stack {n_frames} gives .*; stack at most {most}\.") as told:
        stacked(Clock(space), n_frames)
    assert "\n" not in str(told.value)
    channels = n_frames * (3 if len(shape) == 3 else 1)
    assert f"pixels {channels} channels" in str(told.value)
    for image in observation_layout(stacked(Clock(space), most).observation_space).images:
        assert image.shape[0] == channels // n_frames * most


def test_small_pictures_which_are_numbers_are_stacked_as_often_as_one_likes():
    space, _ = seen(spaces.Box(0, 255, (7, 7, 3), np.uint8), 4, 1)
    assert space.shape == (7, 7, 12)
    assert observation_layout(space).is_plain


def test_the_mask_of_a_dict_is_the_last_one_alone():
    parts = spaces.Dict(x=spaces.Box(-99, 99, (2,)), action_mask=spaces.MultiBinary(3))
    space, observation = seen(parts, 3, 2)
    assert space["action_mask"] == spaces.MultiBinary(3)
    assert observation["action_mask"].tolist() == [0, 0, 1]
    assert observation["x"].tolist() == [[0, 0], [1, 1], [2, 2]]


def test_parts_of_a_tuple_and_choices_are_stacked():
    space, (numbers, choice) = seen(spaces.Tuple([spaces.Box(-99, 99, (2,)), spaces.Discrete(5)]), 2, 1)
    assert space[1] == spaces.MultiDiscrete([5, 5])
    assert (numbers.tolist(), choice.tolist()) == ([[0, 0], [1, 1]], [0, 1])


def test_stacked_environments_are_saved_and_restored_whole():
    def make():
        return stacked(gymnasium.make("CartPole-v1"), 3)

    with closing(SerialEnv([make])) as envs, closing(SerialEnv([make])) as others:
        envs.reset(seed=1)
        envs.step([0])
        others.reset(seed=2)
        others.set_states(envs.get_states())
        expected, got = envs.step([1])[0], others.step([1])[0]
    assert np.array_equal(expected, got)
    assert len(np.unique(expected[0], axis=0)) == 3

"""Environments are made as their settings say: keywords, wrappers and stacked frames, in that order."""

import sys
from contextlib import closing

import gymnasium
import pytest
from gymnasium import spaces

from ml_pipeline.config.errors import UserError
from ml_pipeline.runs.environments.gym_env import GymEnv


def test_keywords_reach_the_constructor_and_those_of_make_as_well():
    kwargs = {"map_name": "8x8", "is_slippery": False, "max_episode_steps": 3}
    with closing(GymEnv(env_id="FrozenLake-v1", env_kwargs=kwargs).make()) as env:
        assert env.observation_space == spaces.Discrete(64)
        assert env.spec.max_episode_steps == 3


def test_wrappers_apply_in_order_the_first_one_innermost_and_frames_are_stacked_around_them():
    env = GymEnv(env_id="CartPole-v1", wrappers=("TimeAwareObservation", "gymnasium.wrappers:FlattenObservation"))
    with closing(env.make()) as made:
        assert isinstance(made, gymnasium.wrappers.FlattenObservation)
        assert isinstance(made.env, gymnasium.wrappers.TimeAwareObservation)
        assert made.observation_space.shape == (5,)
    stacked = GymEnv(env_id="CartPole-v1", wrappers=("TimeAwareObservation",), frame_stack=3)
    with closing(stacked.make()) as made:
        assert made.observation_space.shape == (3, 5)
        assert made.observation_space.contains(made.reset(seed=0)[0])


def test_without_more_the_environment_is_what_gymnasium_makes():
    with closing(GymEnv(env_id="CartPole-v1").make()) as made, closing(gymnasium.make("CartPole-v1")) as usual:
        assert str(made) == str(usual)


@pytest.mark.parametrize(
    ("mode", "sentence"),
    [("ansi", 'CartPole-v1 cannot be rendered as "ansi": its render modes are human, rgb_array.')],
)
def test_a_render_mode_that_it_has_not_is_one_sentence(mode, sentence):
    with pytest.raises(UserError) as told:
        GymEnv(env_id="CartPole-v1").make(render_mode=mode)
    assert str(told.value) == sentence


def test_a_render_mode_beside_keywords():
    env = GymEnv(env_id="FrozenLake-v1", env_kwargs={"map_name": "8x8", "render_mode": "human"})
    with closing(env.make(render_mode="ansi")) as made:
        made.reset(seed=0)
        assert made.render().count("\n") > 8


def test_what_is_code_of_others_is_known(monkeypatch):
    assert GymEnv(env_id="CartPole-v1").is_gymnasiums_own
    assert not GymEnv(env_id="CartPole-v1", wrappers=("mine:Wrapper",)).is_gymnasiums_own
    assert not GymEnv(env_id="mine:MyEnv-v0").is_gymnasiums_own
    assert "mine" not in sys.modules
    gymnasium.register("Mine-v0", "mine:MyEnv")
    assert not GymEnv(env_id="Mine-v0").is_gymnasiums_own
    del gymnasium.registry["Mine-v0"]

"""The settings of a run that depend on each other."""

import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.run import RunConfig


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"step_timeout_s": 0.0}, "step_timeout_s must be above 0"),
        ({"on_worker_failure": "retry"}, "on_worker_failure must be one of raise, restart"),
        ({"step_timeout_s": 5.0, "n_workers": 0}, "step_timeout_s is about worker processes, but n_workers is 0;"),
        (
            {"on_worker_failure": "restart", "vec_env": "serial"},
            'on_worker_failure is about worker processes, but vec_env is "serial";',
        ),
    ],
)
def test_what_may_fail_is_checked(settings, sentence):
    with pytest.raises(UserError, match=sentence):
        RunConfig(**settings)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"env_kwargs": {"size": 3}}, "env_kwargs is about a Gymnasium environment, but env_id is none; name one,"),
        ({"wrappers": ("FlattenObservation",)}, "wrappers is about a Gymnasium environment, but env_id is none;"),
        ({"frame_stack": 4}, "frame_stack is about a Gymnasium environment, but env_id is none;"),
        ({"atari": True}, "atari is about a Gymnasium environment, but env_id is none;"),
        ({"frame_stack": 1, "env_id": "CartPole-v1"}, "frame_stack must be a whole number of at least 2, but got 1."),
    ],
)
def test_what_is_of_an_environment_needs_one(settings, sentence):
    with pytest.raises(UserError, match=sentence):
        RunConfig(**settings)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"n_envs": 2}, "n_processes must be at most n_envs = 2, so that each has an environment, but got 4;"),
        ({"algorithm": "DQN"}, "n_processes is for PPO, but algorithm is DQN"),
    ],
)
def test_what_several_processes_cannot_share_is_told(settings, sentence):
    with pytest.raises(UserError, match=sentence):
        RunConfig(**{"n_envs": 8, "n_processes": 4, "env_id": "CartPole-v1", **settings})

"""Numbers that are none: who gave them and when, and a policy that they did not reach."""

import dataclasses

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.models.rl.algorithms.ppo_trainer import PPOTrainer
from ml_pipeline.models.rl.core.vec_env import SerialEnv
from ml_pipeline.models.rl.transitions import TrainingFailed

CONFIG = PPOConfig(n_steps=8, minibatch_size=16, hidden_sizes=(8,))


class Breaking(gymnasium.Env):
    """From its `after`-th step on, the second number of the observation is NaN or the reward infinite."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,))
    action_space = spaces.Discrete(2)

    def __init__(self, after, reward=1.0):
        self.after, self.reward, self.t = after, reward, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.np_random.normal(size=2).astype(np.float32), {}

    def step(self, action):
        self.t += 1
        broken = self.t >= self.after
        observation = self.np_random.normal(size=2).astype(np.float32)
        if broken and self.reward == 1.0:
            observation[1] = np.nan
        return observation, self.reward if broken else 1.0, self.t % 5 == 0, False, {}


def trainer_for(*env_fns, config=CONFIG):
    return PPOTrainer(SerialEnv(env_fns), config, total_timesteps=3 * len(env_fns) * config.n_steps)


def state_of(trainer):
    policy = trainer.policy.state_dict()
    return [policy["normalizer"], *map(torch.Tensor.tolist, policy["network"].values())]


@pytest.mark.parametrize(
    ("normalize_obs", "env_fn", "sentence"),
    [
        (
            False,
            lambda: Breaking(after=8 + 3),
            "The observation of environment 1 after step 3 of the rollout, its number 1, is nan",
        ),
        (
            True,
            lambda: Breaking(after=8 + 3),
            r"The observation of environment 1 after step 3 of the rollout, its number 1, is nan; .*"
            r"as it was after iteration 1\.",
        ),
        (
            True,
            lambda: Breaking(after=8 + 3, reward=1e300),  # too large for a float32
            "The reward of environment 1 after step 3 of the rollout is inf",
        ),
    ],
    ids=["observation", "normalized observation", "reward"],
)
@pytest.mark.filterwarnings("ignore:invalid value", "ignore:overflow")
def test_the_first_number_that_is_none_is_named_and_the_policy_as_before(normalize_obs, env_fn, sentence):
    config = dataclasses.replace(CONFIG, normalize_obs=normalize_obs, normalize_rewards=False)
    trainer = trainer_for(lambda: Breaking(after=99), env_fn, config=config)
    trainer.train_episode_vectorized()
    before = state_of(trainer)
    with pytest.raises(TrainingFailed, match=sentence):
        trainer.train_episode_vectorized()
    assert state_of(trainer) == before


def test_an_update_that_blows_up_is_named_and_undone():
    config = dataclasses.replace(CONFIG, learning_rate=1e30, max_grad_norm=1e30, n_epochs=4)
    trainer = trainer_for(lambda: Breaking(after=99), lambda: Breaking(after=99), config=config)
    before = trainer.policy.state_dict()["network"]
    with pytest.raises(TrainingFailed, match=r"No longer finite .*; continue with a smaller --learning-rate"):
        trainer.train_episode_vectorized()
    after = trainer.policy.state_dict()["network"]
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize(("head", "what"), [("actor", "log-probability"), ("critic", "value")])
@pytest.mark.filterwarnings("ignore:invalid value")
def test_a_policy_that_gives_nan_is_named(head, what):
    trainer = trainer_for(lambda: Breaking(after=99), lambda: Breaking(after=99))
    with torch.no_grad():
        getattr(trainer.policy.network, head)[-1].bias.fill_(torch.nan)
    trainer.policy.refresh()
    with pytest.raises(
        TrainingFailed, match=f"The policy's {what} in step 1 of the rollout, for environment 0, is nan"
    ):
        trainer.train_episode_vectorized()

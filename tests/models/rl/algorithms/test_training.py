"""Training in one call, with hooks."""

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.models.rl.algorithms.early_stopping import StopAtReturn, StopOnPlateau
from ml_pipeline.models.rl.algorithms.ppo_trainer import PPOTrainer
from ml_pipeline.models.rl.algorithms.training import train_ppo
from ml_pipeline.models.rl.core.vec_env import SerialEnv
from ml_pipeline.models.rl.networks.policy import Policy

CONFIG = PPOConfig(n_steps=8, minibatch_size=16, n_epochs=2, hidden_sizes=(8,))


class Constant(gymnasium.Env):
    """Episodes of two steps that return 2, whatever is done."""

    observation_space = spaces.Box(-1, 1, (2,))
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.t += 1
        return np.zeros(2, np.float32), 1.0, self.t == 2, False, {}


class Recorder:
    def __init__(self):
        self.metrics = []

    def write(self, metrics, episodes):
        self.metrics.append(metrics)

    def close(self):
        pass


def test_one_call_is_the_trainer_put_together_by_hand():
    policy = train_ppo([Constant] * 2, CONFIG, total_timesteps=33, num_workers=0, seed=5)
    envs = SerialEnv([Constant] * 2)
    by_hand = Policy.of_config(CONFIG, envs.single_observation_space, envs.single_action_space, seed=5)
    assert PPOTrainer(envs, by_hand, CONFIG, total_iterations=3, seed=5).train()  # 33 steps are 3 iterations of 16
    for ours, theirs in zip(policy.network.parameters(), by_hand.network.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def iterations(hook):
    sink = Recorder()
    train_ppo([Constant] * 2, CONFIG, total_timesteps=16 * 10, num_workers=0, sink=sink, after_iteration=hook)
    return sink.metrics


def test_metrics_of_the_users_own_are_written_with_all_others():
    metrics = iterations(lambda trainer, statistics: {"own/double": 2.0 * statistics.iteration})
    assert [m["own/double"] for m in metrics] == [2.0 * k for k in range(1, 11)]
    assert "train/value_loss" in metrics[0]


def test_training_ends_at_a_target():
    assert len(iterations(StopAtReturn(2.0))) == 1
    assert len(iterations(StopAtReturn(2.1))) == 10


def test_training_ends_where_it_no_longer_gets_better():
    assert len(iterations(StopOnPlateau(patience=3))) == 4  # the first is a rise from nothing


def test_a_rise_begins_the_patience_anew():
    class Statistics:
        def __init__(self, mean_return_100):
            self.mean_return_100 = mean_return_100

    class Trainer:
        stopped = False

        def request_stop(self):
            self.stopped = True

    hook, trainer, log = StopOnPlateau(patience=2, min_rise=0.5), Trainer(), []
    for value in (float("nan"), 1.0, 1.4, 1.6, 1.7, 1.8):
        hook(trainer, Statistics(value))
        log.append(trainer.stopped)
    assert log == [False, False, False, False, False, True]


def test_a_resumed_run_stops_on_its_plateau_where_the_uninterrupted_one_does():
    def run(n_before):
        """A run that stops on a plateau, saved and resumed after so many iterations: how many it has in the end."""
        trainer, hook = plateau_trainer(), StopOnPlateau(patience=4)
        for _ in range(n_before):
            hook(trainer, trainer.train_episode_vectorized())
        state, count = trainer.state_dict(), hook.state_dict()
        trainer, hook = plateau_trainer(), StopOnPlateau(patience=4)
        trainer.load_state_dict(state)
        hook.load_state_dict(count)
        assert not trainer.train(after_iteration=hook)
        return trainer.iteration

    assert [run(n) for n in range(4)] == [5] * 4


def plateau_trainer():
    envs = SerialEnv([Constant] * 2)
    policy = Policy.of_config(CONFIG, envs.single_observation_space, envs.single_action_space)
    return PPOTrainer(envs, policy, CONFIG, total_iterations=20)


def test_no_timesteps_are_refused():
    with pytest.raises(UserError, match="total_timesteps must be at least 1, but got 0"):
        train_ppo([Constant], CONFIG, total_timesteps=0)

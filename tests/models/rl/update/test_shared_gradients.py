"""Ranks that share the chunks of a gradient learn the bits of one process that computes them all."""

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.models.rl.algorithms.ppo_trainer import PPOTrainer
from ml_pipeline.models.rl.core.vec_env import ParallelEnv
from ml_pipeline.models.rl.ranks import rows_of
from tests.models.rl.distributed.rank_server import RankServer
from tests.models.rl.distributed.tasks import N_ENVS, N_STEPS, TIMESTEPS, hash_of


class Pictures(gymnasium.Env):
    """A bright row of a dark picture moves up or down; 6 steps long."""

    observation_space = spaces.Box(0, 255, (36, 36, 1), np.uint8)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.row = 0, int(self.np_random.integers(36))
        return self._seen(), {}

    def step(self, action):
        self.t += 1
        self.row = (self.row + 2 * int(action) - 1) % 36
        return self._seen(), float(self.row > 18), False, self.t >= 6, {}

    def _seen(self):
        picture = self.np_random.integers(0, 60, (36, 36, 1), np.uint8)
        picture[self.row] = 255
        return picture


def cart_pole() -> gymnasium.Env:
    return gymnasium.make("CartPole-v1", max_episode_steps=9)


def pendulum() -> gymnasium.Env:
    return gymnasium.make("Pendulum-v1", max_episode_steps=9)


TASKS: dict[str, Any] = {
    "images": (Pictures, {"share_layers": True}),
    "images and memory": (Pictures, {"memory": "gru", "memory_size": 16, "share_layers": True}),
    "memory": (pendulum, {"memory": "lstm", "memory_size": 16, "squash_actions": True}),  # which is not compiled
    "bounded kl": (cart_pole, {"share_layers": True, "target_kl": 1e-3}),
}


def trained(ranks: Any, task: str, n_threads: int = 1) -> str:
    """Hash after 18 minibatches: the first six are computed alone and shared in turn, the others as is faster."""
    torch.set_num_threads(n_threads)
    make_env, settings = TASKS[task]
    config = PPOConfig(
        **{"n_steps": N_STEPS, "minibatch_size": 64, "n_epochs": 2, "hidden_sizes": (16,), "gradient_chunks": 4},
        **{"normalize_update": "rollout", **settings},
    )
    rows = slice(None) if ranks is None else rows_of(ranks.rank, ranks.size, N_ENVS)
    envs = ParallelEnv(([make_env] * N_ENVS)[rows], num_workers=0, copy=False)
    with envs, PPOTrainer(envs, config, total_timesteps=TIMESTEPS, seed=3, ranks=ranks) as trainer:
        trainer.train(progress=False)
        return hash_of(trainer)


@pytest.mark.slow
@pytest.mark.parametrize("task", [pytest.param(t, marks=pytest.mark.long if "images" in t else ()) for t in TASKS])
def test_ranks_that_share_gradients_learn_what_one_process_learns(server: RankServer, task: str):
    (alone,) = server.values(trained, 0, task, 2)  # as many threads as torch takes, while a launcher gives a rank one
    for size in (2, 3):
        assert server.values(trained, size, task) == [alone] * size

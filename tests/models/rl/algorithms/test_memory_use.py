"""A long training needs no more memory than a short one.

python tests/models/rl/algorithms/test_memory_use.py   # 10,000 iterations of each kind, a minute
"""

import gc

import gymnasium
import psutil
import pytest

from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.models.rl.algorithms.ppo_trainer import PPOTrainer
from ml_pipeline.models.rl.core.vec_env import SerialEnv

N_WARM_UP = 150  # iterations until the last 100 episodes are 100, and allocators have what they need
KINDS = {"perceptrons": {}, "gru": {"memory": "gru", "memory_size": 8}}


class Sink:
    def write(self, metrics, episodes):
        self.last = metrics

    def close(self):
        pass


def growth_bytes(kind, n_iterations):
    """By how much the process grows in so many iterations of tiny rollouts."""
    config = PPOConfig(n_steps=4, minibatch_size=4, n_epochs=1, hidden_sizes=(8,), **KINDS[kind])
    envs = SerialEnv([lambda: gymnasium.make("CartPole-v1")] * 2)
    trainer = PPOTrainer(envs, config, sink=Sink())
    for _ in range(N_WARM_UP):
        trainer.train_episode_vectorized()
    gc.collect()
    before = psutil.Process().memory_info().rss
    for _ in range(n_iterations):
        trainer.train_episode_vectorized()
    gc.collect()
    envs.close()
    return psutil.Process().memory_info().rss - before


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_memory_does_not_grow_with_iterations(kind):
    # A rollout of it, kept, would be about 1 KB an iteration, and what is written at least as much.
    assert growth_bytes(kind, 600) < 600 * 500


if __name__ == "__main__":
    for kind in KINDS:
        print(f"{kind}: {growth_bytes(kind, 10_000) / 1e3:,.0f} kB in 10,000 iterations")

"""A long training holds no more than a short one: what it holds is counted, not read from the system.

python tests/models/rl/algorithms/test_memory_use.py   # what the system says of 10,000 iterations of each kind, minutes
"""

import gc
import sys
from collections import deque
from typing import NamedTuple

import gymnasium
import numpy as np
import psutil
import pytest
import torch
from gymnasium import spaces

from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.models.rl.algorithms.ppo_trainer import PPOTrainer
from ml_pipeline.models.rl.core.vec_env import SerialEnv

N_WARM_UP, N_ITERATIONS = 60, 200
CONTAINERS = {list, dict, set, deque}
KINDS = {"perceptrons": {}, "gru": {"memory": "gru", "memory_size": 8}}


class Pairs(gymnasium.Env):
    """Episodes of two steps, so that the last 100 episodes are soon 100."""

    observation_space = spaces.Box(-1, 1, (4,))
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.np_random.random(4, np.float32), {}

    def step(self, action):
        self.t += 1
        return self.np_random.random(4, np.float32), 1.0, self.t == 2, False, {}


class LastOnly:
    """A sink that keeps the last metrics."""

    def write(self, metrics, episodes):
        self.kept = metrics

    def close(self):
        pass


class Hoarder(LastOnly):
    """A sink that keeps the number of every iteration: one float."""

    def __init__(self):
        self.kept = []

    def write(self, metrics, episodes):
        self.kept.append(metrics["train/value_loss"])


def trainer_for(kind, sink):
    config = PPOConfig(n_steps=4, minibatch_size=4, n_epochs=1, hidden_sizes=(8,), **KINDS[kind])
    return PPOTrainer(SerialEnv([Pairs] * 2), config, sink=sink, seed=1)


class Held(NamedTuple):
    """What the garbage collector knows of: objects, the tensors among them, and the bytes of lists, dicts and the like.

    Whatever is kept of an iteration is such an object, or stands in one that grows.
    """

    objects: int
    tensors: int
    bytes: int


def held():
    gc.collect()
    objects = gc.get_objects()
    n_tensors = sum(issubclass(type(each), torch.Tensor) for each in objects)
    return Held(len(objects), n_tensors, sum(sys.getsizeof(each) for each in objects if type(each) in CONTAINERS))


def growth(kind, sink):
    """By how much N_ITERATIONS let it grow."""
    trainer = trainer_for(kind, sink)
    for _ in range(N_WARM_UP):
        trainer.train_episode_vectorized()
    before = held()
    for _ in range(N_ITERATIONS):
        trainer.train_episode_vectorized()
    return Held(*(after - earlier for after, earlier in zip(held(), before, strict=True)))


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_memory_does_not_grow_with_iterations(kind):
    grown = growth(kind, LastOnly())
    assert grown.tensors == 0
    assert grown.objects < N_ITERATIONS / 10
    assert grown.bytes < 4 * N_ITERATIONS  # half a pointer an iteration


@pytest.mark.long
def test_a_number_kept_of_each_iteration_is_noticed():
    growth("perceptrons", LastOnly())  # what a process keeps and frees once, as it trains first
    assert growth("perceptrons", Hoarder()).bytes > 4 * N_ITERATIONS


if __name__ == "__main__":
    for kind in KINDS:
        trainer = trainer_for(kind, LastOnly())
        for n_iterations in (150, 10_000):
            before = psutil.Process().memory_info().rss
            for _ in range(n_iterations):
                trainer.train_episode_vectorized()
        grown = psutil.Process().memory_info().rss - before
        print(f"{kind}: {grown / 1e3:,.0f} kB in 10,000 iterations")

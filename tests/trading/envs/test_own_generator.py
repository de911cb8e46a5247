"""What a seed settles, it settles alone: no environment draws from, or moves, a generator that others use."""

import random

import numpy as np
import pytest

from ml_pipeline.trading.envs.batched import BatchedTradingEnv
from ml_pipeline.trading.envs.fast import FastTradingEnv
from ml_pipeline.trading.envs.stateful import StatefulTradingEnv

N_STEPS = 12


def batched(market, **settings):
    return BatchedTradingEnv(market, 4, fee_bps=(1, 20), slippage_bps=(0, 20), **settings)


def seen_by(env):
    """Observations and rewards over two episodes and more, which begin where a generator says."""
    seen = [env.reset(seed=5)[0]]
    for step in range(N_STEPS):
        observation, reward, terminated, truncated, _ = env.step(np.broadcast_to(step % 3, env.action_space.shape))
        seen += [observation, reward]
        if env.action_space.shape == () and (terminated or truncated):
            seen.append(env.reset()[0])
    return seen


@pytest.mark.parametrize("make", [FastTradingEnv, StatefulTradingEnv, batched], ids=["fast", "stateful", "batched"])
def test_global_generators_are_neither_used_nor_moved(tiny_market, make):
    prices = np.exp(np.random.default_rng(0).normal(0, 0.01, 200).cumsum())
    runs = []
    for seed in (1, 2):
        random.seed(seed)
        np.random.seed(seed)
        before = random.getstate(), np.random.get_state()
        runs.append(seen_by(make(tiny_market(prices), episode_length=5)))
        after = random.getstate(), np.random.get_state()
        np.testing.assert_equal(after, before)
    np.testing.assert_equal(runs[0], runs[1])
    starts = [int(np.ravel(observation)[0]) for observation in runs[0] if np.ndim(observation)]
    assert max(starts) - min(starts) > N_STEPS  # an episode began elsewhere

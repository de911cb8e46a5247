"""Permuting actions permutes the outcomes, and changes nothing else."""

import itertools

import numpy as np
import pytest

from ml_pipeline.trading.accounts.rules import TradingRules
from ml_pipeline.trading.envs.batched import BatchedTradingEnv
from ml_pipeline.trading.envs.fast import FastTradingEnv
from ml_pipeline.trading.envs.stateful import StatefulTradingEnv

N_BARS, N_ASSETS = 30, 3
RULES = TradingRules("target_weights", fee_bps=10)
GENERATOR = np.random.default_rng(0)
PRICES = np.exp(GENERATOR.normal(0, 0.05, (N_BARS, N_ASSETS)).cumsum(axis=0))
ACTIONS = GENERATOR.uniform(-0.4, 0.4, (N_BARS - 1, N_ASSETS))


def batched(market, rules):
    return BatchedTradingEnv(market, 1, rules)


def outcome(env, actions):
    """The reward of each step: (T,), or (T, N) of N environments with actions (T, N, A)."""
    env.reset(seed=0)
    return np.array([env.step(action)[1] for action in actions])


@pytest.mark.parametrize("make", [FastTradingEnv, StatefulTradingEnv, batched], ids=["fast", "stateful", "batched"])
def test_permuting_the_actions_permutes_the_outcomes(tiny_market, make):
    shape = (N_BARS - 1, *((1, N_ASSETS) if make is batched else (N_ASSETS,)))
    outcomes = []
    for order in map(list, itertools.permutations(range(N_ASSETS))):
        actions = ACTIONS[:, order].reshape(shape)
        found = outcome(make(tiny_market(PRICES), RULES), actions)
        back = np.argsort(order)  # the same assets get the same orders, wherever they stand
        expected = outcome(make(tiny_market(PRICES[:, back]), RULES), ACTIONS.reshape(shape))
        np.testing.assert_allclose(found, expected, atol=1e-12)
        outcomes.append(found)
    for one, other in itertools.combinations(outcomes, 2):
        assert abs(one - other).max() > 1e-3


def test_permuting_the_environments_permutes_their_rewards(tiny_market):
    orders = list(itertools.permutations(range(N_ASSETS)))
    actions = np.stack([ACTIONS[:, order] for order in orders], axis=1)  # (T, N, A)
    turned = np.random.default_rng(1).permutation(len(orders))
    rewards, permuted = (
        outcome(BatchedTradingEnv(tiny_market(PRICES), len(orders), RULES), each)
        for each in (actions, actions[:, turned])
    )
    np.testing.assert_array_equal(permuted, rewards[:, turned])
    single = np.array([outcome(FastTradingEnv(tiny_market(PRICES), RULES), each) for each in actions.swapaxes(0, 1)])
    np.testing.assert_allclose(rewards, single.T, atol=1e-12)

"""The state of a trading environment is plain data, and all that a step depends on."""

import numpy as np
import pytest

from ml_pipeline.models.rl.core.stepping.state import plain_state_of, set_plain_state
from ml_pipeline.runtime.plain_data import NotPlain, from_plain, to_plain
from ml_pipeline.trading.accounts.rules import TradingRules
from ml_pipeline.trading.envs.fast import FastTradingEnv
from ml_pipeline.trading.envs.rewards import REWARDS, Reward, make_reward
from ml_pipeline.trading.envs.stateful import StatefulTradingEnv
from ml_pipeline.trading.gym_ids import TradingEnv

WALK = 100 * np.exp(np.random.default_rng(0).normal(0, 0.02, (300, 2)).cumsum(axis=0))
RULES = {
    "discrete": TradingRules(action_mode="discrete"),
    "buy_hold_sell": TradingRules(action_mode="buy_hold_sell", min_cash=0.1),
    "target_weights": TradingRules(action_mode="target_weights", max_gross=0.8, fee_bps=5),
    "trade": TradingRules(action_mode="trade", lot_size=0.1),
    "within": TradingRules(stop_loss=0.02, max_gross=2, max_position=2, financing_bps_per_year=500, fee_bps=5),
}
RANGE = {"high": WALK * 1.01, "low": WALK * 0.99}


def play(env, n_steps, seed):
    env.action_space.seed(seed)
    seen = []
    for _ in range(n_steps):
        *result, info = env.step(env.action_space.sample())
        if result[2] or result[3]:
            result[0], _ = env.reset()
        seen.append((*result, info))
    return seen


@pytest.mark.parametrize("kind", [FastTradingEnv, StatefulTradingEnv])
@pytest.mark.parametrize("engine", ["plain", "compiled"])
@pytest.mark.parametrize("mode", RULES)
def test_a_state_goes_on_with_the_same_bits_in_another_environment(tiny_market, kind, engine, mode):
    if engine == "compiled":
        pytest.importorskip("numba")
    market = tiny_market(WALK, **RANGE)

    def make():
        return kind(market, RULES[mode], window=2, episode_length=9, reward=make_reward("sharpe_ratio"), engine=engine)

    env, other = make(), make()
    env.reset(seed=4)
    play(env, 15, seed=1)
    state = to_plain(env.get_plain_state())
    expected = play(env, 40, seed=2)
    other.reset(seed=8)
    play(other, 3, seed=5)
    other.set_plain_state(from_plain(state))
    np.testing.assert_equal(play(other, 40, seed=2), expected)
    if kind is StatefulTradingEnv:
        np.testing.assert_equal(other.ledger(), env.ledger())
        assert other.limit_counts == env.limit_counts


@pytest.mark.parametrize("mode", ["discrete", "within"])
def test_what_a_state_leaves_out_is_what_no_step_changes(tiny_market, mode):
    """Every attribute of the environment and its account that differs after a step is in the state."""
    env = FastTradingEnv(tiny_market(WALK, **RANGE), RULES[mode], engine="plain")
    env.reset(seed=0)
    for owner in (env, env._account, env._actions):
        before = {name: repr(value) for name, value in vars(owner).items()}
        env.step([2, 0])
        changed = {name.lstrip("_") for name, value in vars(owner).items() if repr(value) != before[name]}
        known = {"reward_state", "choices", "np_random"}  # by other names
        assert changed - known <= {*env.get_plain_state(), *env._account.state()}
        env.reset(seed=1)


@pytest.mark.parametrize("name", REWARDS)
def test_every_reward_of_ours_is_saved_also_when_it_is_scaled(tiny_market, name):
    for scale in (1.0, 3.0):
        env = FastTradingEnv(tiny_market(WALK), reward=make_reward(name, scale))
        env.reset(seed=0)
        to_plain(env.get_plain_state())


def test_an_environment_from_data_and_settings_is_saved_as_what_it_is():
    env = TradingEnv(None, {"window": 2}, ["rsi_14"])
    env.reset(seed=0)
    env.step(2)
    states = plain_state_of(env)
    other = TradingEnv(None, {"window": 2}, ["rsi_14"])
    set_plain_state(other, states)
    np.testing.assert_equal(play(other, 5, seed=1), play(env, 5, seed=1))


class Counting(Reward):
    def __init__(self):
        self.n = 0

    def step(self, ops, state, before, after):
        self.n += 1
        return 0.0, state


def test_a_reward_that_keeps_something_on_itself_is_no_plain_data(tiny_market):
    with pytest.raises(NotPlain, match="Counting with attributes"):
        FastTradingEnv(tiny_market(WALK), reward=Counting()).get_plain_state()

"""A reward with compute_reward(pf, df, realized_profit) sees the account, the bar and what closed positions made."""

import sys

import numpy as np
import polars as pl
import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.trading.envs.rewards import RewardFunction
from ml_pipeline.trading.gym_ids import FastTrainingEnv, StatefulTradingEnv

SEEN = []
WEIGHTS = {"action_mode": "target_weights"}


class Profit(RewardFunction):
    def compute_reward(self, pf, df, realized_profit):
        SEEN.append((pf, dict(df), realized_profit))
        return realized_profit


class Gain(RewardFunction):
    def compute_reward(self, pf, df, realized_profit):
        return (pf.net_value() - pf.equity_before) / pf.initial_cash


class Empty(RewardFunction):
    pass


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    monkeypatch.setitem(sys.modules, "mine", sys.modules[__name__])
    SEEN.clear()


def market_of(opens, closes):
    times = np.arange("2024-01-01", "2024-03-01", dtype="datetime64[D]")[: len(closes)]
    rows = {"open": opens, "close": closes, "high": np.maximum(opens, closes) + 1, "low": np.minimum(opens, closes) - 1}
    return pl.DataFrame({"time": times, **rows})


def test_realized_profit_by_hand_at_average_prices():
    n = 30
    opens, closes = np.full(n, 100.0), np.full(n, 100.0)
    # Decided on bar 0, 1, ... and filled at the opens of bars 1, 2, ...: long, more, half of it, short, flat.
    opens[1:6] = closes[1:6] = [100.0, 110.0, 120.0, 130.0, 125.0]
    cfg = {**WEIGHTS, "reward": "mine:Profit", "initial_cash": 1000.0, "fee_bps": 0.0, "slippage_bps": 0.0}
    env = StatefulTradingEnv(market_of(opens, closes), cfg, ["log_return_1"])
    env.reset(seed=0)
    rewards, units, prices = [], [0.0], []
    for weight in (0.4, 0.8, 0.3, -0.2, 0.0):
        prices.append(env.market.open[env._bar + 1, 0])
        rewards.append(env.step(np.array([weight], dtype=np.float32))[1])
        units.append(env._account.holdings[0])
    # A second computation: every unit is its own lot at the average price.
    average, held, expected = 0.0, 0.0, []
    for price, after in zip(prices, units[1:], strict=True):
        traded, profit = after - held, 0.0
        if held * traded >= 0:
            average = (held * average + traded * price) / after
        else:
            closing = min(abs(traded), abs(held)) * np.sign(held)
            profit = closing * (price - average)
            average = price if held * after < 0 else average
        held = after
        expected.append(profit)
    np.testing.assert_allclose(rewards, expected, atol=1e-9)
    assert any(expected)
    # Flat again: what was realized is what was earned.
    assert sum(rewards) == pytest.approx(env.equity - 1000.0)


def test_it_sees_the_account_and_the_bar_that_closed():
    prices = np.linspace(100, 110, 20)
    cfg = {**WEIGHTS, "reward": "mine:Profit", "initial_cash": 500.0, "fee_bps": 0.0, "reward_scale": 2.0}
    env = FastTrainingEnv(market_of(prices, prices), cfg, ["log_return_1"])
    env.reset(seed=0)
    before = env.equity
    env.step(np.array([1.0], dtype=np.float32))
    ((pf, df, _),) = SEEN
    assert (pf.initial_cash, pf.equity_before, pf.equity, pf.net_value()) == (500.0, before, env.equity, env.equity)
    assert [*pf.positions.values()] == [float(n) for n in env._account.holdings]
    assert df["close"].tolist() == [env.market.close[env._bar, 0]]


def test_both_environments_pay_the_same():
    prices = 100 * np.exp(np.random.default_rng(1).normal(0, 0.02, 50).cumsum())
    cfg = {**WEIGHTS, "reward": "mine:Gain", "stop_loss": 0.01, "fee_bps": 3.0}
    rewards = []
    for kind in (FastTrainingEnv, StatefulTradingEnv):
        env = kind(market_of(prices, prices), cfg, ["log_return_1"])
        env.reset(seed=0)
        actions = np.random.default_rng(2)
        rewards.append([env.step(actions.uniform(-1, 1, 1).astype(np.float32))[1] for _ in range(30)])
    assert rewards[0] == rewards[1]
    assert np.any(rewards[0])


def test_it_is_for_one_account_and_needs_its_function():
    from ml_pipeline.trading.settings import TradingConfig
    from ml_pipeline.trading.task import TradingTask

    task = TradingTask(TradingConfig(reward="mine:Gain"))
    with pytest.raises(UserError, match=r"Gain has compute_reward, which reads one account, but vec_env is batched; "):
        task.batched_train_env(2).reset(seed=0)
    with pytest.raises(UserError, match=r"mine:Empty has no compute_reward\(\); a reward needs compute_reward\(pf, df"):
        TradingTask(TradingConfig(reward="mine:Empty")).train_env_fns(1)[0]()

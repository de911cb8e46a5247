"""Positions are closed at the last fill of a session, and nothing else changes."""

from dataclasses import replace

import numpy as np
import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.trading.accounts.rules import TradingRules
from ml_pipeline.trading.envs.stateful import StatefulTradingEnv
from ml_pipeline.trading.market.data import market_from_arrays
from ml_pipeline.trading.settings import TradingConfig
from ml_pipeline.trading.task import TradingTask

# Sessions of four bars: 0 to 3, 4 to 7, 8 to 11.
ENDS = np.arange(12) % 4 == 3


@pytest.mark.parametrize(
    ("fill_at", "held"),
    [
        # Long is wanted throughout. Decided at 0, filled at the open of 1, closed at the open of 3, the last of the
        # session; bought again at the open of 4, for which the order is decided at the close of 3.
        ("next_open", [0, 1, 1, 0, 1, 1, 1, 0, 1, 1, 1, 0]),
        # Decided and filled at the close of 0 (seen in row 1), closed at that of 3 (row 4), bought again at that of 4.
        ("close", [0, 1, 1, 1, 0, 1, 1, 1, 0, 1, 1, 1]),
    ],
)
@pytest.mark.parametrize("mode", ["discrete", "target_weights", "trade"])
def test_what_is_wanted_is_held_between_the_closes(tiny_market, fill_at, held, mode):
    market = replace(tiny_market(np.full(12, 10.0)), session_end=ENDS)
    limits = {"trade_limit_percent": 100.0, "lot_size": 0.3}
    rules = TradingRules(mode, fee_bps=0.0, fill_at=fill_at, flat_at_close=True, **limits)
    env = StatefulTradingEnv(market, rules)
    env.reset(seed=0)
    for _ in range(11):
        env.step(2 if mode == "discrete" else np.array([1.0]))
    positions = env.ledger()["position_A"]
    np.testing.assert_array_equal(positions > 0, held)
    assert set(positions[~np.array(held, dtype=bool)]) == {0.0}


def test_a_limit_on_trades_does_not_keep_a_position_open(tiny_market):
    """Orders of a tenth of the equity: three buys, and one sale of all."""
    market = replace(tiny_market(np.full(12, 10.0)), session_end=np.arange(12) == 5)
    env = StatefulTradingEnv(market, TradingRules("trade", fee_bps=0.0, flat_at_close=True))
    env.reset(seed=0)
    for _ in range(6):
        env.step(np.array([1.0]))
    np.testing.assert_allclose(env.ledger()["position_A"], [0, 100, 200, 300, 400, 0, 100])


def test_it_needs_bars_shorter_than_a_session(tiny_market):
    for ends in (None, np.full(12, True)):
        market = replace(tiny_market(np.full(12, 10.0)), session_end=ends)
        with pytest.raises(UserError, match="flat_at_close needs bars shorter than a session; use shorter bars, or"):
            StatefulTradingEnv(market, TradingRules(flat_at_close=True))


def test_sessions_of_the_market_reach_every_environment_of_a_task():
    hours = np.arange("2024-01-01", "2024-02-01", dtype="datetime64[h]")
    closes = 100 * np.exp(np.random.default_rng(0).normal(0, 0.01, len(hours)).cumsum())
    market = market_from_arrays(["A"], hours, closes, open=closes, high=closes, low=closes, volume=closes)
    task = TradingTask(TradingConfig(flat_at_close=True, features=("log_return_1",)), market=market)
    env = task.evaluation_env("test")
    env.reset(seed=0)
    over = False
    while not over:
        *_, terminated, truncated, _ = env.step(2)
        over = terminated or truncated
    ledger = env.ledger()
    at_midnight = ledger["time"].astype("datetime64[h]").astype(int) % 24 == 23
    np.testing.assert_array_equal((ledger["position_A"] == 0)[1:], at_midnight[1:])
    task.score(lambda _: 2)
    task.batched_train_env(2).reset(seed=0)
    task.train_env_fns(1)[0]().reset(seed=0)

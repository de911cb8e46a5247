"""The price by which a target becomes a quantity, by hand: that of the fill, or the close of the decision."""

from dataclasses import replace

import numpy as np
import pytest

from ml_pipeline.trading.accounts.rules import TradingRules
from ml_pipeline.trading.envs.fast import FastTradingEnv
from ml_pipeline.trading.envs.stateful import StatefulTradingEnv

LONG = 2
AT_DECISION = TradingRules("discrete", fee_bps=0, size_at="decision")


def _ledger(market, rules, actions):
    env = StatefulTradingEnv(market, rules)
    env.reset(seed=0)
    for action in actions:
        _, _, _, _, info = env.step(action)
    return env.ledger(), info


def test_a_quantity_is_known_at_the_decision_and_paid_for_at_the_fill(tiny_market):
    # 10,000 are 100 at the close of 100; they cost 95 each at the open.
    market = tiny_market([100, 98], [100, 95])
    ledger, _ = _ledger(market, AT_DECISION, [LONG])
    assert ledger["filled_A"][1] == 100
    assert ledger["fill_price_A"][1] == 95
    assert ledger["cash"][1] == 10_000 - 100 * 95
    ledger, _ = _ledger(market, replace(AT_DECISION, size_at="fill"), [LONG])
    assert ledger["filled_A"][1] == pytest.approx(10_000 / 95)


def test_a_dearer_open_buys_what_the_cash_pays_for(tiny_market):
    # 100 at the open of 125 would cost 12,500.
    ledger, info = _ledger(tiny_market([100, 120], [100, 125]), AT_DECISION, [LONG])
    assert ledger["filled_A"][1] == 80
    assert ledger["cash"][1] == 0
    assert "cash" in info["limits"]


def test_at_the_close_the_two_are_the_same(tiny_market):
    market = tiny_market([100, 110, 90], [100, 105, 95])
    rules = replace(AT_DECISION, fill_at="close")
    assert not rules.acts_within_bars
    one, other = (_ledger(market, replace(rules, size_at=at), [LONG, 0])[0] for at in ("fill", "decision"))
    for name, column in one.items():
        np.testing.assert_array_equal(column, other[name])


@pytest.mark.parametrize("mode", ["discrete", "target_weights", "trade"])
def test_where_opens_are_the_closes_before_both_trade_alike(tiny_market, mode):
    close = 100 * np.exp(np.random.default_rng(3).normal(0, 0.02, (40, 2)).cumsum(axis=0))
    market = tiny_market(close, np.vstack([close[:1], close[:-1]]))
    rules = TradingRules(mode, fee_bps=3, size_at="decision", lot_size=0.5, min_cash=0.1)
    equities = []
    for size_at in ("fill", "decision"):
        env = FastTradingEnv(market, replace(rules, size_at=size_at), engine="plain")
        env.reset(seed=0)
        env.action_space.seed(0)
        over = False
        while not over:
            _, _, terminated, truncated, _ = env.step(env.action_space.sample())
            equities.append(env.equity)
            over = terminated or truncated
    half = len(equities) // 2
    assert equities[:half] == equities[half:]

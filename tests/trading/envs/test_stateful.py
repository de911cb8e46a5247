import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ml_pipeline.config.errors import UserError
from ml_pipeline.trading.accounts.ledger import symbols_of
from ml_pipeline.trading.accounts.rules import TradingRules
from ml_pipeline.trading.envs.fast import FastTradingEnv
from ml_pipeline.trading.envs.stateful import StatefulTradingEnv


def _random_market(tiny_market, generator, n_assets):
    close = 100 * np.exp(generator.normal(0, 0.02, (50, n_assets)).cumsum(axis=0))
    open_ = close * np.exp(generator.normal(0, 0.01, close.shape))
    tradable = generator.random(close.shape) < 0.9
    close[:10, 0] = open_[:10, 0] = 0.0  # the first asset is listed late
    tradable[:10, 0] = False
    return tiny_market(close, open_, tradable)


def test_ledger_by_hand(tiny_market):
    market = tiny_market(close=[100, 110, 120, 60], open=[100, 100, 110, 120])
    env = StatefulTradingEnv(market, TradingRules(fee_bps=100, initial_cash=10_100))
    env.reset(seed=0)
    for action in (2, 2, 0):
        *_, info = env.step(action)
    assert info.pop("limits") == ()
    assert info == pytest.approx({"equity": 17_760, "cash": 23_760, "costs_paid": 340})
    ledger = env.ledger()
    assert list(ledger) == ["time", "equity", "cash", "costs_paid", "close_A", "position_A", "filled_A", "fill_price_A"]
    np.testing.assert_array_equal(ledger["time"], market.times)
    expected = {
        "equity": [10_100, 11_000, 12_000, 17_760],
        "cash": [10_100, 0, 0, 23_760],
        "costs_paid": [0, 100, 100, 340],
        "close_A": [100, 110, 120, 60],
        "position_A": [0, 100, 100, -100],
        "filled_A": [0, 100, 0, -200],
        "fill_price_A": [100, 100, 110, 120],
    }
    for name, values in expected.items():
        np.testing.assert_allclose(ledger[name], values, rtol=1e-12, err_msg=name)
    assert [trade.profit for trade in env.trades] == pytest.approx([20 * 100 - 100 - 120, 60 * 100 - 120])


@given(
    seed=st.integers(0, 2**32 - 1),
    n_assets=st.integers(1, 4),
    fill_at=st.sampled_from(["next_open", "close"]),
    mode=st.sampled_from(["discrete", "target_weights"]),
    fee_bps=st.sampled_from([0.0, 30.0]),
)
def test_agrees_with_the_fast_one_and_its_ledger_adds_up(tiny_market, *, seed, n_assets, fill_at, mode, fee_bps):
    generator = np.random.default_rng(seed)
    market = _random_market(tiny_market, generator, n_assets)
    rules = TradingRules(mode, fill_at=fill_at, fee_bps=fee_bps)
    fast, stateful = FastTradingEnv(market, rules), StatefulTradingEnv(market, rules)
    fast.action_space.seed(seed)
    fast.reset(seed=0)
    stateful.reset(seed=0)
    rewards, over = [], False
    while not over:
        action = fast.action_space.sample()
        expected, got = fast.step(action), stateful.step(action)
        np.testing.assert_array_equal(expected[0], got[0])
        assert expected[1] == pytest.approx(got[1], abs=1e-9)
        assert expected[2:4] == got[2:4]
        rewards.append(got[1])
        over = got[2] or got[3]

    ledger = stateful.ledger()
    equity, cash = ledger["equity"], ledger["cash"]
    paid_for = np.zeros(len(equity))
    value = np.zeros(len(equity))
    for symbol in symbols_of(ledger):
        filled = ledger[f"filled_{symbol}"]
        paid_for += filled * np.nan_to_num(ledger[f"fill_price_{symbol}"])
        value += ledger[f"position_{symbol}"] * np.nan_to_num(ledger[f"close_{symbol}"])
        np.testing.assert_allclose(np.cumsum(filled), ledger[f"position_{symbol}"], atol=1e-9)
    costs = np.diff(ledger["costs_paid"], prepend=0.0)
    np.testing.assert_allclose(cash, rules.initial_cash - np.cumsum(paid_for + costs), atol=1e-9 * rules.initial_cash)
    np.testing.assert_allclose(equity, cash + value, rtol=1e-9)
    np.testing.assert_allclose(np.cumsum(rewards), np.log(equity[1:] / equity[0]), atol=1e-9)
    assert np.all(cash >= 0)
    profits = sum(trade.profit for trade in stateful.trades)
    assert profits == pytest.approx(equity[-1] - equity[0], abs=1e-6 * rules.initial_cash)


@pytest.mark.parametrize(
    ("rules", "weights", "limits"),
    [
        ({}, [0.4, 0.5], ()),
        ({}, [1.0, 0.0], ("cash",)),  # the fee does not fit in
        ({"max_position": 0.4}, [0.5, 0.0], ("max_position",)),
        ({"max_position": 0.4}, [0.4, 0.0], ()),
        ({"max_gross": 0.5}, [0.5, -0.3], ("max_gross",)),
        ({"lot_size": 30}, [0.5, 0.0], ("lot_size",)),
        ({"lot_size": 50}, [0.5, 0.0], ()),
        ({"min_order": 2_000}, [0.1, 0.5], ("min_order",)),
        ({"min_cash": 0.6}, [0.5, 0.0], ("cash", "min_cash")),
        ({"trade_limit_percent": 30}, [0.5, 0.2], ("trade_limit_percent",)),
    ],
)
def test_limits_are_named_when_they_bind(tiny_market, rules, weights, limits):
    env = StatefulTradingEnv(tiny_market(close=np.full((4, 2), 100.0)), TradingRules("target_weights", **rules))
    env.reset(seed=0)
    *_, info = env.step(np.array(weights))
    assert info["limits"] == limits
    assert env.limit_counts == dict.fromkeys(limits, 1)


def test_a_target_beyond_a_limit_is_refused_where_the_rules_say_so(tiny_market):
    rules = TradingRules("target_weights", max_position=0.5, max_gross=0.8, on_limit="refuse")
    env = StatefulTradingEnv(tiny_market(close=np.full((4, 2), 100.0)), rules)
    env.reset(seed=0)
    with pytest.raises(UserError, match=r"target of B is -0\.6 of the equity, but max_position is 0\.5"):
        env.step(np.array([0.1, -0.6]))
    with pytest.raises(UserError, match=r"add up to 0\.9 of the equity, but max_gross is 0\.8"):
        env.step(np.array([0.4, -0.5]))
    assert env.step(np.array([0.3, -0.5]))[4]["limits"] == ()


def test_prices_before_the_listing_are_nan(tiny_market):
    market = tiny_market(close=[[1, 0], [1, 0], [1, 5]], tradable=[[1, 0], [1, 0], [1, 1]])
    env = StatefulTradingEnv(market, TradingRules("target_weights"))
    env.reset(seed=0)
    env.step(np.zeros(2))
    env.step(np.zeros(2))
    np.testing.assert_array_equal(env.ledger()["close_B"], [np.nan, np.nan, 5])


def test_a_reset_begins_a_new_ledger(tiny_market):
    env = StatefulTradingEnv(tiny_market(close=[1, 2, 3]))
    env.reset(seed=0)
    env.step(2)
    before = env.ledger()
    env.reset()
    assert len(env.ledger()["time"]) == 1
    assert len(before["time"]) == 2

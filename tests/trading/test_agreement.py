"""Every environment against a ledger written from the rules, on random orders, with every cost and limit on."""

import importlib.util
import math
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ml_pipeline.trading.batched_env import BatchedTradingEnv
from ml_pipeline.trading.fast_env import FastTradingEnv
from ml_pipeline.trading.rules import TradingRules
from ml_pipeline.trading.stateful_env import StatefulTradingEnv

HAS_NUMBA = importlib.util.find_spec("numba") is not None


def reference(market, rules, actions):  # noqa: PLR0912, PLR0915  # as plain as can be
    """Equity bar by bar, written from the rules and not from the code; ends at ruin."""
    n_bars, n_assets = market.close.shape
    cash, held, equity = rules.initial_cash, np.zeros(n_assets), [rules.initial_cash]
    position = np.zeros(n_assets)
    spreads = np.zeros(market.close.shape) if market.half_spread is None else market.half_spread
    sell_fee = rules.fee_bps if rules.sell_fee_bps is None else rules.sell_fee_bps
    limit = rules.trade_limit_percent / 100 if rules.trade_limit_percent else math.inf
    for t in range(n_bars - 1):
        if rules.fill_at == "next_open":
            price, can = market.open[t + 1], market.tradable[t + 1] & (market.close[t] > 0)
        else:
            price, can = market.close[t], market.tradable[t].copy()
        worth = max(cash + held @ price, 0.0)
        targets = np.zeros(n_assets)
        for a in range(n_assets):
            action = actions[t][a]
            if rules.action_mode in {"discrete", "buy_hold_sell"}:
                lowest = -1 if rules.allow_short else 0
                step = rules.action_mode == "buy_hold_sell"
                wanted = np.clip(position[a] + action - 1, lowest, 1) if step else rules.positions[action]
                can[a] &= wanted != position[a]
                position[a] = wanted if can[a] else position[a]
                targets[a] = wanted / n_assets
                continue
            lowest = -1.0 if rules.allow_short else 0.0
            if rules.action_mode == "trade":
                action = np.clip(action, -1, 1)
                unit = 0.1 if limit == math.inf else limit
                targets[a] = held[a] * price[a] / max(worth, 1e-300) + action * unit
            else:
                action = targets[a] = np.clip(action, lowest, 1)
            can[a] &= abs(action) >= rules.action_threshold
        targets = np.clip(targets, -rules.max_position if rules.allow_short else 0.0, rules.max_position)
        gross = np.abs(targets).sum()
        targets = targets * min(1.0, rules.max_gross / gross if gross > 0 else 1.0)
        most = 0.1 * worth if rules.action_mode == "trade" and limit == math.inf else limit * worth if worth else 0.0
        if rules.trade_limit_percent is None and rules.action_mode != "trade":
            most = math.inf

        def whole(quantity):
            if not rules.lot_size:
                return quantity
            return math.copysign(math.floor(abs(quantity) / rules.lot_size + 1e-9) * rules.lot_size, quantity)

        smallest = max(rules.min_order, 1e-9 * worth)
        buys = {}
        for a in range(n_assets):
            if not can[a] or price[a] == 0:
                continue
            order = targets[a] * worth / price[a] - held[a]
            order = whole(np.clip(order, -most / price[a], most / price[a]))
            value = abs(order) * price[a]
            if value <= smallest:
                continue
            if order > 0:
                buys[a] = order
                continue
            cost = value * ((sell_fee + rules.slippage_bps) / 1e4 + spreads[t, a]) + rules.fixed_fee
            if value > cost:
                cash += value - cost
                held[a] += order
        rate = {a: (rules.fee_bps + rules.slippage_bps) / 1e4 + spreads[t, a] for a in buys}
        needed = sum(order * price[a] * (1 + rate[a]) for a, order in buys.items())
        free = max(cash - rules.min_cash * worth - rules.fixed_fee * len(buys), 0.0)
        for a, order in buys.items():
            quantity = whole(order * min(1.0, free / needed))
            value = quantity * price[a]
            if value > smallest:
                cash -= value * (1 + rate[a]) + rules.fixed_fee
                held[a] += quantity
        short = -np.minimum(held, 0) @ market.close[t + 1]
        fee = short * rules.borrow_bps_per_year / 1e4 / market.periods_per_year
        called, cash = fee > max(cash, 0.0), max(cash - fee, 0.0)
        equity.append(cash + held @ market.close[t + 1])
        if called or equity[-1] <= 0.01 * equity[0]:
            break
    return np.array(equity)


def run_single(kind, market, rules, actions):
    """(equity by the rewards, observations) of one pass."""
    env = FastTradingEnv(market, rules, engine="compiled") if kind == "compiled" else kind(market, rules)
    observations, rewards, over = [env.reset(seed=0)[0]], [], False
    while not over:
        action = actions[len(rewards)]
        discrete = rules.action_mode in {"discrete", "buy_hold_sell"}
        step = env.step(int(action[0]) if discrete and len(action) == 1 else action)
        observations.append(step[0])
        rewards.append(step[1])
        over = step[2] or step[3]
    assert np.all(np.isfinite(observations))
    return np.exp(np.concatenate([[0.0], np.cumsum(rewards)])) * rules.initial_cash, np.array(observations), env


def run_batched(market, rules, actions, device, engine="plain"):
    """As above, of two environments that do the same."""
    env = BatchedTradingEnv(market, 2, rules, device=device, engine=engine)
    observations, rewards = [np.asarray(env.reset(seed=0)[0])], []
    equity = [rules.initial_cash]
    for action in actions:
        given = np.stack([action, action])
        obs, reward, terminated, truncated, infos = env.step(given if device is None else _tensor(given))
        over = bool((terminated | truncated)[0])
        observations.append(np.asarray(infos["final_obs"] if over else obs))
        rewards.append(np.asarray(reward))
        equity.append(float(env.equity[0]))
        if over:
            break
    observations, rewards = np.array(observations), np.array(rewards, dtype=np.float64)
    np.testing.assert_array_equal(observations[:, 0], observations[:, 1])
    return np.exp(np.concatenate([[0.0], np.cumsum(rewards[:, 0])])) * rules.initial_cash, observations[:, 0], equity


def _tensor(values):
    import torch

    return torch.from_numpy(values)


@settings(max_examples=150)
@given(
    seed=st.integers(0, 2**32 - 1),
    n_assets=st.integers(1, 4),
    mode=st.sampled_from(["discrete", "target_weights", "buy_hold_sell", "trade"]),
    volatility=st.sampled_from([0.01, 0.05, 0.3]),
)
def test_every_environment_equals_a_reference_written_from_the_rules(random_case, *, seed, n_assets, mode, volatility):
    market, rules, actions = random_case(seed, n_assets, mode, volatility)
    expected = reference(market, rules, actions)
    worth = np.maximum(expected, 1e-6 * expected[0])

    fast, seen, _ = run_single(FastTradingEnv, market, rules, actions)
    np.testing.assert_allclose(fast, worth, rtol=1e-9)
    stateful, seen_stateful, env = run_single(StatefulTradingEnv, market, rules, actions)
    np.testing.assert_array_equal(stateful, fast)
    np.testing.assert_array_equal(seen_stateful, seen)
    np.testing.assert_allclose(env.ledger()["equity"], expected, rtol=1e-9, atol=1e-9 * rules.initial_cash)
    assert (env.ledger()["cash"] >= 0).all()
    batched, seen_batched, equity = run_batched(market, rules, actions, None)
    np.testing.assert_allclose(batched, fast, rtol=1e-9)
    np.testing.assert_allclose(equity[1:-1], expected[1:-1], rtol=1e-9, atol=1e-9 * rules.initial_cash)
    np.testing.assert_allclose(seen_batched, seen, rtol=1e-6, atol=1e-6)


@settings(max_examples=25)
@given(
    seed=st.integers(0, 2**32 - 1),
    n_assets=st.integers(1, 3),
    mode=st.sampled_from(["discrete", "target_weights", "buy_hold_sell", "trade"]),
)
def test_tensors_equal_arrays(random_case, *, seed, n_assets, mode):
    market, rules, actions = random_case(seed, n_assets, mode, 0.05)
    _, seen, equity = run_batched(market, rules, actions, None)
    _, seen_tensors, equity_tensors = run_batched(market, rules, actions, "cpu")
    np.testing.assert_allclose(equity_tensors, equity, rtol=1e-9)
    np.testing.assert_allclose(seen_tensors, seen, rtol=1e-6, atol=1e-6)


@pytest.mark.skipif(not HAS_NUMBA, reason="numba is not installed")
@pytest.mark.parametrize("mode", ["discrete", "target_weights", "buy_hold_sell", "trade"])
def test_machine_code_equals_plain_python_to_the_last_digit(random_case, mode):
    for seed in range(20):
        market, rules, actions = random_case(seed, 1 + seed % 5, mode, 0.05)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # those of the compiler
            compiled, seen, _ = run_single("compiled", market, rules, actions)
        plain, seen_plain, _ = run_single(FastTradingEnv, market, rules, actions)
        np.testing.assert_array_equal(compiled, plain)
        np.testing.assert_array_equal(seen, seen_plain)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            batched, seen_batched, _ = run_batched(market, rules, actions, None, "compiled")
        np.testing.assert_allclose(batched, plain, rtol=1e-9)
        np.testing.assert_allclose(seen_batched, seen_plain, rtol=1e-6, atol=1e-6)


def test_an_account_that_cannot_pay_for_what_it_borrowed_ends_in_every_environment(tiny_market):
    """Short 50 of A and long 50 of B, at 100 each, leave 10,000 of cash, of which 50 and 125 go for the borrowing. At
    250 the other 9,825 cover 39.3 of A; the 10.7 that stay short ask for 1 % of 2,675, and there is nothing."""
    market = tiny_market(close=[[100, 100], [100, 100], [250, 200], [250, 200], [250, 200]])
    rules = TradingRules("discrete", fee_bps=0, borrow_bps_per_year=252 * 100)
    actions = np.array([[0, 2], [0, 2], [1, 2], [1, 2]])
    expected = reference(market, rules, actions)
    assert len(expected) == 4
    for kind in (FastTradingEnv, StatefulTradingEnv):
        env = kind(market, rules)
        env.reset(seed=0)
        ends = [env.step(action)[2:4] for action in actions[:3]]
        assert ends == [(False, False), (False, False), (True, False)]
    assert env.ledger()["cash"].min() == 0.0
    for device in (None, "cpu"):
        _, _, equity = run_batched(market, rules, actions, device)
        assert len(equity) == len(expected)

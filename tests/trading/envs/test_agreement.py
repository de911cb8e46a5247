"""Every environment against a ledger written from the rules, on random orders, with every cost and limit on."""

import importlib.util
import math
import warnings
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ml_pipeline.trading.accounts.rules import TradingRules
from ml_pipeline.trading.envs.batched import BatchedTradingEnv
from ml_pipeline.trading.envs.fast import FastTradingEnv
from ml_pipeline.trading.envs.stateful import StatefulTradingEnv
from tests.examples import COSTLY

HAS_NUMBA = importlib.util.find_spec("numba") is not None


class ReferenceAccount:
    """An account as plain as can be, written from the rules and not from the code. A assets."""

    def __init__(self, market, rules):
        self.market, self.rules = market, rules
        n_assets = market.close.shape[1]
        self.cash, self.held, self.position = rules.initial_cash, np.zeros(n_assets), np.zeros(n_assets)
        self.entry, self.lent = np.zeros(n_assets), 0.0
        self.from_limit = np.zeros(n_assets, dtype=bool)
        self.limit = math.inf if rules.trade_limit_percent is None else rules.trade_limit_percent / 100
        self.lowest = -1 if rules.allow_short else 0
        self.leverage, self.largest = max(1.0, rules.max_gross), max(1.0, rules.max_position)
        self.days = np.append(np.diff(market.day if rules.financing_bps_per_year is not None else [0]), 0)

    def step(self, t, action):
        """Fill the orders of bar t, pay for what is borrowed; return the equity at the next close, and whether a fee
        could not be paid."""
        market, rules = self.market, self.rules
        if rules.fill_at == "next_open":
            price, can = market.open[t + 1], market.tradable[t + 1] & (market.close[t] > 0)
        else:
            price, can = market.close[t], market.tradable[t].copy()
        worth = max(self.cash + self.held @ price, 0.0)
        self.position_before = self.position.copy()
        spread = 0.0 * price if market.half_spread is None else market.half_spread[t]
        if rules.flat_at_close and market.session_end[t + 1 if rules.fill_at == "next_open" else t]:
            self.close(can, price, spread, worth)
        else:
            at_decision = rules.limit_bps is not None or rules.size_at == "decision"
            sized_at = market.close[t] if at_decision else price
            worth = max(self.cash + self.held @ sized_at, 0.0)
            targets = self.targets(action, can, sized_at, worth)
            orders, before = self.orders(targets, can, sized_at, worth), self.position_before.copy()
            if rules.limit_bps is not None:
                orders, price = self.reached(orders, t)
            held = self.held.copy()
            self.fill(orders, price, spread, worth)
            if rules.limit_bps is not None:
                self.position = np.where(self.held == held, before, self.position)
                self.from_limit = (self.held != held) & (price != market.open[t + 1])
                self.limit_price = price
        self.leave(t + 1, spread, worth)
        self.from_limit[:] = False
        close = market.close[t + 1]
        gross = np.abs(self.held) @ close
        if self.leverage > 1 and self.cash + self.held @ close < rules.maintenance_margin * gross:
            self.close_out(np.flatnonzero(market.tradable[t + 1] * self.held), close, spread, worth)
        yearly = -np.minimum(self.held, 0) @ close * rules.borrow_bps_per_year / 1e4
        fee = yearly / market.periods_per_year
        if rules.financing_bps_per_year is not None:
            owed = max(-self.cash, 0.0) if self.leverage > 1 else 0.0
            fee = (yearly + owed * rules.financing_bps_per_year / 1e4) / 365 * self.days[t + 1]
        if self.leverage > 1:
            self.cash -= fee
            return self.cash + self.held @ close, False
        margin_called, self.cash = fee > max(self.cash, 0.0), max(self.cash - fee, 0.0)
        return self.cash + self.held @ market.close[t + 1], margin_called

    def reached(self, orders, t):
        """(orders that fill within bar t + 1, prices) if they are limit orders decided at the close of bar t."""
        market, kept, prices = self.market, {}, self.market.open[t + 1].copy()
        leaving = self.exits(t + 1)
        for a, order in orders.items():
            side, opened = np.sign(order), prices[a]
            limit = market.close[t, a] * (1 - side * self.rules.limit_bps / 1e4)
            best = (market.high, market.low)[int(side > 0)][t + 1, a]
            if side * best >= side * limit:
                continue
            if side * opened > side * limit:
                if a in leaving:
                    continue
                prices[a] = limit
            kept[a] = order
        return kept, prices

    def exits(self, bar):
        """By asset whose stop or target lies within the bar, the price; that of the stop if both do."""
        rules, market = self.rules, self.market
        at = {}
        if rules.stop_loss is None and rules.take_profit is None:
            return at
        for a in np.flatnonzero(market.tradable[bar] * self.held):
            side, opened = np.sign(self.held[a]), market.open[bar, a]
            worst, best = (each[bar, a] for each in (market.low, market.high)[:: int(side)])
            if self.from_limit[a]:
                opened, best = self.limit_price[a], market.close[bar, a]
            if rules.take_profit is not None:
                target = self.entry[a] * (1 + side * rules.take_profit)
                if (best - target) * side >= 0:
                    at[a] = side * max(side * opened, side * target)
            if rules.stop_loss is not None:
                stop = self.entry[a] * (1 - side * rules.stop_loss)
                if (worst - stop) * side <= 0:
                    at[a] = side * min(side * opened, side * stop)
        return at

    def leave(self, bar, spread, worth):
        """Close each position whose stop or target lies within the bar."""
        at = self.exits(bar)
        self.close_out(at, np.array([at.get(a, 0.0) for a in range(len(self.held))]), spread, worth)

    def close_out(self, assets, prices, spread, worth):
        """Market orders without limits; with leverage whatever they cost is borrowed."""
        limited, self.lent = self.rules, math.inf if self.leverage > 1 else 0.0
        self.rules = replace(limited, lot_size=0.0, min_order=0.0, min_cash=0.0, limit_bps=None)
        self.fill({a: -self.held[a] for a in assets}, prices, spread, worth)
        self.rules, self.lent = limited, 0.0
        for a in assets:
            self.position[a] = 0 if self.held[a] == 0 else self.position[a]

    def note(self, a, quantity, price):
        """Fill, and renew the average entry price of what is held."""
        before, self.held[a] = self.held[a], self.held[a] + quantity
        if before * self.held[a] <= 0:
            self.entry[a] = price
        elif before * quantity > 0:
            self.entry[a] = (before * self.entry[a] + quantity * price) / self.held[a]

    def close(self, can, price, spread, worth):
        """Fill the opposite of every position, without any limit."""
        orders = {a: -self.held[a] for a in np.flatnonzero(can & (price > 0))}
        orders = {a: order for a, order in orders.items() if abs(order) * price[a] > 1e-9 * worth}
        self.position[can] = 0
        limited, self.lent = self.rules, math.inf if self.leverage > 1 else 0.0
        self.rules = replace(limited, lot_size=0.0, min_order=0.0, min_cash=0.0, limit_bps=None)
        self.fill(orders, price, spread, worth)
        self.rules, self.lent = limited, 0.0

    def targets(self, action, can, price, worth):
        """Weights (A,) that an action asks for; what it leaves alone is taken out of `can`."""
        rules, n_assets = self.rules, len(price)
        targets = np.zeros(n_assets)
        for a in range(n_assets):
            if rules.action_mode in {"discrete", "buy_hold_sell"}:
                targets[a] = self.take_position(a, action[a], can) / n_assets * self.leverage
                continue
            wanted = np.clip(action[a], self.lowest * self.largest, self.largest)
            if rules.action_mode == "trade":
                wanted = np.clip(action[a], -1.0, 1.0)
            can[a] &= abs(wanted) >= rules.action_threshold
            if rules.action_mode == "trade":
                unit = 0.1 if self.limit == math.inf else self.limit
                wanted = self.held[a] * price[a] / max(worth, 1e-300) + wanted * unit
            targets[a] = wanted
        targets = np.clip(targets, self.lowest * rules.max_position, rules.max_position)
        gross = np.abs(targets).sum()
        return targets * min(1.0, rules.max_gross / gross if gross > 0 else 1.0)

    def take_position(self, a, action, can):
        """Short, flat or long: the one that is chosen, or a step from where it is."""
        rules, old = self.rules, self.position[a]
        step = rules.action_mode == "buy_hold_sell"
        wanted = np.clip(old + action - 1, self.lowest, 1) if step else rules.positions[action]
        can[a] &= wanted != old
        self.position[a] = wanted if can[a] else old
        return wanted

    def orders(self, targets, can, price, worth):
        """Signed quantities by asset, within the largest and above the smallest order."""
        most = self.limit * worth if worth else 0.0
        if self.limit == math.inf:
            most = 0.1 * worth if self.rules.action_mode == "trade" else math.inf
        orders = {}
        for a in np.flatnonzero(can & (price > 0)):
            order = targets[a] * worth / price[a] - self.held[a]
            order = self.whole(np.clip(order, -most / price[a], most / price[a]))
            if abs(order) * price[a] > self.smallest(worth):
                orders[a] = order
        return orders

    def fill(self, orders, price, spread, worth):
        """Sales first; what they use in, with the cash there is, is shared by the purchases."""
        rules, before = self.rules, self.cash
        sell_fee = rules.fee_bps if rules.sell_fee_bps is None else rules.sell_fee_bps
        for a, order in orders.items():
            value = abs(order) * price[a]
            cost = value * ((sell_fee + rules.slippage_bps) / 1e4 + spread[a]) + rules.fixed_fee
            if order < 0 and value > cost:
                self.cash += value - cost
                self.note(a, order, price[a])
        buys = {a: order for a, order in orders.items() if order > 0}
        rate = (rules.fee_bps + rules.slippage_bps) / 1e4 + spread
        needed = sum(order * price[a] * (1 + rate[a]) for a, order in buys.items())
        reserve = (rules.min_cash - self.leverage + 1) * worth - self.lent
        cash = self.cash if rules.limit_bps is None else before
        free = max(cash - reserve - rules.fixed_fee * len(buys), 0.0)
        for a, order in buys.items():
            quantity = self.whole(order * min(1.0, free / needed))
            value = quantity * price[a]
            if value > self.smallest(worth):
                self.cash -= value * (1 + rate[a]) + rules.fixed_fee
                self.note(a, quantity, price[a])

    def smallest(self, worth):
        return max(self.rules.min_order, 1e-9 * worth)

    def whole(self, quantity):
        """Whole lots of it."""
        lot = self.rules.lot_size
        return math.copysign(math.floor(abs(quantity) / lot + 1e-9) * lot, quantity) if lot else quantity


def reference(market, rules, actions):
    """Equity bar by bar; ends at ruin."""
    account, equity = ReferenceAccount(market, rules), [rules.initial_cash]
    for t in range(len(market.close) - 1):
        after, margin_called = account.step(t, actions[t])
        equity.append(after)
        if margin_called or after <= 0.01 * equity[0]:
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


@pytest.mark.slow
@given(
    seed=st.integers(0, 2**32 - 1),
    n_assets=st.integers(1, 4),
    mode=st.sampled_from(["discrete", "target_weights", "buy_hold_sell", "trade"]),
    volatility=st.sampled_from([0.01, 0.05, 0.3]),
    within=st.booleans(),
)
def test_every_environment_equals_a_reference_written_from_the_rules(
    random_case, *, seed, n_assets, mode, volatility, within
):
    market, rules, actions = random_case(seed, n_assets, mode, volatility, within=within)
    expected = reference(market, rules, actions)
    worth = np.maximum(expected, 1e-6 * expected[0])

    fast, seen, _ = run_single(FastTradingEnv, market, rules, actions)
    np.testing.assert_allclose(fast, worth, rtol=1e-9)
    stateful, seen_stateful, env = run_single(StatefulTradingEnv, market, rules, actions)
    np.testing.assert_array_equal(stateful, fast)
    np.testing.assert_array_equal(seen_stateful, seen)
    np.testing.assert_allclose(env.ledger()["equity"], expected, rtol=1e-9, atol=1e-9 * rules.initial_cash)
    assert rules.max_gross > 1 or (env.ledger()["cash"] >= 0).all()
    batched, seen_batched, equity = run_batched(market, rules, actions, None)
    np.testing.assert_allclose(batched, fast, rtol=1e-9)
    np.testing.assert_allclose(equity[1:-1], expected[1:-1], rtol=1e-9, atol=1e-9 * rules.initial_cash)
    np.testing.assert_allclose(seen_batched, seen, rtol=1e-6, atol=1e-6)


@settings(max_examples=COSTLY)
@given(
    seed=st.integers(0, 2**32 - 1),
    n_assets=st.integers(1, 3),
    mode=st.sampled_from(["discrete", "target_weights", "buy_hold_sell", "trade"]),
    within=st.booleans(),
)
def test_tensors_equal_arrays(random_case, *, seed, n_assets, mode, within):
    market, rules, actions = random_case(seed, n_assets, mode, 0.05, within=within)
    _, seen, equity = run_batched(market, rules, actions, None)
    _, seen_tensors, equity_tensors = run_batched(market, rules, actions, "cpu")
    np.testing.assert_allclose(equity_tensors, equity, rtol=1e-9)
    np.testing.assert_allclose(seen_tensors, seen, rtol=1e-6, atol=1e-6)


@pytest.mark.slow
@pytest.mark.skipif(not HAS_NUMBA, reason="numba is not installed")
@pytest.mark.parametrize("mode", ["discrete", "target_weights", "buy_hold_sell", "trade"])
def test_machine_code_equals_plain_python_to_the_last_digit(random_case, mode):
    for seed in range(30):
        market, rules, actions = random_case(seed, 1 + seed % 5, mode, 0.05, within=seed % 3 > 0)
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


def _with_sessions(market, rules, seed):
    """Sessions of random length, the last of which the data cut off."""
    ends = np.random.default_rng(seed).random(market.n_bars) < 0.2
    ends[[5, -1]] = True, False
    return replace(market, session_end=ends), replace(rules, flat_at_close=True)


@pytest.mark.long
@given(
    seed=st.integers(0, 2**32 - 1),
    n_assets=st.integers(1, 4),
    mode=st.sampled_from(["discrete", "target_weights", "buy_hold_sell", "trade"]),
    within=st.booleans(),
)
@example(seed=59281, n_assets=3, mode="discrete", within=True).via(
    "a choice is long, but its limited order only closed the short"
)
def test_every_environment_is_flat_at_the_close_as_the_reference_is(random_case, *, seed, n_assets, mode, within):
    market, rules, actions = random_case(seed, n_assets, mode, 0.05, within=within)
    market, rules = _with_sessions(market, rules, seed)
    expected = reference(market, rules, actions)
    fast, seen, _ = run_single(FastTradingEnv, market, rules, actions)
    np.testing.assert_allclose(fast, np.maximum(expected, 1e-6 * expected[0]), rtol=1e-9)
    stateful, seen_stateful, env = run_single(StatefulTradingEnv, market, rules, actions)
    np.testing.assert_allclose(env.ledger()["equity"], expected, rtol=1e-9, atol=1e-9 * rules.initial_cash)
    np.testing.assert_array_equal(stateful, fast)
    np.testing.assert_array_equal(seen_stateful, seen)
    for device in (None, "cpu"):
        batched, seen_batched, _ = run_batched(market, rules, actions, device)
        np.testing.assert_allclose(batched, fast, rtol=1e-9 if device is None else 1e-4)  # rewards of float32
        np.testing.assert_allclose(seen_batched, seen, rtol=1e-6, atol=1e-6)


@pytest.mark.slow
@pytest.mark.skipif(not HAS_NUMBA, reason="numba is not installed")
@pytest.mark.parametrize("mode", ["discrete", "target_weights", "buy_hold_sell", "trade"])
def test_machine_code_is_flat_at_the_close_to_the_last_digit(random_case, mode):
    for seed in range(10):
        market, rules, actions = random_case(seed, 1 + seed % 5, mode, 0.05, within=seed % 2 > 0)
        market, rules = _with_sessions(market, rules, seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # those of the compiler
            compiled, seen, _ = run_single("compiled", market, rules, actions)
            batched, _, _ = run_batched(market, rules, actions, None, "compiled")
        plain, seen_plain, _ = run_single(FastTradingEnv, market, rules, actions)
        np.testing.assert_array_equal(compiled, plain)
        np.testing.assert_array_equal(seen, seen_plain)
        np.testing.assert_allclose(batched, plain, rtol=1e-9)


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

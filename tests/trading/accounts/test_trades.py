from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ml_pipeline.trading.accounts.execution import RUIN_FRACTION
from ml_pipeline.trading.accounts.ledger import per_symbol, symbols_of
from ml_pipeline.trading.accounts.rules import ACTION_MODES, TradingRules
from ml_pipeline.trading.accounts.trades import costs_of, trades_of
from ml_pipeline.trading.envs.stateful import StatefulTradingEnv


def _ledger(filled, price, costs_paid=None, close=None):
    n = len(filled)
    return {
        "time": np.datetime64("2024-01-01", "ns") + np.arange(n) * np.timedelta64(1, "D"),
        "costs_paid": np.zeros(n) if costs_paid is None else np.array(costs_paid, dtype=float),
        "close_A": np.array(price if close is None else close, dtype=float),
        "position_A": np.cumsum(filled, dtype=float),
        "filled_A": np.array(filled, dtype=float),
        "fill_price_A": np.array(price, dtype=float),
    }


def test_a_trade_runs_from_flat_to_flat():
    # 2 at 10 and 1 at 13 cost 33, an average of 11; 3 at 12 use 36. 1 a fill is paid.
    (trade,) = trades_of(_ledger([0, 2, 1, 0, -3], [9, 10, 13, 15, 12], costs_paid=[0, 1, 2, 2, 3]))
    assert (trade.symbol, trade.side, trade.open) == ("A", "long", False)
    assert (str(trade.entry_time)[:10], str(trade.exit_time)[:10], trade.holding_bars) == (
        "2024-01-02",
        "2024-01-05",
        3,
    )
    assert (trade.quantity, trade.entry_price, trade.exit_price) == (3, 11, 12)
    assert trade.profit == pytest.approx(36 - 33 - 3)


def test_a_fill_through_zero_ends_one_trade_and_begins_the_next():
    # Long 1 from 10 to 14, then short 2 from 14 to 9; the costs of 3 at the turn go by value, 1 and 2.
    long, short = trades_of(_ledger([1, -3, 2], [10, 14, 9], costs_paid=[0, 3, 3]))
    assert (long.side, long.profit, long.holding_bars) == ("long", pytest.approx(4 - 1), 1)
    assert (short.side, short.profit, short.holding_bars) == ("short", pytest.approx(10 - 2), 1)
    assert (short.entry_price, short.exit_price, short.quantity) == (14, 9, 2)


def test_what_is_open_at_the_end_is_valued_at_the_last_close():
    (trade,) = trades_of(_ledger([0, -2, 1], [10, 10, 8], close=[10, 9, 7]))
    assert trade.open
    assert trade.side == "short"
    # 2 sold for 20; one bought back for 8, the other would cost 7.
    assert trade.profit == pytest.approx(20 - 8 - 7)


def test_a_trade_opened_in_the_last_bar_and_none_at_all():
    (trade,) = trades_of(_ledger([0, 0, 1], [1, 1, 4], close=[1, 1, 5]))
    assert (trade.open, trade.profit, trade.holding_bars) == (True, 1, 0)
    assert trades_of(_ledger([0, 0, 0], [1, 1, 1])) == []


def _run(market, rules, actions):
    """The ledger of an episode, to the end of the actions or of the account."""
    env = StatefulTradingEnv(market, rules)
    env.reset()
    for action in actions[: market.n_bars - 1]:
        one_choice = len(market.symbols) == 1 and rules.action_mode in {"discrete", "buy_hold_sell"}
        if any(env.step(int(action[0]) if one_choice else action)[2:4]):
            break
    return env.ledger()


def _gains(ledger):
    """What each asset made before costs, bar by bar: the change of what is held less what was paid for it, (A,)."""
    gains = []
    for symbol in symbols_of(ledger):
        position, filled = ledger[f"position_{symbol}"].tolist(), ledger[f"filled_{symbol}"].tolist()
        close, price = (np.nan_to_num(ledger[f"{kind}_{symbol}"]).tolist() for kind in ("close", "fill_price"))
        none = np.zeros(len(close))
        exited, exit_price = (np.nan_to_num(ledger.get(f"{kind}_{symbol}", none)) for kind in ("exited", "exit_price"))
        rows = range(1, len(close))
        gains.append(sum(position[k] * close[k] - position[k - 1] * close[k - 1] - filled[k] * price[k] for k in rows))
        gains[-1] -= float(exited @ exit_price)
    return np.array(gains)


def _assert_adds_up(ledger, rules, per_year):
    costs = costs_of(ledger, rules, per_year)
    scale = max(ledger["equity"].max(), float(ledger["costs_paid"][-1]))
    of_rows = sum(cost.sum(axis=1) for cost in costs.values())
    np.testing.assert_allclose(np.cumsum(of_rows), ledger["costs_paid"], rtol=0, atol=1e-9 * scale)
    assert np.abs(costs["other"]).max() < 1e-9 * scale  # the rules explain every cost
    assert all((cost >= 0).all() for kind, cost in costs.items() if kind != "other")

    of_assets = sum(cost.sum(axis=0) for cost in costs.values())
    trades = trades_of(ledger, costs)
    profits, charged = np.zeros(len(of_assets)), np.zeros(len(of_assets))
    for trade in trades:
        at = symbols_of(ledger).index(trade.symbol)
        profits[at] += trade.profit
        charged[at] += trade.costs
    np.testing.assert_allclose(charged, of_assets, rtol=0, atol=1e-9 * scale)
    np.testing.assert_allclose(profits, _gains(ledger) - of_assets, rtol=0, atol=1e-9 * scale)
    assert profits.sum() == pytest.approx(ledger["equity"][-1] - ledger["equity"][0], rel=0, abs=1e-9 * scale)
    held = {symbol for symbol in symbols_of(ledger) if abs(ledger[f"position_{symbol}"][-1]) > 1e-9}
    assert held <= {trade.symbol for trade in trades if trade.open}


@given(
    seed=st.integers(0, 10**6),
    n_assets=st.integers(1, 4),
    mode=st.sampled_from(ACTION_MODES),
    volatility=st.sampled_from([0.01, 0.05, 0.4]),
    within=st.booleans(),
)
def test_trades_and_open_positions_add_up_to_the_change_of_equity(
    random_case, *, seed, n_assets, mode, volatility, within
):
    market, rules, actions = random_case(seed, n_assets, mode, volatility, within=within)
    _assert_adds_up(_run(market, rules, actions), rules, market.periods_per_year)


def test_so_they_do_through_flips_partial_closes_ruin_and_margin_calls(random_case):
    seen = Counter()
    for seed in range(120):
        mode = ACTION_MODES[seed % 4]
        market, rules, actions = random_case(seed, 1 + seed % 3, mode, 0.5 if seed % 2 else 0.03)
        if seed % 3 == 2:  # long and short at a fee of 4 % a bar, with no cash left to pay it from
            free = {"fee_bps": 0.0, "max_position": 1.0, "max_gross": 1.0, "min_cash": 0.0, "lot_size": 0.0}
            rules = replace(rules, borrow_bps_per_year=100_000, allow_short=True, **free)
        ledger = _run(market, rules, actions)
        _assert_adds_up(ledger, rules, market.periods_per_year)
        before = np.vstack([0 * per_symbol(ledger, "position")[:1], per_symbol(ledger, "position")[:-1]])
        after, filled = per_symbol(ledger, "position"), per_symbol(ledger, "filled")
        seen["flip"] += int((before * after < 0).sum())
        seen["part closed"] += int(((before * filled < 0) & (before * after > 0)).sum())
        seen["short"] += int((after < 0).sum())
        over = len(ledger["time"]) < market.n_bars
        ruined = ledger["equity"][-1] <= RUIN_FRACTION * ledger["equity"][0]
        seen["ruin" if ruined else "margin call"] += over
    assert min(seen[name] for name in ("flip", "part closed", "short", "ruin", "margin call")) >= 3, seen


def test_what_a_short_borrows_is_charged_to_its_trade(tiny_market):
    # All of 10,000 short at 100 for 5 bars at 1 % a bar: 100, 100, 100, 100 and, as it closes in the fifth, nothing.
    rules = TradingRules(fee_bps=0, fill_at="close", borrow_bps_per_year=252 * 100, initial_cash=10_000)
    ledger = _run(tiny_market([100.0] * 6), rules, [[0]] * 4 + [[1]])
    (trade,) = trades_of(ledger, costs_of(ledger, rules, 252))
    assert (trade.side, trade.open) == ("short", False)
    assert trade.costs == pytest.approx(400)
    assert trade.profit == pytest.approx(-400)
    assert ledger["equity"][-1] == pytest.approx(9_600)


def test_a_fee_for_borrowing_one_asset_is_not_charged_to_another(tiny_market):
    # A is short by 5,000 from the first bar at 1 % a bar, B is bought in the third for 1,000 at no fee.
    rules = TradingRules(
        "target_weights", fee_bps=0, fill_at="close", borrow_bps_per_year=252 * 100, initial_cash=10_000
    )
    market = tiny_market([[100.0, 10.0]] * 4)
    ledger = _run(market, rules, np.array([[-0.5, 0.0], [-0.5, 0.0], [-0.5, 0.1]]))
    short, long = trades_of(ledger, costs_of(ledger, rules, 252))
    assert (short.symbol, long.symbol) == ("A", "B")
    assert short.costs == pytest.approx(10_000 - ledger["equity"][-1])
    assert long.profit == pytest.approx(0, abs=1e-9)


def test_each_kind_of_cost_by_hand(tiny_market):
    # 1,000 bought at 10 bps and 20 bps slippage, half a spread of 1 %, 3 for the order: 1 + 2 + 10 + 3.
    rules = TradingRules(
        "target_weights", fee_bps=10, sell_fee_bps=40, slippage_bps=20, fixed_fee=3, fill_at="close",
        borrow_bps_per_year=252 * 50, initial_cash=10_000,
    )  # fmt: skip
    market = tiny_market([100.0] * 3, half_spread=[0.01] * 3)
    ledger = _run(market, rules, np.array([[0.1], [-0.1]]))
    costs = costs_of(ledger, rules, 252)
    traded = np.abs(ledger["filled_A"]) * 100
    assert {kind: cost[1, 0] for kind, cost in costs.items()} == pytest.approx(
        {"fee": 1, "slippage": 2, "spread": 10, "fixed_fee": 3, "borrowing": 0, "other": 0}, abs=1e-9
    )
    assert costs["fee"][2, 0] == pytest.approx(traded[2] * 0.004)  # a sale
    assert costs["borrowing"][2, 0] == pytest.approx(-ledger["position_A"][2] * 100 * 0.005)
    assert costs["borrowing"][2, 0] > 4


def test_a_row_in_which_nothing_was_paid_has_no_costs():
    ledger = _ledger([0, 2, -2], [10, 10, 12], costs_paid=[0, 0.2, 0.2])
    costs = costs_of(ledger, TradingRules(fee_bps=100, fixed_fee=0), 252)
    np.testing.assert_allclose(costs["fee"][:, 0], [0, 0.2, 0])
    np.testing.assert_allclose(costs["other"], 0, atol=1e-12)


def test_a_short_that_is_called_shares_what_was_left(tiny_market):
    # As in test_certify: A pays with all the cash there is, which is less than its fee.
    market = tiny_market(close=[[100, 100], [100, 100], [250, 200], [250, 200], [250, 200]])
    rules = TradingRules("discrete", fee_bps=0, borrow_bps_per_year=252 * 100)
    ledger = _run(market, rules, np.array([[0, 2], [0, 2], [1, 2], [1, 2]]))
    assert ledger["cash"][-1] == 0
    _assert_adds_up(ledger, rules, 252)


def test_a_rest_that_rounding_leaves_does_not_keep_a_trade_open():
    # 0.7 + 0.1 - 0.8 leaves -1e-16 or so: the trade is over, and the next one is another.
    ledger = _ledger([0, 0.7, 0.1, -0.8, 0.5], [10, 10, 10, 12, 20], close=[10, 10, 12, 12, 20])
    assert ledger["position_A"][3] != 0
    first, second = trades_of(ledger)
    assert (first.open, second.open) == (False, True)
    assert first.profit == pytest.approx(0.8 * 2)
    assert (second.entry_price, second.profit) == (pytest.approx(20), pytest.approx(0, abs=1e-12))


def test_costs_without_rules_are_shared_and_still_add_up():
    # 2 short at 10 for one bar: 1 for the order, then 3 for holding it.
    (trade,) = trades_of(_ledger([0, -2, 0, 2], [10, 10, 10, 10], costs_paid=[0, 1, 4, 4]))
    assert (trade.costs, trade.profit) == (4, -4)

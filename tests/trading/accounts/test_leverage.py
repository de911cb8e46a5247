"""Borrowed money by hand: what may be bought, what it costs by calendar day, and the margin call."""

import numpy as np
import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.trading.accounts.rules import TradingRules
from ml_pipeline.trading.accounts.trades import costs_of, trades_of
from ml_pipeline.trading.envs.batched import BatchedTradingEnv
from ml_pipeline.trading.envs.fast import FastTradingEnv
from ml_pipeline.trading.envs.stateful import StatefulTradingEnv

DOUBLE = {"fee_bps": 0, "max_gross": 2.0, "max_position": 2.0}


def _run(market, rules, actions):
    env = StatefulTradingEnv(market, rules)
    env.reset(seed=0)
    for action in actions:
        env.step(action)
    return env


def test_twice_the_equity_is_bought_with_as_much_borrowed(tiny_market):
    # 10,000 buy 200 at 100; at 110 that is 22,000 less 10,000 of debt.
    ledger = _run(tiny_market([100.0, 100.0, 110.0]), TradingRules(**DOUBLE), [2, 2]).ledger()
    assert ledger["position_A"].tolist() == [0, 200, 200]
    assert ledger["cash"].tolist() == [10_000, -10_000, -10_000]
    assert ledger["equity"][-1] == 12_000


def test_costs_are_paid_out_of_what_may_be_borrowed(tiny_market):
    # 20,000 pay for 20,000 / 1.01 of the asset and 1 % of that.
    rules = TradingRules(**{**DOUBLE, "fee_bps": 100})
    ledger = _run(tiny_market([100.0, 100.0]), rules, [2]).ledger()
    assert ledger["cash"][1] == pytest.approx(-10_000)
    assert ledger["position_A"][1] == pytest.approx(200 / 1.01)


def test_debt_and_shorts_pay_for_calendar_days(tiny_market):
    # The days are a Thursday, a Friday, a Monday and a Tuesday: the fill of Friday is held over 3 days, then 1.
    market = tiny_market([[100.0, 100.0]] * 4)
    days = np.array(["2024-01-04", "2024-01-05", "2024-01-08", "2024-01-09"], dtype="datetime64[ns]")
    object.__setattr__(market, "times", days)
    rules = TradingRules(
        "target_weights",
        **DOUBLE,
        financing_bps_per_year=365 * 10,
        borrow_bps_per_year=365 * 20,
        maintenance_margin=0.1,
    )
    env = _run(market, rules, np.array([[1.8, -0.2], [1.8, -0.2], [1.8, -0.2]]))
    ledger, costs = env.ledger(), costs_of(env.ledger(), rules, 252)
    assert ledger["interest_days"].tolist() == [0, 3, 1, 0]
    # 18,000 less 2,000 of proceeds cost 16,000, of which 6,000 are borrowed: 10 bps a day; 20 bps on 2,000 short.
    assert costs["financing"][1].tolist() == pytest.approx([6_000 * 0.003, 0])
    assert costs["borrowing"][1].tolist() == pytest.approx([0, 2_000 * 0.006])
    assert costs["financing"][3].sum() == 0
    assert sum(cost.sum() for cost in costs.values()) == pytest.approx(ledger["costs_paid"][-1])
    profits = sum(trade.profit for trade in trades_of(ledger, costs))
    assert profits == pytest.approx(ledger["equity"][-1] - 10_000)


@pytest.mark.parametrize(("price", "called"), [(67, False), (66, True)])
def test_the_broker_closes_positions_below_the_maintenance_margin(tiny_market, price, called):
    # At 66.7, 200 are worth 13,333 and the equity is 3,333: exactly a quarter.
    rules = TradingRules(**{**DOUBLE, "fixed_fee": 5})
    env = _run(tiny_market([100.0, 100.0, price, 100.0]), rules, [2, 2])
    ledger = env.ledger()
    assert (ledger["exited_A"][-1] != 0) == called
    assert (ledger["position_A"][-1] == 0) == called
    assert ("margin_call" in env.limit_counts) == called
    if called:
        quantity = ledger["filled_A"][1]
        assert ledger["exit_price_A"][-1] == price
        assert ledger["equity"][-1] == ledger["cash"][-1] == pytest.approx(10_000 - 5 - 5 - quantity * (100 - price))
        assert env.step(2)[0][-1] > 0  # the account goes on, and "long" is a new order


def test_a_margin_call_closes_only_what_can_be_traded(tiny_market):
    market = tiny_market([[100.0, 100.0], [100.0, 100.0], [20.0, 100.0]], tradable=[[1, 1], [1, 1], [0, 1]])
    ledger = _run(market, TradingRules(fee_bps=0, max_gross=2.0), [np.array([2, 2])] * 2).ledger()
    assert (ledger["position_A"][-1], ledger["position_B"][-1]) == (100, 0)


def test_a_loss_beyond_the_equity_is_ruin(tiny_market):
    env = _run(tiny_market([100.0, 100.0, 40.0, 40.0]), TradingRules(**DOUBLE), [2])
    *_, terminated, truncated, _ = env.step(2)
    assert (terminated, truncated) == (True, False)
    assert env.ledger()["equity"][-1] == -2_000


@pytest.mark.parametrize("make", [FastTradingEnv, lambda market, rules: BatchedTradingEnv(market, 1, rules)])
def test_actions_ask_for_weights_up_to_the_largest_position(tiny_market, make):
    rules = TradingRules("target_weights", max_gross=3.5, max_position=3.0)
    space = make(tiny_market([1.0, 1.0]), rules).action_space
    assert (space.low.min(), space.high.max()) == (-3, 3)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"max_gross": 21}, "max_gross must be above 0 and at most 20"),
        ({"max_position": 2}, "max_position 2 is above max_gross 1"),
        ({"max_gross": 4}, r"maintenance_margin 0\.25 would close positions of max_gross 4"),
        ({"maintenance_margin": 0}, "maintenance_margin must be above 0"),
        ({"financing_bps_per_year": -1}, "financing_bps_per_year must be from 0"),
        ({"financing_bps_per_year": 1, "fill_at": "close"}, "financing_bps_per_year charges positions for the nights"),
    ],
)
def test_what_does_not_go_together_is_refused(settings, says):
    with pytest.raises(UserError, match=says):
        TradingRules(**settings)

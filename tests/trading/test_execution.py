import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ml_pipeline.trading.execution import equity_of, fill_orders, is_ruined, log_return, size_orders

quantities = st.lists(st.floats(-1e3, 1e3).filter(lambda q: q == 0 or abs(q) > 1e-6), min_size=1, max_size=6)
weight_lists = st.lists(st.floats(-1, 1), min_size=1, max_size=6)


def _fill(orders, cash, prices, cost_rate=0.0):
    filled = [math.nan] * len(orders)
    cash, costs = fill_orders(orders, cash, prices, cost_rate, filled)
    return cash, costs, filled


def _size(weights, cash, holdings, prices, may_trade=None):
    orders = [math.nan] * len(weights)
    size_orders(weights, may_trade or [True] * len(weights), cash, holdings, prices, orders)
    return orders


def test_a_buy_pays_its_costs_out_of_the_cash_there_is():
    # 101 wanted at 100 cost 10,100 and 1 % of it: 10,201. With 10,100 in cash, 100 of them can be paid for.
    cash, costs, filled = _fill([101.0], 10_100.0, [100.0], 0.01)
    assert cash == 0.0
    assert costs == pytest.approx(100.0, rel=1e-12)
    assert filled == [pytest.approx(100.0, rel=1e-12)]


def test_a_sale_pays_its_costs_out_of_the_proceeds():
    # 200 at 120 are 24,000, of which 1 % is 240.
    assert _fill([-200.0], 0.0, [120.0], 0.01) == (23_760.0, 240.0, [-200.0])


def test_sells_pay_for_buys_wherever_they_stand_in_the_row():
    # The sale brings 90 x 0.99 = 89.1; with 11.9 in cash that is 101, and 2 at 50 cost 101 with 1 %.
    for buy_first in (False, True):
        orders, prices = [-1.0, 2.0], [90.0, 50.0]
        if buy_first:
            orders, prices = orders[::-1], prices[::-1]
        cash, costs, filled = _fill(orders, 11.9, prices, 0.01)
        assert cash == pytest.approx(0.0, abs=1e-9)
        assert costs == pytest.approx(0.9 + 1.0)
        assert sorted(filled) == [-1.0, pytest.approx(2.0)]


def test_buys_that_exceed_the_cash_shrink_alike():
    _, _, filled = _fill([6.0, 2.0], 400.0, [100.0, 100.0])
    assert filled == [3.0, 1.0]


def test_weights_beyond_the_whole_equity_are_scaled_down_to_it():
    assert _size([1.0, 1.0], 100.0, [0.0, 0.0], [10.0, 5.0]) == [5.0, 10.0]
    assert _size([1.0, -1.0], 100.0, [0.0, 0.0], [10.0, 5.0]) == [5.0, -10.0]


def test_what_may_not_trade_is_kept():
    assert _size([0.0, 0.0], 0.0, [3.0, 4.0], [10.0, 5.0], [True, False]) == [-3.0, 0.0]


def test_rounding_makes_no_order():
    holding = 100.0 / 3.0
    assert _size([1.0], 0.0, [holding], [3.3]) == [0.0]
    assert _size([1.0], 1e-9, [holding], [3.3]) == [0.0]


def test_an_account_that_owes_money_only_closes_what_it_has():
    assert _size([-1.0], 100.0, [-2.0], [60.0]) == [2.0]


def test_log_return_of_an_account_that_owes_money_is_finite():
    assert log_return(100.0, 110.0, 100.0) == pytest.approx(math.log(1.1))
    assert log_return(100.0, -5.0, 100.0) == pytest.approx(math.log(1e-6))


def test_ruin_is_the_loss_of_all_but_a_hundredth():
    assert is_ruined(1.0, 100.0)
    assert is_ruined(-3.0, 100.0)
    assert not is_ruined(1.01, 100.0)


@given(orders=quantities, cash=st.floats(0, 1e6), data=st.data())
def test_at_no_cost_trading_conserves_equity(orders, cash, data):
    prices = data.draw(st.lists(st.floats(0.01, 1e4), min_size=len(orders), max_size=len(orders)))
    after, costs, filled = _fill(orders, cash, prices)
    assert costs == 0.0
    assert equity_of(after, filled, prices) == pytest.approx(cash, rel=1e-9, abs=1e-6)


@given(orders=quantities, cash=st.floats(0, 1e6), rates=st.tuples(st.floats(0, 0.1), st.floats(0, 0.1)), data=st.data())
def test_higher_cost_never_makes_the_same_orders_worth_more(orders, cash, rates, data):
    prices = data.draw(st.lists(st.floats(0.01, 1e4), min_size=len(orders), max_size=len(orders)))
    low, high = sorted(rates)
    worth = []
    for rate in (low, high):
        after, _, filled = _fill(orders, cash, prices, rate)
        worth.append(equity_of(after, filled, prices))
    assert worth[1] <= worth[0] + 1e-9 * max(
        1.0, abs(worth[0]), sum(abs(q) * p for q, p in zip(orders, prices, strict=True))
    )


@given(orders=quantities, cash=st.floats(0, 1e6), rate=st.floats(0, 0.1), data=st.data())
def test_cash_never_goes_below_zero_and_every_cent_is_accounted_for(orders, cash, rate, data):
    prices = data.draw(st.lists(st.floats(0.01, 1e4), min_size=len(orders), max_size=len(orders)))
    after, costs, filled = _fill(orders, cash, prices, rate)
    traded = [abs(q) * p for q, p in zip(filled, prices, strict=True)]
    scale = max(1.0, cash, sum(traded))
    assert after >= 0.0
    assert costs == pytest.approx(rate * sum(traded), rel=1e-9, abs=1e-9 * scale)
    assert after == pytest.approx(cash - np.dot(filled, prices) - costs, abs=1e-9 * scale)
    for order, quantity in zip(orders, filled, strict=True):
        assert abs(quantity) <= abs(order)
        assert quantity * order >= 0


@given(weights=weight_lists, data=st.data())
def test_permuting_the_assets_permutes_what_happens_to_them(weights, data):
    n = len(weights)
    prices = data.draw(st.lists(st.floats(0.1, 1e3), min_size=n, max_size=n))
    holdings = data.draw(st.lists(st.floats(0, 10), min_size=n, max_size=n))
    order = data.draw(st.permutations(range(n)))

    def outcome(indices):
        w, h, p = ([values[i] for i in indices] for values in (weights, holdings, prices))
        cash, _, filled = _fill(_size(w, 100.0, h, p), 100.0, p, 0.001)
        return cash, filled

    cash, filled = outcome(range(n))
    permuted_cash, permuted_filled = outcome(order)
    assert permuted_cash == pytest.approx(cash, abs=1e-6)
    assert permuted_filled == pytest.approx([filled[i] for i in order], abs=1e-6)


@given(weights=weight_lists, data=st.data())
def test_at_no_cost_the_fills_reach_the_target_weights(weights, data):
    n = len(weights)
    gross = sum(abs(w) for w in weights)
    assume(gross == 0 or gross > 1e-3)
    prices = data.draw(st.lists(st.floats(0.1, 1e3), min_size=n, max_size=n))
    cash, _, filled = _fill(_size(weights, 100.0, [0.0] * n, prices), 100.0, prices)
    equity = equity_of(cash, filled, prices)
    reached = [q * p / equity for q, p in zip(filled, prices, strict=True)]
    assert reached == pytest.approx([w / max(gross, 1.0) for w in weights], abs=1e-8)

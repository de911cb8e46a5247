import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ml_pipeline.trading.accounts.execution import PLAIN
from ml_pipeline.trading.accounts.orders import Terms
from ml_pipeline.trading.accounts.rules import TradingRules

quantities = st.lists(st.floats(-1e3, 1e3).filter(lambda q: q == 0 or abs(q) > 1e-6), min_size=1, max_size=6)
weight_lists = st.lists(st.floats(-1, 1), min_size=1, max_size=6)


FREE = Terms(0.0, 0.0)


def equity_of(cash, holdings, prices):
    return cash + sum(q * p for q, p in zip(holdings, prices, strict=True))


def _fill(orders, cash, prices, cost_rate=0.0, *, spreads=None, **terms):
    filled = [math.nan] * len(orders)
    terms = Terms(cost_rate, cost_rate)._replace(**terms)
    cash, costs = PLAIN.fill_orders(orders, cash, cash, prices, spreads or [0.0] * len(orders), terms, filled)
    return cash, costs, filled


def _size(weights, cash, holdings, prices, may_trade=None, **terms):
    orders = [math.nan] * len(weights)
    may_trade = may_trade or [True] * len(weights)
    PLAIN.size_orders(weights, may_trade, cash, holdings, prices, FREE._replace(**terms), orders)
    return orders


def _step(weights, cash, holdings, prices, closes, **terms):
    holdings, filled = list(holdings), [math.nan] * len(weights)
    spreads, orders = [0.0] * len(weights), [math.nan] * len(weights)
    may_trade = [True] * len(weights)
    cash, costs, equity, margin_called = PLAIN.step(
        weights, may_trade, cash, holdings, prices, spreads, closes, FREE._replace(**terms), orders, filled
    )
    return cash, costs, equity, margin_called, holdings


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


def test_buying_and_selling_each_pay_their_rate_and_the_spread():
    # 10 bought for 1,000: 1 % and half a spread of 0.5 %; 10 sold for 1,000: 2 % and the same.
    terms = {"sell_rate": 0.02, "spreads": [0.005]}
    assert _fill([10.0], 5_000.0, [100.0], 0.01, **terms)[1] == pytest.approx(15)
    assert _fill([-10.0], 5_000.0, [100.0], 0.01, **terms)[1] == pytest.approx(25)


def test_each_filled_order_pays_the_fixed_fee():
    cash, costs, filled = _fill([-1.0, 0.0, 2.0], 100.0, [50.0, 7.0, 60.0], fixed_fee=3.0)
    assert (cash, costs, filled) == (100 + 50 - 3 - 120 - 3, 6, [-1, 0, 2])
    # 103 pay for 100 of stock and the fee of 3.
    assert _fill([5.0], 103.0, [50.0], fixed_fee=3.0) == (0, 3, [2])


def test_a_sale_that_does_not_bring_its_costs_and_a_buy_that_cannot_pay_them_are_left():
    assert _fill([-1.0, 0.0], 0.0, [2.0, 9.0], fixed_fee=3.0) == (0, 0, [0, 0])
    assert _fill([1.0], 2.0, [1.0], fixed_fee=3.0) == (2, 0, [0])


def test_whole_lots_despite_rounding():
    assert _size([0.3, -0.3], 1.0, [0.0, 0.0], [1.0, 1.0], lot=0.1) == [pytest.approx(0.3), pytest.approx(-0.3)]
    assert _size([0.39], 1.0, [0.0], [1.0], lot=0.1) == [pytest.approx(0.3)]
    # 7 lots of 1 at 10 with 64.9 in cash: 6 of them.
    assert _fill([7.0], 64.9, [10.0], lot=1.0) == (pytest.approx(4.9), 0, [6])


def test_an_order_below_the_smallest_is_none():
    assert _size([0.2, -0.1], 100.0, [0.0, 0.0], [1.0, 1.0], smallest_order=15.0) == [20, 0]
    assert _fill([20.0], 10.0, [1.0], smallest_order=15.0) == (10, 0, [0])  # what the cash leaves is too small


def test_positions_gross_exposure_and_trades_are_bounded():
    assert _size([1.0, -1.0], 100.0, [0.0, 0.0], [1.0, 1.0], highest=0.4, lowest=-0.2) == [40, -20]
    assert _size([1.0, -1.0], 100.0, [0.0, 0.0], [1.0, 1.0], max_gross=0.5) == [25, -25]
    assert _size([-1.0], 0.0, [100.0], [1.0], max_trade=0.3) == [-30]


def test_a_relative_weight_is_a_trade_from_where_the_position_is():
    # Equity 100, 60 of it held; half a unit of 20 % more, then a whole unit less, then more than the highest position.
    for weight, order in ((0.5, 10), (-1.0, -20)):
        assert _size([weight], 40.0, [6.0], [10.0], relative=1.0, max_trade=0.2) == [pytest.approx(order / 10)]
    assert _size([1.0], 40.0, [6.0], [10.0], relative=1.0, max_trade=0.2, highest=0.7) == [pytest.approx(1)]


def test_buying_leaves_the_reserve():
    assert _fill([10.0], 100.0, [10.0], reserve=0.3) == (pytest.approx(30), 0, [pytest.approx(7)])


def test_what_is_borrowed_is_paid_for_at_the_close():
    # 2 short at 50, 1 % of 2 x 60; the long pays nothing.
    cash, costs, equity, margin_called, holdings = _step(
        [0.5, -0.5], 200.0, [0, 0], [100, 50], [100, 60], borrow_rate=0.01
    )
    assert (margin_called, holdings) == (False, [1, -2])
    assert (cash, costs, equity) == pytest.approx((200 - 1.2, 1.2, 200 - 1.2 + 100 - 120))


def test_a_borrowing_fee_beyond_the_cash_takes_all_of_it_and_is_a_margin_call():
    # 2 short at 50 stay as they are; 10 % of 100 is 10, and there is 4. The long is worth 300.
    cash, costs, equity, margin_called, _ = _step(
        [0, 0], 4.0, [3, -2], [100, 50], [100, 50], borrow_rate=0.1, max_trade=0.0
    )
    assert (cash, costs, equity, margin_called) == (0, 4, 200, True)


def test_terms_of_the_rules():
    rules = TradingRules(fee_bps=5, sell_fee_bps=7, slippage_bps=2, borrow_bps_per_year=252, allow_short=False)
    terms = rules.terms(252)
    assert (terms.buy_rate, terms.sell_rate, terms.borrow_rate) == pytest.approx((0.0007, 0.0009, 0.0001))
    assert (terms.lowest, terms.highest, terms.max_trade) == (0, 1, math.inf)
    trade = TradingRules("trade", stop_loss=0.02).terms(252)
    assert (trade.max_trade, trade.relative, trade.stop_loss, trade.take_profit) == (0.1, 1, 0.02, 0)


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

"""Orders of a decision, by hand."""

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ml_pipeline.live.brokers.broker import Fill
from ml_pipeline.live.portfolio import AccountBook
from ml_pipeline.live.sizing import QuantityRules, size_orders
from ml_pipeline.trading.accounts.rules import TradingRules
from ml_pipeline.trading.market.bar_set import BarSet

TIME = np.datetime64("2024-03-01T12:00", "ns")


class Decision(NamedTuple):
    weights: list
    may_trade: list
    closing: bool = False
    time: np.datetime64 = TIME


def books_of(rules, closes, held=()):
    books = AccountBook("ABC"[: len(closes)], rules)
    prices = np.array(closes, dtype=float)
    fillable = ~np.isnan(prices)
    books.close_bar(BarSet(TIME, TIME, prices, prices, prices, prices, np.ones(len(closes)), fillable))
    for i, quantity in enumerate(held):
        if quantity:
            books.apply(Fill(str(i), "", "ABC"[i], quantity, closes[i], 0.0, TIME))
    return books


def orders_of(decision, books, *, at_fill, quantities=None):
    terms = books.rules.terms(252)
    return size_orders(decision, books=books, terms=terms, session_id="s", sizes_at_fill=at_fill, quantities=quantities)


def test_a_broker_that_sizes_at_the_fill_gets_every_target():
    books = books_of(TradingRules("target_weights", fee_bps=0), [100, 50, 20])
    orders = orders_of(Decision([0.5, 0.0, 0.25], [True, True, False]), books, at_fill=True)
    assert [(order.symbol, order.quantity, order.weight) for order in orders] == [("A", 50, 0.5), ("B", 0, 0)]
    assert all(order.targets is None for order in orders)


def test_targets_of_symbols_without_an_order_are_told_where_they_count():
    books = books_of(TradingRules("target_weights", fee_bps=0), [100, 50, 20])
    first, second = orders_of(Decision([0.8, 0.7, 0.5], [True, True, False]), books, at_fill=True)
    assert first.targets == (0.8, 0.7, 0.5)
    assert second.targets is None
    assert float(first.quantity) == pytest.approx(0.8 / 2 * 100)


def test_a_real_broker_gets_quantities_sales_first_and_what_cash_pays_for():
    # A is sold down to 10 % of 10,000; B would cost 10,000 with 9,000 of cash left after costs of nothing.
    books = books_of(TradingRules("target_weights", fee_bps=0), [100, 50], [50, 0])
    orders = orders_of(Decision([0.1, 0.9], [True, True]), books, at_fill=False)
    assert [(order.symbol, order.quantity) for order in orders] == [("A", -40), ("B", 180)]
    books = books_of(TradingRules("target_weights", fee_bps=100), [100, 50], [0, 0])
    (order,) = orders_of(Decision([0.0, 1.0], [True, True]), books, at_fill=False)
    assert float(order.quantity) == pytest.approx(200 / 1.01)


def test_sales_come_before_buys_whatever_the_order_of_symbols():
    books = books_of(TradingRules("target_weights", fee_bps=0), [100, 50], [0, 100])
    orders = orders_of(Decision([0.5, 0.0], [True, True]), books, at_fill=False)
    assert [order.symbol for order in orders] == ["B", "A"]


def test_closing_sells_all_of_it_whatever_the_limits():
    rules = TradingRules("target_weights", lot_size=7, min_order=5_000, trade_limit_percent=1)
    books = books_of(rules, [100, 50], [12.5, -3.25])
    closing = Decision([0.3, 0.3], [True, True], closing=True)
    for at_fill in (True, False):
        orders = orders_of(closing, books, at_fill=at_fill, quantities=QuantityRules(usual_step=1.0))
        assert {order.symbol: order.quantity for order in orders} == {"A": -12.5, "B": 3.25}
        assert all(order.closing and order.weight == 0.0 and order.limit_price is None for order in orders)


def test_a_symbol_that_was_never_seen_is_not_ordered():
    books = books_of(TradingRules("target_weights"), [100, np.nan])
    assert [o.symbol for o in orders_of(Decision([0.5, 0.5], [True, True]), books, at_fill=False)] == ["A"]


def test_limit_prices_lie_on_the_good_side_of_the_close():
    books = books_of(TradingRules("target_weights", limit_bps=100), [100, 50], [10, 0])
    sale, buy = orders_of(Decision([0.0, 0.3], [True, True]), books, at_fill=False)
    assert (sale.limit_price, buy.limit_price) == (101, 49.5)


def test_orders_below_the_smallest_are_left_out():
    books = books_of(TradingRules("target_weights"), [100, 50])
    rules = QuantityRules(smallest_order=500)
    assert [
        o.symbol for o in orders_of(Decision([0.2, 0.04], [True, True]), books, at_fill=False, quantities=rules)
    ] == ["A"]


@pytest.mark.parametrize(
    ("rules", "order", "held", "sent"),
    [
        (QuantityRules(), 1.234, 0, 1.234),
        (QuantityRules(usual_step=1), 1.9, 0, 1),
        (QuantityRules(usual_step=1), -1.9, 5, -1),
        (QuantityRules({"A": 0.1}, usual_step=1), 0.3, 0, 0.3),
        (QuantityRules(usual_step=1), -2.5, 2.5, -2.5),  # closes the position
        (QuantityRules(whole_shorts=True), -3.7, 2.5, -3.5),  # to a short of 1.2, so of 1
        (QuantityRules(whole_shorts=True), -1.2, -3, -1),
        (QuantityRules(whole_shorts=True), 1.5, -3, 2),  # to a short of 1.5, so of 1
        (QuantityRules(whole_shorts=True), 1.5, 0, 1.5),
        (QuantityRules(whole_shorts=True), -0.5, 0, 0),
    ],
)
def test_quantities_that_a_broker_takes(rules, order, held, sent):
    assert float(rules.quantity("A", order, held)) == pytest.approx(sent)


@given(st.floats(-100, 100), st.floats(-100, 100), st.sampled_from([0.0, 0.01, 1.0]), st.booleans())
def test_a_rounded_order_never_goes_further_than_it_was_meant_to(order, held, step, whole_shorts):
    sent = float(QuantityRules(usual_step=step, whole_shorts=whole_shorts).quantity("A", order, held))
    if held + order >= 0.0:
        assert abs(sent) <= abs(order) + 1e-6
    assert held + sent >= min(held, held + order, 0.0) - 1e-6
    if whole_shorts and sent and order != -held and held + sent < -1e-9:
        assert (held + sent) % 1.0 == pytest.approx(0.0, abs=1e-6) or (held + sent) % 1.0 == pytest.approx(
            1.0, abs=1e-6
        )

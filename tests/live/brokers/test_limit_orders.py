"""Limit orders at the simulated broker: filled at their own limit or better, however long they wait. By hand."""

import pytest

from ml_pipeline.live.brokers.broker import Fill, OrderRequest, OrderUpdate
from ml_pipeline.live.brokers.faults import Chance, SimulatedFaults
from ml_pipeline.live.brokers.matching import check_limit
from ml_pipeline.live.brokers.simulated import SimulatedBroker
from ml_pipeline.trading.accounts.bar_by_bar import Filled
from ml_pipeline.trading.accounts.rules import TradingRules
from tests.live.brokers.test_contract import MINUTE, minute_bar

LIMITED = TradingRules("target_weights", fee_bps=0, limit_bps=10)
FREE = TradingRules("target_weights", fee_bps=0)


@pytest.fixture
def traded(tmp_path):
    """What the broker tells of an order that is sent at a close of 100, over these (open, close) of bars."""
    opened = []

    def trade(order, *bars, rules=LIMITED, before=(), **faults):
        settings = {"periods_per_year": 1e5, "bar_length": MINUTE, "durable": False}
        store = tmp_path / f"{len(opened)}.sqlite"
        broker = SimulatedBroker(("ABC",), rules, store=store, faults=SimulatedFaults(**faults), **settings)
        opened.append(broker)
        broker.market_closed_bar(minute_bar(0))
        for t, each in enumerate(before, start=1):
            broker.submit([each])
            broker.market_closed_bar(minute_bar(t))
        _, cursor = broker.poll(None)
        broker.submit([order])
        for t, (first, last) in enumerate(bars, start=1 + len(before)):
            broker.market_closed_bar(minute_bar(t, close=last, opened=first))
        events, _ = broker.poll(cursor)
        fills = [(each.quantity, each.price) for each in events if isinstance(each, Fill)]
        return fills, [(each.status, each.reason) for each in events if isinstance(each, OrderUpdate)]

    yield trade
    for broker in opened:
        broker.close()


def limit_order(quantity=50.0, weight=0.5, limit=100 * (1 - 0.001)):
    return OrderRequest("one", "ABC", quantity, weight, limit)


PART = {"sim_partial_fill_rate": 1.0, "sim_rest_of_order": "open"}


class TestAnOrderThatOutlivesItsBar:
    def test_is_not_filled_above_its_limit_because_the_market_has_risen(self, traded):
        fills, states = traded(limit_order(), (99, 105), (103, 104), **PART)
        assert [price for _, price in fills] == [99]
        assert [status for status, _ in states] == ["partly_filled", "expired"]

    def test_keeps_a_limit_that_the_last_close_would_lower(self, traded):
        fills, states = traded(limit_order(), (99, 99), (99.5, 99.5), **PART)
        assert [price for _, price in fills] == [99, 99.5]
        assert sum(quantity for quantity, _ in fills) == pytest.approx(50)
        assert [status for status, _ in states] == ["partly_filled", "filled"]

    def test_is_filled_at_the_limit_and_rounding_never_makes_it_worse(self, traded):
        for close in (33.3, 101.7, 99.95):
            fills, _ = traded(limit_order(), (99, close), (101, 90), **PART)
            assert fills[1][1] <= 100 * (1 - 0.001)
            assert fills[1][1] == pytest.approx(99.9)

    def test_waits_with_its_limit_if_it_arrives_later_than_the_next_open(self, traded):
        assert traded(limit_order(), (100, 110), (108, 104), sim_latency_s=15)[0] == []
        fills, _ = traded(limit_order(), (100, 110), (99, 104), sim_latency_s=15)
        assert fills == [(pytest.approx(50), 99)]

    def test_sells_at_its_limit_or_above(self, traded):
        sale = limit_order(-50.0, -0.5, 100 * (1 + 0.001))
        fills, _ = traded(sale, (101, 90), (95, 99), **PART)
        assert [price for _, price in fills] == [101]
        fills, _ = traded(sale, (101, 90), (95, 104), **PART)
        assert [price for _, price in fills] == [101, pytest.approx(100.1)]

    def test_fills_what_is_left_of_its_quantity(self, traded):
        rules = TradingRules("target_weights", fee_bps=0, size_at="decision")
        order = OrderRequest("one", "ABC", 50.0, 0.5)
        for bars in (((100, 50), (50, 50)), ((100, 200), (90, 80))):
            fills, _ = traded(order, *bars, rules=rules, **PART)
            assert sum(quantity for quantity, _ in fills) == pytest.approx(50)


def test_an_order_never_changes_sides(traded):
    """It buys 10, and the account holds more than its target: a sale would not be what was ordered."""
    held = OrderRequest("held", "ABC", 70.0, 0.7)
    rules = TradingRules("target_weights", fee_bps=0, size_at="decision")
    fills, states = traded(limit_order(10.0, 0.5, 100.5), (100, 100), before=[held], rules=rules)
    assert (fills, states[0][0]) == ([], "expired")


@pytest.mark.parametrize(("opened", "price"), [(101, None), (100.2, 100.2)])
def test_a_limit_holds_in_an_account_without_limits_too(traded, opened, price):
    fills, states = traded(limit_order(limit=100.5), (opened, 90), rules=FREE)
    assert [each for _, each in fills] == ([] if price is None else [price])
    assert states[0][0] == ("expired" if price is None else "filled")


@pytest.mark.parametrize("rest", ["canceled", "open"])
def test_a_part_that_is_no_whole_lot_is_not_told_as_filled(traded, rest):
    rules = TradingRules("target_weights", fee_bps=0, lot_size=30)
    faults = {"sim_partial_fill_rate": 1.0, "sim_rest_of_order": rest}
    fills, states = traded(OrderRequest("one", "ABC", 30.0, 0.5), (100, 100), (100, 100), rules=rules, **faults)
    assert states[0] == ("canceled" if rest == "canceled" else "partly_filled", "no part of it was filled")
    assert fills == ([] if rest == "canceled" else [(30, 100)])


def test_every_fill_is_held_against_its_limit():
    buys, sells = OrderRequest("b", "A", 1.0, 0.1, 9.0), OrderRequest("s", "A", -1.0, 0.1, 9.0)
    for order, filled in ((buys, Filled(1.0, 9.0, 0.0)), (sells, Filled(-1.0, 9.5, 0.0))):
        check_limit(order, filled)
    for order, filled in ((buys, Filled(1.0, 9.01, 0.0)), (sells, Filled(-1.0, 8.99, 0.0))):
        with pytest.raises(AssertionError, match="beyond its limit"):
            check_limit(order, filled)
    with pytest.raises(AssertionError, match="on the other side"):
        check_limit(buys, Filled(-1.0, 9.5, 0.0))


def test_a_rest_that_is_below_the_smallest_order_is_canceled(traded):
    rules, chance = TradingRules("target_weights", fee_bps=0, min_order=3_000), Chance(SimulatedFaults(**PART))
    name = next(each for each in map(str, range(100)) if chance.part_filled(each) > 0.7)  # a rest of 2,700 at most
    fills, states = traded(OrderRequest(name, "ABC", 90.0, 0.9), (100, 100), (100, 100), rules=rules, **PART)
    assert [63 < quantity < 82 for quantity, _ in fills] == [True]
    assert states[-1] == ("canceled", "nothing of the rest can be filled")

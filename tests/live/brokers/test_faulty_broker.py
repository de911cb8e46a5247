"""What may be asked to go wrong, by hand."""

from contextlib import closing

import numpy as np
import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.live.brokers.broker import BrokerUnavailable, Fill, OrderRequest, OrderUpdate
from ml_pipeline.live.brokers.faults import SimulatedFaults
from ml_pipeline.live.brokers.simulated import SimulatedBroker
from ml_pipeline.trading.accounts.rules import TradingRules
from tests.live.brokers.test_contract import MINUTE, START, minute_bar

FREE = TradingRules("target_weights", fee_bps=0)


@pytest.fixture
def open_broker(tmp_path):
    """A broker of one account, opened again and again; what is open is closed afterwards."""
    opened = []

    def make(rules=FREE, **faults):
        for broker in opened:
            broker.close()
        settings = {"periods_per_year": 1e5, "bar_length": MINUTE, "durable": False}
        broker = SimulatedBroker(
            ("ABC",), rules, store=tmp_path / "a.sqlite", faults=SimulatedFaults(**faults), **settings
        )
        opened.append(broker)
        return broker

    yield make
    for broker in opened:
        broker.close()


def long(name="one"):
    return OrderRequest(name, "ABC", 0.0, 0.5)


def fills(broker):
    return [event for event in broker.poll(None)[0] if isinstance(event, Fill)]


def ends(broker):
    return [(e.status, e.reason) for e in broker.poll(None)[0] if isinstance(e, OrderUpdate)]


def is_away(broker, method):
    """Whether this call finds nobody."""
    arguments = {"poll": (None,), "cancel": ([],)}.get(method, ())
    try:
        getattr(broker, method)(*arguments)
    except BrokerUnavailable:
        return True
    return False


def test_a_late_order_is_filled_on_the_way_from_open_to_close(open_broker):
    broker = open_broker(sim_latency_s=15)
    broker.market_closed_bar(minute_bar(0))
    broker.submit([long()])
    broker.market_closed_bar(minute_bar(1, close=108, opened=100))  # a quarter of the way to 108
    (fill,) = fills(broker)
    assert fill.price == 102
    assert fill.time == START + MINUTE + np.timedelta64(15, "s")
    assert float(fill.quantity) == pytest.approx(0.5 * 10_000 / 102)


def test_an_order_on_time_is_filled_at_the_open(open_broker):
    broker = open_broker()
    broker.market_closed_bar(minute_bar(0))
    broker.submit([long()])
    broker.market_closed_bar(minute_bar(1, close=108, opened=101))
    (fill,) = fills(broker)
    assert (fill.price, fill.time) == (101, START + MINUTE)


def test_an_order_that_is_later_than_a_bar_waits_for_the_next_unless_it_is_canceled(open_broker):
    broker = open_broker(sim_latency_s=90)
    broker.market_closed_bar(minute_bar(0))
    broker.submit([long()])
    broker.market_closed_bar(minute_bar(1))
    assert [update.status for update in broker.orders()] == ["accepted"]
    broker = open_broker(sim_latency_s=90)  # a restart changes nothing
    broker.market_closed_bar(minute_bar(2, close=104, opened=100))
    (fill,) = fills(broker)
    assert fill.price == 102


def test_a_late_limit_order_waits_for_a_whole_bar(open_broker):
    broker = open_broker(TradingRules("target_weights", limit_bps=10), sim_latency_s=15)
    broker.market_closed_bar(minute_bar(0))
    broker.submit([long()])
    broker.market_closed_bar(minute_bar(1, close=90, opened=100))
    assert fills(broker) == []
    assert len(broker.orders()) == 1


@pytest.mark.parametrize("rest", ["open", "canceled"])
def test_an_order_filled_in_part(open_broker, rest):
    broker = open_broker(sim_partial_fill_rate=1.0, sim_rest_of_order=rest)
    broker.market_closed_bar(minute_bar(0))
    broker.submit([long()])
    broker.market_closed_bar(minute_bar(1))
    (part,) = fills(broker)
    assert 5 <= part.quantity <= 45  # the whole would be 50
    (update,) = broker.orders(["one"])
    assert update.filled_quantity == part.quantity
    assert update.status == ("partly_filled" if rest == "open" else "canceled")
    broker.market_closed_bar(minute_bar(2))
    assert float(sum(fill.quantity for fill in fills(broker))) == pytest.approx(
        50 if rest == "open" else float(part.quantity)
    )
    (update,) = broker.orders(["one"])
    assert update.status == ("filled" if rest == "open" else "canceled")


def test_a_rejected_order_says_why_and_is_never_filled(open_broker):
    broker = open_broker(sim_reject_rate=1.0)
    broker.market_closed_bar(minute_bar(0))
    answers = broker.submit([long(f"order {i}") for i in range(20)])
    assert {answer.status for answer in answers} == {"rejected"}
    assert {answer.reason for answer in answers} == {"insufficient buying power", "ABC cannot be traded now"}
    broker.market_closed_bar(minute_bar(1))
    assert fills(broker) == broker.orders() == []


def test_an_answer_that_is_lost_belongs_to_orders_that_were_taken(open_broker):
    broker = open_broker(sim_lost_answer_rate=1.0)
    broker.market_closed_bar(minute_bar(0))
    with pytest.raises(BrokerUnavailable, match="sim_lost_answer_rate"):
        broker.submit([long()])
    assert [answer.status for answer in broker.submit([long()])] == ["accepted"]
    broker.market_closed_bar(minute_bar(1))
    assert len(fills(broker)) == 1


def test_the_market_goes_on_while_the_broker_is_away(open_broker):
    outage = {"sim_outage_rate": 0.3, "sim_outage_bars": 2, "sim_seed": 1}
    broker = open_broker(**outage)
    seen, sent = [], set()
    for t in range(40):
        broker.market_closed_bar(minute_bar(t))
        try:
            broker.submit([OrderRequest(f"{t}", "ABC", 0.0, 0.5 if t % 2 else -0.5)])
            sent.add(str(t))
            seen.append(True)
        except BrokerUnavailable:
            seen.append(False)
            assert all(is_away(broker, call) for call in ("account", "orders", "now", "poll", "cancel"))
    away = "".join("." if each else "x" for each in seen).strip(".").split(".")
    assert all(len(run) % 2 == 0 for run in away if run != away[-1])
    assert 0 < len(sent) < 40
    while True:
        t += 1
        broker.market_closed_bar(minute_bar(t))
        try:
            assert {fill.client_order_id for fill in fills(broker)} == sent
            break
        except BrokerUnavailable:
            pass


def test_faults_meet_the_same_orders_whenever_they_are_sent(open_broker, tmp_path):
    faults = {"sim_reject_rate": 0.5, "sim_latency_jitter_s": 50, "sim_partial_fill_rate": 0.5, "sim_seed": 7}
    names = [f"order {i}" for i in range(30)]

    def told(path, together):
        settings = {"periods_per_year": 1e5, "bar_length": MINUTE, "durable": False}
        with closing(
            SimulatedBroker(("ABC",), FREE, store=path, faults=SimulatedFaults(**faults), **settings)
        ) as broker:
            broker.market_closed_bar(minute_bar(0))
            for chunk in [names] if together else [[name] for name in reversed(names)]:
                broker.submit([long(name) for name in chunk])
            return sorted(order.client_order_id for order in broker.orders())

    together = told(tmp_path / "one.sqlite", True)
    assert together == told(tmp_path / "other.sqlite", False)
    assert 5 < len(together) < 25


def test_a_symbol_without_a_bar_lets_its_order_expire(open_broker):
    broker = open_broker()
    broker.market_closed_bar(minute_bar(0))
    broker.submit([long()])
    empty = minute_bar(1)
    broker.market_closed_bar(
        type(empty)(**{**empty.__dict__, "close": np.array([np.nan]), "fillable": np.array([False])})
    )
    assert ends(broker) == [("expired", "there was no bar to fill it in")]
    assert broker.account().positions == {}


def test_an_order_whose_target_is_held_is_filled_with_nothing(open_broker):
    broker = open_broker()
    broker.market_closed_bar(minute_bar(0))
    broker.submit([OrderRequest("flat", "ABC", 0.0, 0.0)])
    broker.market_closed_bar(minute_bar(1))
    assert ends(broker) == [("filled", "nothing to trade")]
    assert fills(broker) == []


def test_a_later_order_replaces_an_open_one(open_broker):
    broker = open_broker()
    broker.market_closed_bar(minute_bar(0))
    broker.submit([long("b"), OrderRequest("a", "ABC", 0.0, -0.5)])
    broker.market_closed_bar(minute_bar(1))
    assert [fill.client_order_id for fill in fills(broker)] == ["a"]
    assert ("canceled", "a later order replaced it") in ends(broker)


def test_latency_needs_the_length_of_a_bar(tmp_path):
    faults = SimulatedFaults(sim_latency_s=1)
    with pytest.raises(UserError, match="give the broker the bar_length"):
        SimulatedBroker(("ABC",), FREE, periods_per_year=1, store=tmp_path / "a.sqlite", faults=faults)

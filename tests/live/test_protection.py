"""The protective orders of a session: one per position, replaced as it changes, known by their IDs after a kill."""

from contextlib import contextmanager
from decimal import Decimal

import numpy as np
import pytest

from ml_pipeline.live.brokers.broker import OrderRequest, OrderUpdate
from ml_pipeline.live.brokers.simulated import SimulatedBroker
from ml_pipeline.live.protection import Position, Protector
from ml_pipeline.live.state import SessionState
from ml_pipeline.trading.accounts.orders import Terms

BOTH = Terms(0.0, 0.0, stop_loss=0.1, take_profit=0.2)
NOW = np.datetime64("2024-03-01T09:30", "ns")


class Broker:
    """Accepts protective orders, and keeps the latest of each symbol. refuses: the reason; None: it accepts."""

    def __init__(self):
        self.sent, self.open, self.ended, self.refuses = [], {}, {}, None

    def protect(self, protections):
        return [self._protect(each) for each in protections]

    def unprotect(self, symbols):
        for symbol in symbols:
            if symbol in self.open:
                self.ended[self.open.pop(symbol).client_order_id] = ("canceled", Decimal(0))

    def _protect(self, each):
        status, filled = self.ended.get(each.client_order_id, ("accepted", Decimal(0)))
        if status == "accepted" and self.open.get(each.symbol) != each:
            assert each.symbol not in self.open, "a position was protected twice"
            self.sent.append(each)
            if self.refuses is not None:
                return OrderUpdate(each.client_order_id, each.symbol, "rejected", None, filled, NOW, self.refuses)
            self.open[each.symbol] = each
        return OrderUpdate(each.client_order_id, each.symbol, status, None, filled, NOW)


class Record:
    def __init__(self):
        self.state = SessionState()

    @contextmanager
    def transaction(self):
        yield

    def log(self, *event, **values):
        pass


def start(broker, record, terms=BOTH):
    """A process of the session."""
    return Protector(broker, record, terms, name=lambda symbol, number: f"{symbol}-{number}")


@pytest.fixture
def broker():
    return Broker()


@pytest.fixture
def record():
    return Record()


def held(quantity, entry=100.0, symbol="A"):
    return Position(symbol, Decimal(str(quantity)), entry)


def keep(protector, *positions, bar=0, closed=False):
    return protector.keep(positions, bar, any_closed=lambda: closed)


def sent(broker):
    return [(each.client_order_id, float(each.quantity), each.stop_price, each.target_price) for each in broker.sent]


def test_a_position_is_protected_once_and_anew_when_it_changes(broker, record):
    protector = start(broker, record)
    for quantity, entry in ((10, 100.0), (10, 100.0), (15, 102.0), (6, 102.0), (0, 0.0), (-4, 50.0)):
        assert keep(protector, held(quantity, entry)) == []
        assert {float(each.quantity) for each in broker.open.values()} == ({quantity} if quantity else set())
    assert sent(broker) == [
        ("A-1", 10.0, 90.0, 120.0),
        ("A-2", 15.0, pytest.approx(91.8), pytest.approx(122.4)),
        ("A-3", 6.0, pytest.approx(91.8), pytest.approx(122.4)),
        ("A-5", -4.0, pytest.approx(55.0), 40.0),  # without a position there was no order to number 4
    ]


def test_a_split_doubles_the_order_and_halves_its_prices(broker, record):
    protector = start(broker, record)
    keep(protector, held(10, 100.0))
    keep(protector, held(20, 50.0))
    assert sent(broker)[-1] == ("A-2", 20.0, 45.0, 60.0)


def test_the_next_process_finds_the_order_by_its_id(broker, record):
    keep(start(broker, record), held(10))
    keep(start(broker, record), held(10))
    assert len(broker.sent) == 1


def test_an_order_that_was_canceled_for_another_is_put_back_under_a_new_id(broker, record):
    protector = start(broker, record)
    keep(protector, held(10))
    protector.lift({"A"})
    assert broker.open == {}
    keep(start(broker, record), held(10))  # killed in between
    assert [each[:2] for each in sent(broker)] == [("A-1", 10.0), ("A-2", 10.0)]
    assert list(broker.open) == ["A"]


def test_what_an_order_leaves_is_protected_before_it_is_sent(broker, record):
    """Also if the process ends before the order is sent, and the next one lifts and sends again."""
    keep(start(broker, record), held(10), held(5, symbol="B"), held(-8, symbol="C"))
    changes = {"A": Decimal(-4), "B": Decimal(-5), "C": Decimal(-2)}  # reduces, closes, enlarges
    for _ in range(2):
        protector = start(broker, record)
        protector.lift(changes)
        protector.keep_rest(changes)
        assert {symbol: each.quantity for symbol, each in broker.open.items()} == {"A": 6}
    assert sent(broker)[-1][1:] == (6.0, 90.0, 120.0)
    n_sent = len(broker.sent)
    assert keep(protector, held(6), held(0, symbol="B"), held(-10, symbol="C")) == []
    assert [each.symbol for each in broker.sent[n_sent:]] == ["C"]
    protector.lift({"A"})
    protector.keep_rest({"A": Decimal(-2)})
    assert broker.open["A"].quantity == 4


def test_if_the_order_does_not_fill_the_whole_is_protected_again(broker, record):
    protector = start(broker, record)
    keep(protector, held(10))
    protector.lift({"A"})
    protector.keep_rest({"A": Decimal(-4)})
    keep(protector, held(10))
    assert [each.quantity for each in broker.open.values()] == [10]
    protector.lift({"A"})
    protector.keep_rest({"A": Decimal(-3)})
    assert [each.quantity for each in broker.open.values()] == [7]


def test_an_order_that_ended_in_part_leaves_the_next_one_its_shares(broker, record):
    protector = start(broker, record)
    keep(protector, held(100))
    protector.lift({"A"})
    protector.keep_rest({"A": Decimal(-40)})
    protector.note_end("A", Decimal(-25))  # and its rest was canceled: 75 are held
    protector.lift({"A"})
    protector.keep_rest({"A": Decimal(-30)})
    assert [each.quantity for each in broker.open.values()] == [45]
    protector.note_end("A", Decimal(-105))  # through zero: the prices would be those of a long position
    protector.lift({"A"})
    protector.keep_rest({"A": Decimal(10)})
    assert not broker.open


def test_an_order_that_the_broker_ended_is_renewed(broker, record):
    protector = start(broker, record)
    keep(protector, held(10))
    broker.unprotect({"A"})
    assert protector.note(OrderUpdate("A-1", "A", "expired", None, Decimal(0), NOW))
    keep(protector, held(10))
    assert [each[:2] for each in sent(broker)] == [("A-1", 10.0), ("A-2", 10.0)]


def test_a_partly_filled_order_still_covers_what_is_left(broker, record):
    protector = start(broker, record)
    keep(protector, held(10))
    protector.note(OrderUpdate("A-1", "A", "partly_filled", None, Decimal(-4), NOW))
    keep(protector, held(6))
    assert len(broker.sent) == 1


def test_what_an_order_did_not_cover_is_protected_when_it_has_ended(broker, record):
    protector = start(broker, record)
    keep(protector, held("10.5"))
    broker.open.clear()
    broker.ended["A-1"] = ("filled", Decimal(-10))
    protector.note(OrderUpdate("A-1", "A", "filled", None, Decimal(-10), NOW))
    broker.refuses = "no whole share"
    ((position, reason),) = keep(protector, held("0.5"))
    assert (position.quantity, reason) == (Decimal("0.5"), "no whole share")


def test_nothing_is_sent_before_a_filled_stop_is_booked(broker, record):
    protector = start(broker, record)
    assert keep(protector, held(10), closed=True) is None
    assert broker.sent == []


def test_a_refusal_is_told_once_per_bar(broker, record):
    protector = start(broker, record)
    broker.refuses = "halted"
    assert [each.reason for each in keep(protector, held(10), held(5, symbol="B"), bar=3)] == ["halted", "halted"]
    assert keep(protector, held(10), held(5, symbol="B"), bar=3) == []
    broker.refuses = None
    assert keep(protector, held(10), held(5, symbol="B"), bar=4) == []
    assert sorted(broker.open) == ["A", "B"]


def test_updates_of_other_orders_are_left_to_others(broker, record):
    protector = start(broker, record)
    keep(protector, held(10))
    assert protector.knows("A-1")
    assert not protector.knows("other")
    assert not protector.note(OrderUpdate("other", "A", "filled", None, Decimal(1), NOW))


def test_orders_carry_the_exits_of_what_they_open_from_their_limit_or_the_close(broker, record):
    protector = start(broker, record)
    order = OrderRequest("a", "A", Decimal(-5), -0.5)
    assert protector.with_exits(order, 100.0)[-2:] == (pytest.approx(110.0), 80.0)
    assert protector.with_exits(order._replace(limit_price=50.0), 100.0)[-2:] == (pytest.approx(55.0), 40.0)
    assert protector.with_exits(order._replace(closing=True), 100.0)[-2:] == (None, None)


@pytest.mark.parametrize("terms", [BOTH, Terms(0.0, 0.0)])
def test_without_rules_or_at_a_broker_that_closes_positions_itself_nothing_is_sent(broker, record, terms):
    own = broker if terms is not BOTH else SimulatedBroker.__new__(SimulatedBroker)
    protector = start(own, record, terms)
    assert not protector.active
    assert keep(protector, held(10)) == []
    protector.lift({"A"})
    assert record.state.protections == {}

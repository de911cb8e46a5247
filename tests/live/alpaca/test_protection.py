"""Stops and targets are orders at Alpaca: sent with the entry, found again by their ID, never doubled."""

import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.live.brokers.broker import BrokerUnavailable, Fill, OrderRequest, OrderUpdate, Protection, exact
from ml_pipeline.live.protection import Position
from ml_pipeline.trading.accounts.rules import CostsAndLimits
from tests.live.alpaca.conftest import poll_until
from tests.live.test_protection import Record, start

BODY = {"code": 42210000, "message": "stop price must not be greater than base price / 1.001"}


def order(name, quantity, symbol="AAPL", **more):
    return OrderRequest(name, symbol, exact(quantity), 0.1, **more)


def protection(name="p", quantity=10.0, stop=95.004, target=110.001):
    return Protection(name, "AAPL", exact(quantity), stop, target)


def fills(events):
    return [(each.client_order_id, each.quantity, each.price, each.exit) for each in events if isinstance(each, Fill)]


def states(events):
    return [(each.client_order_id, each.status) for each in events if isinstance(each, OrderUpdate)]


def exits(server):
    """What is open at the server: (type, quantity, price, how long it is valid)."""
    found = [each.as_json() for each in server.trading.exchange.orders.values() if each.status in ("new", "held")]
    names = ("type", "side", "qty", "stop_price", "limit_price", "time_in_force")
    return sorted(tuple(each[name] for name in names if each[name] is not None) for each in found)


def bar(server, low, high, opened=100):
    server.trading.exchange.close_bar({"AAPL": (opened, high, low, 100)})


BOTH = [("limit", "sell", "10", "110.01", "gtc"), ("stop", "sell", "10", "95", "gtc")]


def test_an_entry_is_sent_with_its_stop_and_target_on_alpacas_grid(broker, server):
    _, cursor = broker.poll(None)
    broker.submit([order("a", 10.0, stop_price=95.004, target_price=110.001)])
    assert server.trading.exchange.orders["a"].order_class == "bracket"
    assert exits(server) == BOTH
    bar(server, low=94, high=101)
    events, cursor = poll_until(broker, cursor, lambda events: len(fills(events)) == 2)
    assert fills(events) == [("a", 10.0, 100.0, False), ("a", -10.0, 95.0, True)]
    assert states(events) == [("a", "filled")]  # the entry's, whatever becomes of its legs
    assert broker.account().positions == {}
    assert broker.orders() == []
    assert broker.poll(cursor)[0] == []


def test_an_order_that_opens_nothing_has_no_legs(broker, server):
    broker.submit([order("a", 10.0)])
    broker.submit([order("b", -4.0, stop_price=105.0, target_price=90.0)])
    assert exits(server) == []


def test_the_part_that_opens_a_position_on_the_other_side_has_legs(broker, server):
    broker.submit([order("a", 10.0)])
    broker.submit([order("b", -15.0, stop_price=104.996, target_price=89.999)])
    assert exits(server) == [("limit", "buy", "5", "89.99", "gtc"), ("stop", "buy", "5", "105", "gtc")]


@pytest.mark.parametrize(
    ("stop", "target", "expected"),
    [
        (95.004, 110.001, BOTH),
        (95.004, None, [BOTH[1]]),
        (None, 110.001, [BOTH[0]]),
    ],
)
def test_a_position_is_protected_until_canceled_by_one_order_that_the_next_process_finds(
    open_broker, server, stop, target, expected
):
    first = open_broker()
    first.submit([order("a", 10.0)])
    (answer,) = first.protect([protection(stop=stop, target=target)])
    assert (answer.client_order_id, answer.status, answer.quantity) == ("p", "accepted", -10.0)
    assert exits(server) == expected
    first.close()
    second = open_broker()
    (again,) = second.protect([protection(stop=stop, target=target)])
    assert again.status == "accepted"
    assert exits(server) == expected
    assert [each.client_order_id for each in second.orders()] == ["p"]


def test_what_is_closed_while_no_process_runs_is_told_once_under_its_id(open_broker, server):
    first = open_broker()
    _, cursor = first.poll(None)
    first.submit([order("a", 10.0)])
    first.protect([protection()])
    _, cursor = poll_until(first, cursor, lambda events: ("p", "accepted") in states(events))
    first.close()
    bar(server, low=90, high=101, opened=92)
    second = open_broker()
    events, cursor = second.poll(cursor)
    assert fills(events) == [("p", -10.0, 92.0, True)]
    assert states(events) == [("p", "filled")]
    assert second.poll(cursor)[0] == []
    (again,) = second.protect([protection()])
    assert (again.status, again.filled_quantity) == ("filled", -10.0)
    assert server.trading.exchange.positions == {}


def test_a_stop_that_was_sent_before_a_kill_is_told_of_whatever_the_next_process_asks_for(open_broker, server):
    first = open_broker()
    _, cursor = first.poll(None)
    first.submit([order("a", 10.0, stop_price=95.0)])
    first.close()  # nothing was told
    bar(server, low=90, high=101)
    events, _ = open_broker().poll(cursor)
    assert fills(events) == [("a", 10.0, 100.0, False), ("a", -10.0, 95.0, True)]


def test_what_an_order_leaves_of_a_position_is_never_unprotected_while_it_is_filled(broker, server):
    """Alpaca sells the shares that the reduced stop and target do not hold, at whatever time they are filled."""
    exchange = server.trading.exchange
    protector = start(broker, Record())
    broker.submit([order("a", 10.0)])
    assert protector.keep([Position("AAPL", exact(10), 100.0)], 1, any_closed=lambda: False) == []
    exchange.fills = "on demand"
    protector.lift({"AAPL"})
    protector.keep_rest({"AAPL": exact(-4)})
    (sent,) = broker.submit([order("b", -4.0)])
    assert sent.status == "accepted"
    assert [each[2] for each in exits(server) if each[0] != "market"] == ["6", "6"]
    exchange.fill("b")
    assert protector.keep([Position("AAPL", exact(6), 100.0)], 2, any_closed=lambda: False) == []
    assert [each[:3] for each in exits(server)] == [("limit", "sell", "6"), ("stop", "sell", "6")]
    assert exchange.positions == {"AAPL": 6}


def test_alpaca_holds_the_shares_until_both_orders_are_canceled(open_broker, server):
    first = open_broker()
    first.submit([order("a", 10.0)])
    first.protect([protection()])
    (refused,) = first.submit([order("b", -10.0)])
    assert "insufficient qty available" in refused.reason
    (refused,) = first.submit([order("c", 5.0)])
    assert "potential wash trade" in refused.reason
    first.close()
    second = open_broker()
    second.poll(None)
    second.unprotect({"MSFT"})
    assert exits(server) == BOTH
    second.unprotect({"AAPL", "MSFT"})
    assert exits(server) == []
    second.submit([order("d", -10.0)])
    assert server.trading.exchange.positions == {}


def test_legs_of_an_entry_are_replaced_by_an_order_of_their_own(open_broker, server):
    first = open_broker()
    _, cursor = first.poll(None)
    first.submit([order("a", 10.0, stop_price=94.0, target_price=111.0)])
    _, cursor = first.poll(cursor)
    first.close()
    second = open_broker()
    _, cursor = second.poll(cursor)
    assert {each.client_order_id for each in second.orders()} == {"a"}  # not the IDs that Alpaca gave
    second.unprotect({"AAPL"})
    second.protect([protection()])
    assert exits(server) == BOTH
    bar(server, low=99, high=112)
    events, _ = poll_until(second, cursor, fills)
    assert fills(events) == [("p", -10.0, 110.01, True)]


def test_a_stop_that_is_still_being_canceled_is_waited_for(broker, server, hasty):
    broker.submit([order("a", 10.0)])
    broker.protect([protection()])
    server.faults.answer("DELETE /v2/orders", 200, times=4)
    with pytest.raises(BrokerUnavailable, match="is still canceling the stop or target p"):
        broker.unprotect({"AAPL"})
    server.faults.clear()
    broker.unprotect({"AAPL"})
    assert exits(server) == []


def test_a_target_that_is_filled_in_part_reduces_the_stop(broker, server):
    _, cursor = broker.poll(None)
    broker.submit([order("a", 10.0)])
    broker.protect([protection()])
    server.trading.exchange.fill("p.x", 4, price="110.01")
    events, cursor = poll_until(broker, cursor, lambda events: ("p", "partly_filled") in states(events))
    assert fills(events)[1:] == [("p", -4.0, 110.01, True)]
    bar(server, low=90, high=101)
    events, _ = poll_until(broker, cursor, lambda events: ("p", "filled") in states(events))
    assert fills(events) == [("p", -6.0, 95.0, True)]


@pytest.mark.parametrize("taken", [True, False])
def test_a_protective_order_whose_answer_was_lost_is_not_sent_twice(open_broker, server, taken):
    broker = open_broker()
    broker.submit([order("a", 10.0)])
    server.faults.answer("POST /v2/orders", 500, taken=taken)
    if taken:
        broker.protect([protection()])
    else:
        with pytest.raises(BrokerUnavailable, match=r"It is unknown whether it accepted order p\.x"):
            broker.protect([protection()])
    broker.protect([protection()])
    assert exits(server) == BOTH


def test_a_refused_protective_order_is_rejected_with_the_reason(broker, server):
    broker.submit([order("a", 10.0)])
    server.trading.exchange.prices = {"AAPL": 95}
    (answer,) = broker.protect([protection()])
    assert (answer.client_order_id, answer.status, answer.reason) == ("p", "rejected", BODY["message"])
    (answer,) = broker.protect([protection("q", quantity=0.5)])
    assert (answer.status, answer.reason) == (
        "rejected",
        "Alpaca protects whole shares only, and there is no whole one",
    )


def test_protected_positions_are_whole_shares_since_alpaca_protects_no_fraction(server):
    from ml_pipeline.live.alpaca.broker import open_alpaca
    from tests.live.alpaca.conftest import config_for

    with open_alpaca(config_for(server), rules=CostsAndLimits(stop_loss=0.05)) as broker:
        (bought,) = broker.submit([order("a", 3.75, stop_price=95.0)])
        assert (bought.quantity, bought.status) == (3.0, "filled")
        assert bought.reason == "3.75 shares are rounded down to 3: stops and targets are for whole shares"
        broker.unprotect({"AAPL"})
        (sold,) = broker.submit([order("b", -1.5)])
        assert sold.quantity == -1.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"order_class": "oto", "stop_loss": {"stop_price": "95"}, "time_in_force": "gtc"}, "must be DAY orders"),
        ({"order_class": "oto", "stop_loss": {"stop_price": "95"}}, "must be simple orders"),
        ({"order_class": "bracket", "stop_loss": {"stop_price": "95"}, "qty": "1"}, "invalid order"),
        ({"order_class": "oto", "stop_loss": {"stop_price": "95.001"}, "qty": "1"}, "sub-penny"),
        ({"order_class": "oto", "stop_loss": {"stop_price": "100"}, "qty": "1"}, "stop price must not be greater"),
    ],
)
def test_the_server_refuses_what_alpaca_refuses(server, changes, message):
    from tests.live.alpaca_server.exchange import Rejection

    fields = {"symbol": "AAPL", "qty": "1.5", "side": "buy", "type": "market", "time_in_force": "day"}
    with pytest.raises(Rejection, match=message):
        server.trading.exchange.submit(fields | changes)


def test_stops_and_targets_of_crypto_are_refused_at_the_start(server):
    from ml_pipeline.live.alpaca.broker import open_alpaca
    from tests.live.alpaca.conftest import config_for

    server.trading.exchange.assets = {"BTC/USD": {"class": "crypto"}}
    with pytest.raises(UserError, match="orders at Alpaca, which has none for crypto; train without them"):
        open_alpaca(config_for(server), symbols=["BTC/USD"], rules=CostsAndLimits(take_profit=0.05))

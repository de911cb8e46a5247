"""An account at a server that speaks Alpaca's protocol: orders, fills, positions, clock and calendar."""

from collections import Counter
from decimal import Decimal

import numpy as np
import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.live.alpaca.orders import OrderBook
from ml_pipeline.live.brokers.broker import Charge, Fill, OrderRequest, OrderUpdate
from tests.live.alpaca.conftest import config_for, poll_until


def order(name, quantity, symbol="AAPL", **more):
    return OrderRequest(name, symbol, quantity, 0.1, **more)


def fills(events):
    return [(each.client_order_id, each.quantity, each.price) for each in events if isinstance(each, Fill)]


def states(events):
    return [(each.client_order_id, each.status) for each in events if isinstance(each, OrderUpdate)]


def test_an_account_is_shown_as_alpaca_has_it(broker, server):
    server.trading.exchange.prices = {"AAPL": 200}
    broker.submit([order("a", 1.5), order("b", -2.0, "TSLA")])
    account = broker.account()
    assert account.positions == {"AAPL": 1.5, "TSLA": -2.0}
    assert (account.cash, account.equity) == (100_000 - 300 + 200, 100_000)
    assert account.buying_power == 200_000 - 300 - 200
    assert broker.account_number == "PA1234567890"
    assert not broker.real_money


def test_an_order_is_filled_and_its_fill_is_told_once(broker):
    _, start = broker.poll(None)
    (answer,) = broker.submit([order("a", 1.5)])
    assert (answer.client_order_id, answer.quantity) == ("a", 1.5)
    events, cursor = poll_until(broker, start, lambda events: ("a", "filled") in states(events))
    assert fills(events) == [("a", 1.5, 100.0)]
    assert broker.poll(cursor)[0] == []


def test_the_same_cursor_gives_the_same_events_again(broker):
    _, start = broker.poll(None)
    broker.submit([order("a", 1.5), order("b", 2.0, "TSLA")])
    events, _ = poll_until(broker, start, lambda events: len(fills(events)) == 2)
    assert broker.poll(start)[0] == events


def test_a_poll_looks_only_at_orders_that_may_have_news(broker, server):
    """However many have ended before; those are found again by their IDs, and told again for an older cursor."""
    _, first = broker.poll(None)
    broker.submit([order(f"order {i}", 1.0) for i in range(12)])
    server.trading.exchange.fills = "on demand"
    broker.submit([order("open", 1.0)])
    events, second = broker.poll(first)
    assert len(fills(events)) == 12
    assert broker.poll(second)[0] == []
    assert [each.client_order_id for each in broker._tracked] == ["open"]

    assert [each.status for each in broker.orders(["order 3"])] == ["filled"]
    assert broker.submit([order("order 3", 1.0)])[0].status == "filled"
    assert broker.poll(second)[0] == []
    assert [each.client_order_id for each in broker._tracked] == ["open"]
    again, third = broker.poll(first)
    assert (again, third) == (events, second)
    server.trading.exchange.fill("open")
    events, _ = poll_until(broker, second, fills)
    assert fills(events) == [("open", 1.0, 100.0)]


def test_another_process_goes_on_from_the_cursor(open_broker, server):
    server.trading.exchange.fills = "on demand"
    first = open_broker()
    _, cursor = first.poll(None)
    first.submit([order("a", 5.0)])
    server.trading.exchange.fill("a", 2, price=10)
    events, cursor = poll_until(first, cursor, fills)
    first.close()
    server.trading.exchange.fill("a", 3, price=11)
    second = open_broker()
    events, cursor = second.poll(cursor)
    assert fills(events) == [("a", 3.0, 11.0)]
    assert states(events) == [("a", "filled")]
    assert second.poll(cursor)[0] == []


def test_an_order_that_is_there_is_not_taken_again(open_broker, server):
    first = open_broker()
    first.submit([order("a", 5.0)])
    first.close()
    second = open_broker()
    (answer,) = second.submit([order("a", 5.0)])
    assert answer.status == "filled"
    assert server.trading.exchange.positions == {"AAPL": 5}


def test_a_duplicate_id_means_that_it_is_there(open_broker, server):
    first, second = open_broker(), open_broker()
    second.submit([order("before", 1.0)])  # by which it knows the account's orders
    server.updates.silent = True
    first.submit([order("a", 5.0)])
    (answer,) = second.submit([order("a", 5.0)])
    assert (answer.status, answer.filled_quantity) == ("filled", 5.0)
    assert server.trading.exchange.positions == {"AAPL": 6}
    assert server.faults.requests.count("POST /v2/orders") == 3


@pytest.mark.parametrize(("held", "asked", "left"), [(2.5, -4.7, -2.0), (-3.0, 4.5, 1.5)])
def test_a_position_goes_through_zero_in_two_orders_and_is_told_as_one(broker, server, held, asked, left):
    broker.submit([order("before", held)])
    _, cursor = poll_until(broker, None, fills)
    (answer,) = broker.submit([order("a", asked)])
    assert (answer.status, answer.quantity) == ("filled", left - held)
    assert broker.account().positions == {"AAPL": left}
    assert {*server.trading.exchange.orders} == {"before", "a.0", "a"}
    events, _ = poll_until(broker, cursor, lambda events: ("a", "filled") in states(events))
    assert fills(events) == [("a", -held, 100.0), ("a", left, 100.0)]


def test_the_second_part_waits_for_the_first(broker, server, hasty):
    broker.submit([order("before", 2.0)])
    server.trading.exchange.fills = "on demand"
    (answer,) = broker.submit([order("a", -5.0)])
    assert (answer.status, answer.quantity, answer.filled_quantity) == ("accepted", -5.0, 0.0)
    assert "a" not in server.trading.exchange.orders
    server.trading.exchange.fill("a.0")
    poll_until(broker, None, lambda events: "a" in server.trading.exchange.orders)
    server.trading.exchange.fill("a")
    events, _ = poll_until(broker, None, lambda events: ("a", "filled") in states(events))
    assert fills(events)[1:] == [("a", -2.0, 100.0), ("a", -3.0, 100.0)]


@pytest.mark.parametrize("killed", ["while the first part is open", "before the second part was sent"])
def test_an_order_through_zero_is_finished_by_the_next_process(open_broker, server, killed, hasty):
    exchange = server.trading.exchange
    first = open_broker()
    first.submit([order("before", 2.0)])
    _, cursor = poll_until(first, None, fills)
    exchange.fills = "on demand"
    first.submit([order("a", -5.0)])
    first.close()
    if killed == "before the second part was sent":
        exchange.fill("a.0")
    exchange.fills = "at once"
    second = open_broker()
    known = second.orders(["a"])
    assert [each.status for each in known] == ([] if "before" in killed else ["accepted"])
    second.submit([order("a", -5.0)])
    if "open" in killed:
        exchange.fill("a.0")
    events, _ = poll_until(second, cursor, lambda events: ("a", "filled") in states(events))
    assert sum(quantity for _, quantity, _ in fills(events)) == -5.0
    assert exchange.positions == {"AAPL": -3}


def test_a_closing_order_sells_what_the_account_has_to_the_last_digit(broker, server):
    for name, quantity in (("a", 0.1), ("b", 0.2)):
        broker.submit([order(name, quantity)])
    broker.submit([order("c", -(0.1 + 0.2), closing=True, limit_price=999.0)])
    assert server.trading.exchange.positions == {}
    (answer,) = broker.submit([order("d", -0.3, closing=True)])
    assert (answer.status, answer.reason) == ("rejected", "there is no position to close")
    (again,) = broker.submit([order("c", -0.3, closing=True)])
    assert again.status == "filled"


def test_what_alpaca_does_not_take_is_rounded_or_refused_in_words(broker, server):
    server.trading.exchange.assets = {"BRK": {"fractionable": False}, "HALT": {"tradable": False}}
    whole, halted, short = broker.submit([order("a", 1.5, "BRK"), order("b", 1.0, "HALT"), order("c", -0.5, "TSLA")])
    assert (whole.quantity, whole.reason) == (1.0, "1.5 shares are rounded down to 1: Alpaca has no fractions of it")
    assert (halted.status, halted.reason) == ("rejected", "HALT cannot be traded at Alpaca")
    assert (short.status, short.quantity) == ("rejected", -0.5)
    assert "shorts are whole shares" in short.reason


def test_sales_go_first_since_buys_may_need_their_money(broker, server):
    broker.submit([order("before", 1.0)])
    answers = broker.submit([order("buy", 1.0, "TSLA"), order("sell", -1.0)])
    assert [each.client_order_id for each in answers] == ["buy", "sell"]
    assert [*server.trading.exchange.orders] == ["before", "sell", "buy"]


def test_a_limit_order_waits_for_its_price(broker, server):
    (answer,) = broker.submit([order("a", 2.0, limit_price=99.999)])
    assert answer.status == "accepted"
    assert server.trading.exchange.orders["a"].as_json()["limit_price"] == "99.99"
    server.trading.exchange.close_bar({"AAPL": (100, 101, 99.99, 100)})  # touched, and not traded through
    assert broker.account().positions == {}
    server.trading.exchange.close_bar({"AAPL": (100, 101, 99, 100)})
    events, _ = poll_until(broker, None, lambda events: ("a", "filled") in states(events))
    assert fills(events) == [("a", 2.0, 99.99)]


def test_canceling_ends_what_is_open_and_leaves_what_has_ended(broker, server):
    broker.submit([order("done", 1.0)])
    server.trading.exchange.fills = "on demand"
    broker.submit([order("open", 2.0)])
    server.trading.exchange.fill("open", 0.5)
    broker.cancel(["done", "open", "never sent"])
    assert Counter(states(broker.poll(None)[0])) == Counter([("done", "filled"), ("open", "canceled")])
    assert broker.account().positions == {"AAPL": 1.5}
    assert broker.orders() == []


def test_canceling_before_the_second_part_leaves_it_out(broker, server, hasty):
    broker.submit([order("before", 2.0)])
    server.trading.exchange.fills = "on demand"
    broker.submit([order("a", -5.0)])
    broker.cancel(["a"])
    assert ("a", "canceled") in states(broker.poll(None)[0])
    assert server.trading.exchange.positions == {"AAPL": 2}


def test_orders_are_found_by_their_ids_and_the_open_ones_without(broker, server):
    server.trading.exchange.fills = "on demand"
    broker.submit([order("a", 1.0), order("b", 2.0)])
    by_hand = {"symbol": "MSFT", "qty": "1", "side": "buy", "type": "market", "time_in_force": "day"}
    server.trading.exchange.submit({**by_hand, "client_order_id": "own"})
    assert {each.client_order_id for each in broker.orders()} == {"a", "b", "own"}
    assert [each.client_order_id for each in broker.orders(["b", "unknown"])] == ["b"]
    server.trading.exchange.fill("own")
    events, _ = broker.poll(None)
    assert {each.client_order_id for each in events} == {"a", "b"}  # of what a person ordered, nothing is told


def test_an_expired_and_a_rejected_order_end(broker, server):
    server.trading.exchange.fills = "on demand"
    broker.submit([order("a", 1.0), order("b", 2.0)])
    server.trading.exchange.end("a", "expired")
    server.trading.exchange.end("b", "rejected")
    events, _ = poll_until(broker, None, lambda events: len(states(events)) == 2)
    assert dict(states(events)) == {"a": "expired", "b": "rejected"}


def test_no_digit_is_lost_between_the_account_and_the_server(broker, server):
    quantity, price = Decimal("0.123456789"), 123.456789
    server.trading.exchange.prices = {"AAPL": "123.456789"}
    broker.submit([order("a", quantity)])
    assert str(server.trading.exchange.positions["AAPL"]) == "0.123456789"
    events, _ = poll_until(broker, None, fills)
    assert fills(events) == [("a", quantity, price)]


def test_fees_interest_and_dividends_are_charges(open_broker, server):
    server.trading.exchange.charge("5", description="from before")
    broker = open_broker()
    events, cursor = broker.poll(None)
    assert events == []
    broker._activities.ask_now()  # as a minute later
    fee = server.trading.exchange.charge("0.35", description="TAF fee")
    dividend = server.trading.exchange.charge("-1.5", kind="DIV")
    events, after = broker.poll(cursor)
    assert {(each.charge_id, each.amount) for each in events} == {(fee, 0.35), (dividend, -1.5)}
    assert all(isinstance(each, Charge) for each in events)
    assert "TAF fee" in " ".join(each.what for each in events)
    assert broker.poll(after)[0] == []


def test_sessions_are_alpacas_with_half_days_holidays_and_summer_time(broker):
    sessions = broker.sessions(np.datetime64("2024-07-03"), np.datetime64("2024-07-05"))
    assert [tuple(map(str, each)) for each in sessions] == [
        ("2024-07-03T13:30:00.000000000", "2024-07-03T17:00:00.000000000"),
        ("2024-07-05T13:30:00.000000000", "2024-07-05T20:00:00.000000000"),
    ]
    (winter,) = broker.sessions(np.datetime64("2024-12-02T23:00"), np.datetime64("2024-12-02T23:00"))
    assert str(winter.opens) == "2024-12-02T14:30:00.000000000"


def test_the_time_is_that_of_alpacas_clock(server, open_broker):
    from datetime import timedelta

    server.trading.ahead = timedelta(hours=5)
    ahead = open_broker().now() - np.datetime64("now", "ns")
    assert abs(ahead - np.timedelta64(5, "h")) < np.timedelta64(1, "m")


def test_the_same_update_again_and_an_older_one_change_nothing(server):
    messages = []
    exchange = server.trading.exchange
    exchange.publish = messages.append
    exchange.fills = "on demand"
    exchange.submit(
        {"symbol": "X", "qty": "3", "side": "buy", "type": "market", "time_in_force": "day", "client_order_id": "a"}
    )
    exchange.fill("a", 1)
    exchange.fill("a", 2)
    forwards, backwards = OrderBook(None), OrderBook(None)
    for message in [*messages, *messages]:
        forwards.note_update(message)
    for message in reversed(messages):
        backwards.note_update(message)
    assert forwards.get("a") == backwards.get("a")
    order_id = forwards.get("a").order_id
    assert forwards.executions(order_id) == backwards.executions(order_id)
    assert len(forwards.executions(order_id)) == 2


def test_an_account_that_may_not_trade_is_refused(server):
    from ml_pipeline.live.alpaca.broker import open_alpaca

    server.trading.blocked = True
    with pytest.raises(UserError, match="does not allow this account to trade"):
        open_alpaca(config_for(server))


def test_a_symbol_that_alpaca_does_not_have_is_refused_at_the_start(server):
    from ml_pipeline.live.alpaca.broker import open_alpaca

    server.trading.exchange.assets = {"EURUSD": {"missing": True}, "BTCUSD": {"class": "crypto"}}
    with pytest.raises(UserError, match="EURUSD, BTCUSD cannot be traded in this account, which trades US stocks"):
        open_alpaca(config_for(server), symbols=["AAPL", "EURUSD", "BTCUSD"])


def test_a_pair_that_is_not_paid_in_dollars_is_refused_at_the_start(server):
    from ml_pipeline.live.alpaca.broker import open_alpaca

    with pytest.raises(UserError, match="ETH/BTC cannot be traded in this account"):
        open_alpaca(config_for(server), symbols=["BTC/USD", "ETH/BTC"])


def test_a_cursor_of_another_broker_is_refused(broker):
    with pytest.raises(UserError, match="it began with another broker"):
        broker.poll("17")


def test_real_money_is_traded_only_in_the_account_whose_number_was_typed(server, monkeypatch):
    from ml_pipeline.live.alpaca.broker import open_alpaca

    server.trading.key = server.updates.key = "AKTEST"
    monkeypatch.setenv("APCA_API_KEY_ID", "AKTEST")
    config = config_for(server, live=True, real_money=True)
    with pytest.raises(UserError, match="not the account number"):
        open_alpaca(config, ask=lambda question: "yes")
    with open_alpaca(config, ask=lambda question: "PA1234567890") as broker:
        assert broker.real_money


def test_closing_twice_is_closing_once_and_no_thread_is_left(open_broker):
    import threading

    broker = open_broker()
    broker.close()
    broker.close()
    assert "alpaca updates" not in [thread.name for thread in threading.enumerate()]


def test_what_was_sent_before_a_kill_is_told_by_the_next_process_whatever_it_asks_for(open_broker, server):
    first = open_broker()
    first.submit([order("told", 1.0)])
    _, cursor = poll_until(first, None, lambda events: ("told", "filled") in states(events))
    first.submit([order("a", 5.0), order("b", 2.0, "TSLA")])
    first.close()
    second = open_broker()
    events, cursor = second.poll(cursor)
    assert sorted(fills(events)) == [("a", 5.0, 100.0), ("b", 2.0, 100.0)]
    assert second.poll(cursor)[0] == []

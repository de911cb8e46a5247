"""Whatever goes wrong between the account and this program, no order is taken twice, no fill is lost or told twice, and
no call waits without end."""

import threading
import time

import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.live.brokers.broker import BrokerUnavailable, Fill, OrderRequest
from tests.live.alpaca.conftest import config_for, poll_until
from tests.models.rl.core.workers.probes import wait_until

SOON = {"alpaca_timeout_s": 1.0}  # a busy machine answers within it


def order(name, quantity, symbol="AAPL", **more):
    return OrderRequest(name, symbol, quantity, 0.1, **more)


def filled(events):
    return {each.fill_id: (each.client_order_id, each.quantity) for each in events if isinstance(each, Fill)}


def bought(events):
    told = [each for each in events if isinstance(each, Fill)]
    assert len(filled(told)) == len(told), "a fill was told twice"
    return sum(each.quantity for each in told)


def test_buying_power_that_is_missing_rejects_one_order_and_not_the_others(broker, server):
    answers = broker.submit([order("a", 1.0), order("b", 1_000_000.0), order("c", 2.0, "TSLA")])
    assert [each.status for each in answers] == ["filled", "rejected", "filled"]
    assert answers[1].reason == "insufficient buying power"


def test_a_refusal_of_another_kind_is_no_duplicate(broker, server):
    body = {"code": 40010001, "message": "client_order_id must be no more than 128 characters"}
    server.faults.answer("POST /v2/orders", 422, body)
    (answer,) = broker.submit([order("a", 1.0)])
    assert (answer.status, answer.reason) == ("rejected", body["message"])


def test_partial_fills_are_each_told_once_at_their_price(broker, server):
    server.trading.exchange.fills = "on demand"
    broker.submit([order("a", 5.0)])
    events, cursor = [], None
    for quantity, price in ((2, 10), (1, 11), (2, 12)):
        server.trading.exchange.fill("a", quantity, price)
        more, cursor = poll_until(broker, cursor, filled)
        events += more
    told = [(each.quantity, each.price) for each in events if isinstance(each, Fill)]
    assert told == [(2.0, 10.0), (1.0, 11.0), (2.0, 12.0)]


@pytest.mark.parametrize("times", [1, 2])
def test_too_many_requests_are_asked_again_within_the_time_there_is(broker, server, times):
    fault = server.faults.answer("POST /v2/orders", 429, {"code": 42910000, "message": "rate limit"}, times=times)
    (answer,) = broker.submit([order("a", 1.0)])
    assert (answer.status, fault.met) == ("filled", times)
    assert len(server.trading.exchange.orders) == 1


def test_too_many_requests_without_end_do_not_block(open_broker, server, monkeypatch):
    broker = open_broker(**SOON)
    fault = server.faults.answer("GET /v2/positions", 429, times=10**6)
    slept = []
    monkeypatch.setattr("ml_pipeline.live.alpaca.client.time.sleep", lambda s: slept.append(s) or wait(s))
    with pytest.raises(BrokerUnavailable, match="answers 429"):
        broker.account()
    assert fault.met >= 2
    assert sum(slept) <= 1.0  # alpaca-py would have slept for nine seconds


wait = time.sleep


@pytest.mark.parametrize("status", [500, 502, 503, 504])
def test_a_server_that_fails_once_is_asked_again(broker, server, status):
    fault = server.faults.answer("GET /v2/account", status)
    assert broker.account().cash == 100_000
    assert fault.met == 1


@pytest.mark.parametrize("fault", ["500", "silence", "cut"])
@pytest.mark.parametrize("taken", [True, False])
def test_an_order_whose_answer_was_lost_is_found_by_its_id_and_never_sent_twice(open_broker, server, fault, taken):
    broker = open_broker(**(SOON if fault == "silence" else {}))
    _, cursor = broker.poll(None)
    if fault == "500":
        server.faults.answer("POST /v2/orders", 500, taken=taken)
    elif fault == "silence":
        server.faults.silence("POST /v2/orders", taken=taken)
    else:
        server.faults.cut("POST /v2/orders", taken=taken)
    if taken:
        (answer,) = broker.submit([order("a", 5.0)])
        assert answer.client_order_id == "a"
    else:
        with pytest.raises(BrokerUnavailable, match="It is unknown whether it accepted order a"):
            broker.submit([order("a", 5.0)])
        assert broker.orders(["a"]) == []
        broker.submit([order("a", 5.0)])
    poll_until(broker, cursor, lambda events: bought(events) == 5.0)
    assert server.trading.exchange.positions == {"AAPL": 5}


def test_an_order_that_is_found_only_later_is_told_of(open_broker, server):
    broker = open_broker(**SOON)
    _, cursor = broker.poll(None)
    server.faults.silence("POST /v2/orders", taken=True)
    server.faults.answer("GET /v2/orders:by_client_order_id", 404)
    with pytest.raises(BrokerUnavailable):
        broker.submit([order("a", 5.0)])
    _, cursor = poll_until(broker, cursor, lambda events: bought(events) == 5.0)
    assert [each.status for each in broker.orders(["a"])] == ["filled"]
    assert broker.poll(cursor)[0] == []


@pytest.mark.parametrize(
    ("fault", "call"),
    [
        *(("silent", call) for call in ("poll", "submit", "cancel")),
        *(("gone", call) for call in ("account", "orders", "poll", "now", "sessions", "submit", "cancel")),
    ],
)
def test_no_call_waits_without_end(open_broker, server, fault, call):
    import numpy as np

    broker = open_broker(**SOON)
    _, cursor = broker.poll(None)
    server.trading.exchange.fills = "on demand"
    broker.submit([order("a", 1.0)])
    broker._hours._read = None
    if fault == "silent":
        server.faults.silence("", times=10**6)
    else:
        server.close()
    day = np.datetime64("2024-07-03")
    calls = {
        "account": broker.account,
        "orders": lambda: broker.orders(["a", "b"]),
        "poll": lambda: broker.poll(cursor),
        "now": broker.now,
        "sessions": lambda: broker.sessions(day, day),
        "submit": lambda: broker.submit([order("b", 1.0)]),
        "cancel": lambda: broker.cancel(["a"]),
    }
    with pytest.raises(BrokerUnavailable):
        calls[call]()


def test_an_answer_that_drips_in_is_given_up(open_broker, server, monkeypatch):
    broker = open_broker(**SOON)
    server.faults.drip("GET /v2/account")
    with pytest.raises(BrokerUnavailable, match=r"does not answer within 1 s"):
        broker.account()


def test_an_answer_that_is_no_json_is_no_answer(open_broker, server):
    broker = open_broker(**SOON)
    server.faults.answer("GET /v2/account", 200, raw=b"<html>", times=100)
    with pytest.raises(BrokerUnavailable, match="sent an unreadable answer"):
        broker.account()


def test_a_dropped_stream_is_taken_up_again_and_nothing_is_missed(broker, server):
    server.trading.exchange.fills = "on demand"
    broker.submit([order("a", 5.0)])
    server.updates.refuses = True
    server.updates.drop()
    wait_until(lambda: broker._stream.listening_since is None)
    server.trading.exchange.fill("a", 2)
    events, cursor = poll_until(broker, None, lambda events: bought(events) == 2.0)
    server.updates.refuses = False
    assert broker._stream.wait_until_listening(30)
    server.trading.exchange.fill("a", 3)
    more, cursor = poll_until(broker, cursor, lambda events: bought(events) == 3.0)
    assert bought([*events, *more]) == 5.0
    assert broker.poll(cursor)[0] == []


def test_a_silent_stream_hides_nothing(broker, server):
    server.updates.silent = True
    server.trading.exchange.fills = "on demand"
    broker.submit([order("a", 5.0)])
    server.trading.exchange.fill("a", 2, price=10)
    server.trading.exchange.fill("a", 3, price=11)
    events, cursor = poll_until(broker, None, lambda events: bought(events) == 5.0)
    assert [(each.quantity, each.price) for each in events if isinstance(each, Fill)] == [(2.0, 10.0), (3.0, 11.0)]
    assert broker.poll(cursor)[0] == []


def test_where_activities_are_late_as_well_the_average_tells_what_was_paid(broker, server):
    server.updates.silent, server.trading.exchange.in_activities = True, False
    server.trading.exchange.fills = "on demand"
    broker.submit([order("a", 5.0)])
    server.trading.exchange.fill("a", 2, price=10)
    server.trading.exchange.fill("a", 3, price=11)
    events, _ = poll_until(broker, None, lambda events: bought(events) == 5.0)
    assert sum(float(each.quantity) * each.price for each in events if isinstance(each, Fill)) == pytest.approx(
        53, rel=1e-12
    )


def test_messages_that_come_twice_and_backwards_are_told_once(broker, server):
    server.trading.exchange.fills = "on demand"
    server.updates.copies = 2
    server.updates.hold()
    broker.submit([order("a", 5.0)])
    for quantity in (2, 1, 2):
        server.trading.exchange.fill("a", quantity)
    server.updates.release(backwards=True)
    events, cursor = poll_until(broker, None, lambda events: bought(events) == 5.0)
    assert len(filled(events)) == 3
    server.updates.hold()
    server.updates.release()
    assert broker.poll(cursor)[0] == []


def test_messages_that_come_after_their_fills_were_asked_for_change_nothing(broker, server):
    server.trading.exchange.fills = "on demand"
    server.updates.hold()
    server.trading.exchange.in_activities = False
    broker.submit([order("a", 5.0)])
    server.trading.exchange.fill("a", 2)
    server.trading.exchange.fill("a", 1)
    events, cursor = poll_until(broker, None, lambda events: bought(events) == 3.0)
    server.updates.release()
    server.trading.exchange.fill("a", 2)
    more, _ = poll_until(broker, cursor, lambda events: bought(events) == 2.0)
    assert bought([*events, *more]) == 5.0


def test_a_stream_that_never_connects_is_no_reason_to_stop(open_broker, server):
    server.updates.refuses = True
    broker = open_broker(listening=False)
    broker.submit([order("a", 5.0)])
    poll_until(broker, None, lambda events: bought(events) == 5.0)


def test_a_server_that_comes_back_is_used_again(open_broker, server):
    broker = open_broker(**SOON)
    server.faults.silence("", times=10**6)
    with pytest.raises(BrokerUnavailable):
        broker.submit([order("a", 5.0)])
    server.faults.release()
    broker.submit([order("a", 5.0)])
    poll_until(broker, None, lambda events: bought(events) == 5.0)


def test_a_refused_second_part_is_told(broker, server):
    broker.submit([order("before", 2.0)])
    server.trading.exchange.assets["AAPL"] = {"shortable": False}  # from one moment to the next
    (answer,) = broker.submit([order("a", -5.0)])
    assert (answer.status, answer.filled_quantity) == ("canceled", -2.0)
    assert "the rest of the order refused: asset AAPL cannot be sold short" in answer.reason


def test_a_second_part_whose_answer_was_lost_is_neither_lost_nor_sent_twice(open_broker, server):
    broker = open_broker(**SOON)
    broker.submit([order("before", 2.0)])
    _, cursor = poll_until(broker, None, filled)
    server.faults.silence("POST /v2/orders", after=1)
    with pytest.raises(BrokerUnavailable):
        broker.submit([order("a", -5.0)])
    broker.submit([order("a", -5.0)])
    poll_until(broker, cursor, lambda events: bought(events) == -5.0)
    assert server.trading.exchange.positions == {"AAPL": -3}


def test_keys_that_are_refused_are_told_in_a_sentence(server, monkeypatch):
    from ml_pipeline.live.alpaca.broker import open_alpaca

    monkeypatch.setenv("APCA_API_SECRET_KEY", "another")
    with pytest.raises(UserError, match="paper account does not accept these keys") as refused:
        open_alpaca(config_for(server))
    assert "another" not in str(refused.value)


def test_a_call_from_another_thread_does_not_shorten_the_time_of_this_one(open_broker, server):
    broker = open_broker()
    answers = []
    threads = [threading.Thread(target=lambda: answers.append(broker.account().cash)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [100_000.0] * 4

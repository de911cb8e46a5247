"""What Alpaca reports of an account is booked under its name, or reported in a sentence and left alone."""

from decimal import Decimal

import numpy as np
import pytest

from ml_pipeline.live.alpaca.activities import read_activity
from ml_pipeline.live.alpaca.events import EventCursor, read_cursor
from ml_pipeline.live.brokers.broker import Adjustment, Charge, Notice, UnreadableAnswer

FEE = {"id": "20240301::7", "activity_type": "FEE", "date": "2024-03-01", "net_amount": "-0.35", "status": "executed"}


def activity(kind, **changes):
    return FEE | {"activity_type": kind} | changes


@pytest.mark.parametrize(
    ("kind", "fields", "booked"),
    [
        ("CSD", {"net_amount": "5000"}, ("deposit", "", 0, 5000.0)),
        ("CSW", {"net_amount": "-2500.5"}, ("withdrawal", "", 0, -2500.5)),
        ("JNLC", {"net_amount": "12"}, ("transfer", "", 0, 12.0)),
        ("ACATS", {"symbol": "AAPL", "qty": "3", "net_amount": "0"}, ("transfer", "AAPL", 3.0, 0.0)),
        ("SPLIT", {"symbol": "AAPL", "qty": "-431.6", "net_amount": None}, ("split", "AAPL", Decimal("-431.6"), 0.0)),
        ("NC", {"symbol": "META", "qty": "10", "net_amount": "0"}, ("symbol change", "META", 10.0, 0.0)),
        ("MA", {"symbol": "TWTR", "qty": "-10", "net_amount": "542"}, ("merger", "TWTR", -10.0, 542.0)),
    ],
)
def test_what_changes_cash_or_shares_has_its_name(kind, fields, booked):
    read = read_activity(activity(kind, **fields))
    assert isinstance(read, Adjustment)
    assert read[1:5] == booked
    assert (read.adjustment_id, read.time) == (FEE["id"], np.datetime64("2024-03-01"))


@pytest.mark.parametrize(
    ("kind", "amount", "what"),
    [
        ("FEE", "-0.35", "fee"),
        ("INT", "1.25", "interest"),
        ("DIV", "12.5", "dividend AAPL"),
        ("DIVNRA", "-3", "tax"),
    ],
)
def test_fees_interest_and_dividends_have_their_names(kind, amount, what):
    read = read_activity(activity(kind, net_amount=amount, **({"symbol": "AAPL"} if kind == "DIV" else {})))
    assert isinstance(read, Charge)
    assert read.amount == -float(amount)
    assert read.what.startswith(what)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"net_amount": None}, "its net_amount is missing"),
        ({"net_amount": "a lot"}, 'its net_amount is "a lot", but must be a number'),
        ({"net_amount": "NaN"}, 'its net_amount is "NaN", but must be a number'),
        ({"net_amount": True}, 'its net_amount is "True", but must be a number'),
        ({"activity_type": "XYZ"}, "its type is unknown"),
        ({"activity_type": None}, "its type is unknown"),
        ({"status": "canceled"}, 'its status is "canceled"'),
        ({"date": None}, 'its date is "None"'),
        ({"date": "yesterday"}, 'its date is "yesterday"'),
        ({"activity_type": "SPLIT", "symbol": "AAPL"}, "its qty is missing"),
        ({"activity_type": "SPLIT", "qty": "3"}, "its symbol is missing"),
    ],
)
def test_what_cannot_be_read_is_a_sentence_with_its_id(fields, why):
    read = read_activity(FEE | fields)
    assert isinstance(read, Notice)
    assert read.notice_id == FEE["id"]
    assert f"activity {FEE['id']}" in read.sentence
    assert why in read.sentence


def new_events(broker, cursor):
    broker._activities.ask_now()  # as a minute later
    return broker.poll(cursor)


def test_the_two_entries_of_a_split_are_one_change_and_told_once(broker, server):
    server.trading.exchange.positions["AAPL"] = Decimal("431.6")
    _, cursor = broker.poll(None)
    server.trading.exchange.split("AAPL", 2, 1)
    (split,), after = new_events(broker, cursor)
    assert (split.kind, split.symbol, split.quantity, split.cash) == ("split", "AAPL", Decimal("431.6"), 0.0)
    assert new_events(broker, after)[0] == []


def test_repeated_and_reordered_activities_are_told_once(broker, server):
    _, cursor = broker.poll(None)
    later = activity("CSD", id="20240302::9", net_amount="100", date="2024-03-02")
    server.faults.answer("GET /v2/account/activities", 200, [later, FEE, later, FEE])
    events, after = new_events(broker, cursor)
    assert [type(each) for each in events] == [Charge, Adjustment]
    server.faults.answer("GET /v2/account/activities", 200, [FEE, later])
    assert new_events(broker, after)[0] == []


def test_an_older_program_s_cursor_books_no_deposit_of_before(broker, server):
    exchange = server.trading.exchange
    fee = exchange.charge("1")
    exchange.adjust("CSD", cash="500")
    cursor = EventCursor(charges=[], charges_only=True).dump()
    assert read_cursor(cursor.replace(', "charges_only": true', "").replace(',"charges_only":true', "")).charges_only
    events, after = new_events(broker, cursor)
    assert [each.charge_id for each in events] == [fee]
    exchange.adjust("CSD", cash="700")
    assert [each.cash for each in new_events(broker, after)[0]] == [700.0]


@pytest.mark.parametrize("answer", ["no list", [1, 2], {"message": "x"}])
def test_a_list_of_activities_that_is_none_is_refused(broker, server, answer):
    _, cursor = broker.poll(None)
    server.faults.answer("GET /v2/account/activities", 200, answer)
    with pytest.raises(UnreadableAnswer, match="list of account activities cannot be read"):
        new_events(broker, cursor)


POSITION = {"asset_id": "a-1", "symbol": "AAPL", "qty": "5", "side": "long"}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"qty": None}, r"position AAPL \(a-1\) cannot be read: its qty is missing"),
        ({"qty": "many"}, 'its qty is "many", but must be a number'),
        ({"qty": "Infinity"}, 'its qty is "Infinity", but must be a number'),
        ({"qty": "-5"}, 'its side is "long" and its qty -5'),
        ({"side": None}, 'its side is "None" and its qty 5'),
        ({"symbol": None}, "its symbol is missing or repeated"),
    ],
)
def test_a_position_that_cannot_be_read_is_a_sentence(broker, server, changes, why):
    server.faults.answer("GET /v2/positions", 200, [POSITION | changes])
    with pytest.raises(UnreadableAnswer, match=why):
        broker.account()


def test_a_short_position_is_negative_with_and_without_its_sign(broker, server):
    for qty in ("5", "-5"):
        server.faults.answer("GET /v2/positions", 200, [POSITION | {"qty": qty, "side": "short"}])
        assert broker.account().positions == {"AAPL": -5.0}


@pytest.mark.parametrize(("cash", "why"), [(None, "its cash is missing"), ("n/a", 'its cash is "n/a"')])
def test_an_account_without_cash_is_a_sentence(broker, server, cash, why):
    answer = {"account_number": "PA1", "equity": "1", "buying_power": "1", "cash": cash}
    server.faults.answer("GET /v2/account", 200, answer)
    with pytest.raises(UnreadableAnswer, match=f"account PA1234567890 cannot be read: {why}"):
        broker.account()

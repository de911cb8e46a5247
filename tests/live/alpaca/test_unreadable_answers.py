"""Whatever one field of an answer holds, the broker reports the same account as ever, or that it cannot read it."""

import copy
from collections import Counter

import pytest

from ml_pipeline.live.alpaca.broker import AlpacaBroker
from ml_pipeline.live.alpaca.client import Refused, RestClient
from ml_pipeline.live.brokers.broker import Fill, OrderRequest, OrderUpdate, UnreadableAnswer

SHAPES = [None, {}, "text", 7, [None], [7]]
UNREADABLE = [None, "", "many", {}, -1, True]
NAMES = {"id", "client_order_id", "symbol", "order_id", "activity_type", "account_number", "class", "asset_class"}
"""A name that is another one can be read."""
SIGNED = {"cash", "equity", "buying_power", "multiplier", "daytrade_count"}
LEFT_OUT = {"daytrade_count", "multiplier", "legs"}
"""If it is missing, a rule is not applied, or it is no group of orders."""


class SilentStream:
    listening_since = None

    def close(self):
        pass


class Replayed:
    """Answers as they were recorded, except for the one at `path`."""

    def __init__(self, answers, path="", spoiled=None):
        self.answers = {**answers, path: spoiled} if path else answers

    def get(self, path, parameters=None):
        name = path_and_id(path, parameters or {})
        if name not in self.answers:
            raise Refused(404, 0, name)
        return copy.deepcopy(self.answers[name])

    def post(self, path, content):
        return self.get(f"POST {path}")

    def close(self):
        pass


def path_and_id(path, parameters):
    return path + "".join(f"?{parameters[name]}" for name in ("client_order_id", "status") if name in parameters)


def order(name, quantity, symbol="AAPL"):
    return OrderRequest(name, symbol, quantity, 0.1, price=100.0)


def seen_by(rest, cursor):
    """All that a new process sees of the account and does there, by what it asked for, without times."""
    broker = AlpacaBroker(rest, lambda book: SilentStream(), real_money=False, account_number="PA1")
    events, _ = broker.poll(cursor)
    return {
        "account": broker.account(),
        "open": of_orders(broker.orders()),
        "known": of_orders(broker.orders(["a", "b"])),
        "events": [(each.client_order_id, each.quantity, each.price) for each in events if isinstance(each, Fill)],
        "states": of_orders(each for each in events if isinstance(each, OrderUpdate)),
        "sessions": broker.sessions(broker.now(), broker.now()),
        "sent": of_orders(broker.submit([order("c", 1.5)])),
    }


def of_orders(updates):
    return [(each.client_order_id, each.symbol, each.status, each.quantity, each.filled_quantity) for each in updates]


@pytest.fixture
def recorded(server, open_broker, monkeypatch):
    """(the answers about an account with a filled order and one that is filled in part, the cursor before them)."""
    answers, call = {}, RestClient._call

    def noted(rest, method, path, content, **options):
        answer = call(rest, method, path, content, **options)
        name = path_and_id(path, content if method == "GET" else {})
        answers[name if method == "GET" else f"{method} {name}"] = answer
        return answer

    exchange = server.trading.exchange
    exchange.fills = "on demand"
    first = open_broker(listening=False)
    _, cursor = first.poll(None)
    first.submit([order("a", 2.5), order("b", -3.0, "TSLA")])
    exchange.fill("a", 1.0, price=10)
    _, cursor = first.poll(cursor)
    exchange.fill("a", 1.5, price=20)
    exchange.fill("b", 1.0, price=30)
    monkeypatch.setattr(RestClient, "_call", noted)
    broker = open_broker(listening=False)
    broker.poll(cursor)
    broker.account()
    broker.orders()
    for name in ("a", "b"):
        broker._book.ask(name)
    broker.sessions(broker.now(), broker.now())
    broker.submit([order("c", 1.5)])
    answers |= {"/orders:by_client_order_id?c": answers["POST /orders"]}
    return answers, cursor


def spoilt(answer):
    """(what is wrong, the answer with it) for each field, and for the answer as a whole."""
    yield from ((f"is {shape}", shape) for shape in SHAPES)
    entry, *others = (answer or [{}]) if isinstance(answer, list) else [answer]
    for name in entry:
        values = [value for value in UNREADABLE if not is_readable(name, value)]
        without = {each: entry[each] for each in entry if each != name}
        changes = [without] if name not in LEFT_OUT else []
        for changed in [*changes, *({**entry, name: value} for value in values)]:
            wrong = [changed, *others] if isinstance(answer, list) else changed
            yield f"{name} {changed.get(name, 'missing')!r}", wrong


def is_readable(name, value):
    return (
        (name in NAMES and value == "many") or (name in SIGNED and value == -1) or (name in LEFT_OUT and value is None)
    )


def outcome(rest, cursor, expected):
    try:
        return "same" if seen_by(rest, cursor) == expected else "different"
    except UnreadableAnswer as error:
        return "told" if "cannot be read: it" in str(error) else str(error)


def test_an_answer_with_an_unreadable_field_is_a_sentence_or_changes_nothing(recorded):
    answers, cursor = recorded
    expected, outcomes = seen_by(Replayed(answers), cursor), Counter()
    assert expected["events"] == [("a", 1.5, 20.0), ("b", -1.0, 30.0)]
    for path, answer in answers.items():
        for what, wrong in spoilt(answer):
            found = outcome(Replayed(answers, path, wrong), cursor, expected)
            assert found in ("told", "same"), (path, what, found)
            outcomes[path, found] += 1
    # An order whose answer cannot be read is looked up.
    looked_up = {path for path in answers if path.startswith(("POST", "/orders:by_client"))}
    assert {path for path, found in outcomes if found == "told"} == {*answers} - looked_up

"""Whatever happens in the account at Alpaca: the books follow, or the session stops and says why."""

import json
import time
from collections.abc import Callable
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ml_pipeline.live import orders
from ml_pipeline.live.alpaca import activities
from ml_pipeline.live.alpaca.client import RestClient
from ml_pipeline.live.cash_flows import announce
from ml_pipeline.live.config import paper_trade_config
from ml_pipeline.live.connections import open_feed
from ml_pipeline.live.decisions.deployed_policy import load_deployed_policy
from ml_pipeline.live.record.journal import Journal
from ml_pipeline.live.session import PaperTrading, SessionResult
from ml_pipeline.live.session_files import JOURNAL_FILE
from ml_pipeline.live.state import SessionState
from ml_pipeline.trading.market.bar_set import BarSet
from tests.live.loop.sessions import ChangedFeed, deploy
from tests.live.loop.test_trading_loop import events_of

AAPL = ["AAPL"]
HAPPENS_AT = 20
OF_PRICES = {"features": ("log_return_1", "rsi_3"), "action_mode": "discrete", "allow_short": False}
Happening = Callable[[Any], None]


def write_minutes(path: Path, n_bars: int = 40) -> None:
    """Minutes of one symbol while its market is open."""
    closes = 100 * np.exp(np.random.default_rng(3).normal(0, 0.003, n_bars).cumsum())
    times = np.datetime64("2024-03-04T14:30") + np.arange(n_bars)
    named = zip(times.astype(str), closes, strict=True)
    rows = [f"{time.replace('T', ' ')}:00,{c},{c * 1.001},{c * 0.999},{c},100" for time, c in named]
    path.write_text("\n".join(["time,open,high,low,close,volume", *rows]) + "\n")


def books_of(folder: Path) -> tuple[float, Decimal]:
    """(cash, AAPL) in the journal of a session."""
    with closing(Journal(folder / JOURNAL_FILE)) as journal:
        account = SessionState.load(journal, AAPL).account
    cash, held, events = account["cash"], Decimal(str(account["holdings"][0])), account["events"]
    for kind, event in events:
        if kind == "Fill":
            cash -= float(event["quantity"]) * event["price"] + event["costs"]
            held += Decimal(str(event["quantity"]))
        else:
            cash += event["cash"] if kind == "Adjustment" else -event["amount"]
            held += Decimal(str(event["quantity"])) if kind == "Adjustment" else 0
    return cash, held


class AtAlpaca:
    """A session of recorded bars whose account is at the stand-in, which fills at the close of the decision."""

    def __init__(self, server, open_broker, tmp_path, **trading) -> None:
        self.server, self.open_broker, self.root = server, open_broker, tmp_path / "live"
        self.exchange = server.trading.exchange
        self.prices = tmp_path / "AAPL.csv"
        write_minutes(self.prices)
        self.model = deploy(tmp_path / "model", AAPL, **OF_PRICES, **trading)
        self.happens: dict[int, Happening] = {}
        self.n_bars = 0

    @property
    def folder(self) -> Path:
        return self.root / "NAME"

    def run(self, **settings: Any) -> SessionResult:
        values = {"model": self.model, "root": self.root, "name": "NAME", "broker": "simulated", "replay": self.prices}
        config = paper_trade_config(values | settings)
        feed = open_feed(config, load_deployed_policy(self.model, {**config.changes, "data": self.prices}))
        broker = self.open_broker(listening=False)
        return PaperTrading(config, feed=ChangedFeed(feed, self.next_item), broker=broker).run()

    def next_item(self, feed: Any, timeout_s: float | None) -> Any:
        item = feed.next(timeout_s)
        if isinstance(item, BarSet):
            number = int((item.time - np.datetime64("2024-03-04T14:30")) / np.timedelta64(1, "m"))
            self.exchange.prices["AAPL"] = Decimal(str(item.close[0]))
            if (happening := self.happens.pop(number, None)) is not None:
                happening(self.exchange)
        return item

    def books(self) -> tuple[float, float]:
        """(cash, AAPL) in the journal."""
        cash, held = books_of(self.folder)
        return cash, float(held)

    def assert_books_equal_the_account(self) -> None:
        cash, held = self.books()
        assert held == pytest.approx(float(self.exchange.positions.get("AAPL", 0)), abs=1e-8)
        assert cash == pytest.approx(float(self.exchange.cash), abs=0.01)

    def adjustments(self) -> list[Any]:
        with closing(Journal(self.folder / JOURNAL_FILE)) as journal:
            return [adjustment for _, adjustment in journal.adjustments()]


@pytest.fixture
def at_alpaca(server, open_broker, tmp_path):
    return AtAlpaca(server, open_broker, tmp_path)


def held(exchange) -> Decimal:
    return exchange.positions.get("AAPL", Decimal(0))


def splits(exchange) -> None:
    exchange.positions.setdefault("AAPL", Decimal("431.6"))
    exchange.split("AAPL", 2, 1)


EXPLAINED: dict[str, tuple[Happening, str]] = {
    "deposit": (lambda exchange: exchange.adjust("CSD", cash=5_000), "deposit"),
    "withdrawal": (lambda exchange: exchange.adjust("CSW", cash=-30_000), "withdrawal"),
    "transfer of cash": (lambda exchange: exchange.adjust("JNLC", cash=250), "transfer"),
    "transfer of shares": (lambda exchange: exchange.adjust("ACATS", symbol="AAPL", quantity=7), "transfer"),
    "dividend": (lambda exchange: exchange.charge("-12.5", kind="DIV"), "dividend"),
    "fee": (lambda exchange: exchange.charge("1.17", kind="FEE"), "fee"),
    "interest": (lambda exchange: exchange.charge("3.3", kind="INT"), "interest"),
}


@pytest.mark.parametrize("what", EXPLAINED)
def test_what_alpaca_names_is_booked_under_its_name_and_trading_goes_on(at_alpaca, what):
    happening, name = EXPLAINED[what]
    at_alpaca.happens[HAPPENS_AT] = happening

    result = at_alpaca.run(guard_drawdown=0.2)

    assert result.status == "finished", result.reason
    at_alpaca.assert_books_equal_the_account()
    booked = [each["kind"] for each in events_of(at_alpaca.folder, "adjustment")]
    booked += [each["what"].split()[0] for each in events_of(at_alpaca.folder, "charge")]
    assert booked == [name]
    assert len(events_of(at_alpaca.folder, "decision")) > 30


def test_a_split_doubles_the_shares_in_the_books_and_leaves_the_equity(at_alpaca, tmp_path):
    """431.6 shares are held, and a split of 2 for 1 makes 863.2 of them; the kill file prevents orders."""
    exchange = at_alpaca.exchange
    exchange.cash, exchange.positions = Decimal("1000"), {"AAPL": Decimal("431.6")}
    kill_file = tmp_path / "STOP"
    kill_file.touch()
    at_alpaca.happens[HAPPENS_AT] = splits

    result = at_alpaca.run(take_over=True, kill_file=kill_file)

    assert result.status == "finished", result.reason
    assert exchange.positions == {"AAPL": Decimal("863.2")}
    at_alpaca.assert_books_equal_the_account()
    (split,) = at_alpaca.adjustments()
    assert (split.kind, split.quantity) == ("split", Decimal("431.6"))
    assert not events_of(at_alpaca.folder, "difference")


def test_after_a_split_all_shares_are_closed(at_alpaca, tmp_path):
    exchange = at_alpaca.exchange
    exchange.cash, exchange.positions = Decimal("1000"), {"AAPL": Decimal("431.6")}
    kill_file = tmp_path / "STOP"
    kill_file.touch()
    at_alpaca.happens |= {
        HAPPENS_AT: splits,
        HAPPENS_AT + 5: lambda exchange: (at_alpaca.folder / "request").write_text("flatten"),
    }

    result = at_alpaca.run(take_over=True, kill_file=kill_file)

    assert (result.status, result.flat) == ("stopped", True)
    assert exchange.positions == {}
    at_alpaca.assert_books_equal_the_account()


def buys_by_hand(exchange) -> None:
    exchange.submit({"symbol": "AAPL", "qty": "3", "side": "buy", "type": "market", "time_in_force": "day"})


def orders_by_another_program(exchange) -> None:
    limit = {"type": "limit", "limit_price": "1", "client_order_id": "theirs"}
    exchange.submit({"symbol": "MSFT", "qty": "2", "side": "buy", "time_in_force": "day", **limit})


def changes_its_symbol(exchange) -> None:
    exchange.positions.setdefault("AAPL", Decimal(10))
    quantity = held(exchange)
    exchange.adjust("NC", symbol="AAPL", quantity=-quantity)
    exchange.adjust("NC", symbol="AAPLX", quantity=quantity)


def loses_cash(exchange) -> None:
    exchange.cash -= 77


UNEXPLAINED = {
    "AAPL": buys_by_hand,
    "order theirs": orders_by_another_program,
    "AAPLX": changes_its_symbol,
    "cash": loses_cash,
}


@pytest.mark.parametrize("what", UNEXPLAINED)
def test_what_nobody_names_stops_the_session_and_says_why(at_alpaca, what):
    sent = []
    at_alpaca.happens |= {
        HAPPENS_AT: UNEXPLAINED[what],
        HAPPENS_AT + 1: lambda exchange: sent.append(1),
    }

    result = at_alpaca.run()

    assert (result.status, result.asked, sent) == ("stopped", False, [])
    assert "differs from the books of this session" in result.reason
    assert what in {row["what"] for row in events_of(at_alpaca.folder, "difference")[-1]["rows"]}
    assert what in result.reason
    known = {each["client_order_id"] for each in events_of(at_alpaca.folder, "order")}
    assert {name for name in at_alpaca.exchange.orders if name in known} == known
    again = at_alpaca.run()  # as at a start
    assert (again.status, again.asked) == ("stopped", False)
    assert what in again.reason


def test_cash_that_a_person_announced_is_booked_and_trading_goes_on(at_alpaca):
    def announced_and_lost(exchange) -> None:
        announce(at_alpaca.folder, deposit=None, withdraw=1_000.0, why="rent")  # while the session trades
        announce(at_alpaca.folder, deposit=7.0, withdraw=None, why="comes later")
        exchange.cash -= 1_000

    at_alpaca.happens = {HAPPENS_AT: announced_and_lost}
    assert at_alpaca.run().asked
    at_alpaca.assert_books_equal_the_account()
    (withdrawal,) = at_alpaca.adjustments()
    assert (withdrawal.kind, withdrawal.cash) == ("withdrawal", -1_000.0)
    assert withdrawal.what.startswith("rent, by ")
    assert not events_of(at_alpaca.folder, "difference")


@pytest.mark.parametrize(("kind", "event"), [("CSD", "adjustment"), ("JNLC", "adjustment"), ("INT", "charge")])
def test_announced_money_that_alpaca_names_is_booked_once_and_no_longer_waits(at_alpaca, kind, event):
    def announced_and_named(exchange) -> None:
        announce(at_alpaca.folder, deposit=500.0, withdraw=None, why="more capital")
        exchange.adjust(kind, cash=500)

    at_alpaca.happens = {HAPPENS_AT: announced_and_named}
    assert at_alpaca.run().asked
    at_alpaca.assert_books_equal_the_account()
    (booked,) = events_of(at_alpaca.folder, event)
    assert abs(booked.get("cash", booked.get("amount"))) == 500
    assert "more capital, by " in booked["what"]
    with closing(Journal(at_alpaca.folder / JOURNAL_FILE)) as journal:
        assert journal.announcements() == []
    (told,) = [each for each in events_of(at_alpaca.folder, "alert") if each["guard"] == "announced"]
    assert told["sentence"].startswith("The announced deposit of 500.00 (more capital, by ")


@pytest.mark.parametrize("what", UNEXPLAINED)
def test_what_nobody_names_is_taken_over_if_so_configured(at_alpaca, what):
    at_alpaca.happens[HAPPENS_AT] = UNEXPLAINED[what]

    result = at_alpaca.run(on_difference="take-over")

    assert result.status == "finished", result.reason
    at_alpaca.assert_books_equal_the_account()
    (told,) = events_of(at_alpaca.folder, "difference")
    assert told["sentence"].endswith("The session continues with the account as it is.")
    assert at_alpaca.run(on_difference="take-over").status == "finished"
    assert len(events_of(at_alpaca.folder, "difference")) == 1


@pytest.mark.parametrize("part", [1, 2])
def test_a_changed_symbol_is_no_loss_and_ends_a_session_that_has_nothing_left(at_alpaca, tmp_path, part):
    """Of the account, the position is all (1) or one half (2); the kill file prevents orders."""
    exchange = at_alpaca.exchange
    exchange.cash = Decimal(0 if part == 1 else 100_000)
    exchange.positions = {"AAPL": Decimal(1_000)}
    at_alpaca.happens[HAPPENS_AT] = changes_its_symbol

    settings = {"on_difference": "take-over", "take_over": True, "guard_drawdown": 0.4, "kill_file": tmp_path / "STOP"}
    settings["kill_file"].touch()

    result = at_alpaca.run(**settings)

    assert [each["kind"] for each in events_of(at_alpaca.folder, "adjustment")] == ["symbol change"] * 2
    at_alpaca.assert_books_equal_the_account()
    assert exchange.positions["AAPLX"] == 1_000
    if part == 1:
        assert (result.status, result.asked) == ("finished", False)
        assert result.reason.startswith("The session has nothing left to trade with: its equity is 0.00")
        assert "1,000 AAPLX" in result.reason
    else:
        assert result.asked, result.reason
        assert at_alpaca.run(**settings).asked
    status = json.loads((at_alpaca.folder / "live.json").read_text())
    assert abs(status["time_weighted_return"]) < 0.2


@pytest.mark.parametrize("what", ["AAPL", "AAPLX", "cash"])
def test_what_nobody_names_is_closed_if_so_configured(at_alpaca, what):
    at_alpaca.happens[HAPPENS_AT] = UNEXPLAINED[what]

    result = at_alpaca.run(on_difference="flatten")

    assert (result.status, result.flat, result.asked) == ("stopped", True, False)
    assert at_alpaca.exchange.positions == {}
    at_alpaca.assert_books_equal_the_account()


@pytest.mark.parametrize("start", ["explained", "unexplained"])
def test_what_happened_while_no_session_ran_is_found_at_the_start(at_alpaca, start):
    at_alpaca.happens[HAPPENS_AT] = lambda exchange: (at_alpaca.folder / "request").write_text("stop")
    assert at_alpaca.run().status == "stopped"
    if start == "explained":
        at_alpaca.exchange.adjust("CSD", cash=1_000)
        splits(at_alpaca.exchange) if held(at_alpaca.exchange) else None
    else:
        loses_cash(at_alpaca.exchange)

    result = at_alpaca.run()

    if start == "explained":
        assert result.status == "finished", result.reason
        at_alpaca.assert_books_equal_the_account()
    else:
        assert (result.status, result.asked) == ("stopped", False)
        assert "cash" in result.reason


def days_later(monkeypatch, days: int) -> None:
    """Set this machine's clock forward, for all that requests activities."""
    passed_ns = days * 86_400 * 10**9
    clock = SimpleNamespace(monotonic=time.monotonic, time_ns=lambda: time.time_ns() + passed_ns)
    monkeypatch.setattr(activities, "time", clock)


def test_what_alpaca_booked_weeks_before_a_restart_is_booked_once(at_alpaca, monkeypatch):
    """One dividend is booked before the session is stopped, and one the day after; it starts again a month later."""
    exchange = at_alpaca.exchange

    def pays_and_stops(exchange) -> None:
        exchange.charge("-12.5", kind="DIV")
        (at_alpaca.folder / "request").write_text("stop")

    at_alpaca.happens[HAPPENS_AT] = pays_and_stops
    assert at_alpaca.run().status == "stopped"
    exchange.charge("-7.25", kind="DIV")
    days_later(monkeypatch, 30)

    result = at_alpaca.run()

    assert result.status == "finished", result.reason
    at_alpaca.assert_books_equal_the_account()
    assert [each["amount"] for each in events_of(at_alpaca.folder, "charge")] == [-12.5, -7.25]


@pytest.mark.parametrize(
    ("request_to", "answer"),
    [
        ("GET /v2/positions", [{"symbol": "AAPL", "qty": "many", "side": "long"}]),
        ("GET /v2/account/activities", [{"id": "x", "activity_type": "WHAT", "date": "2024-03-04", "net_amount": "9"}]),
        ("GET /v2/account/activities", {"not": "a list"}),
    ],
)
def test_an_answer_that_cannot_be_read_is_told_and_changes_nothing(at_alpaca, server, request_to, answer):
    at_alpaca.happens[HAPPENS_AT] = lambda exchange: server.faults.answer(request_to, 200, answer)

    result = at_alpaca.run()

    assert result.status == "finished", result.reason
    at_alpaca.assert_books_equal_the_account()
    told = [each["sentence"] for each in events_of(at_alpaca.folder, "alert", "broker_away")]
    assert len(told) == 1
    assert "cannot be read" in told[0] or "activity x (WHAT) is not booked: its type is unknown" in told[0]


def test_a_fill_that_positions_show_before_the_order_does_is_no_difference(at_alpaca, monkeypatch):
    """Of an order that is open by all that the session knows, a part is held already."""
    monkeypatch.setattr(orders, "_CANCEL_WAIT_S", 0.0)
    at_alpaca.exchange.fills = "on demand"
    server, hidden = at_alpaca.server, []

    def fills_a_part(exchange) -> None:
        for order in [each for each in exchange.orders.values() if each.status == "new"]:
            server.faults.answer("DELETE /v2/orders", 422, times=50)
            exchange.fill(order.client_order_id, order.left / 4)
            hidden.append(order)

    poll = orders.OrderManager._poll
    monkeypatch.setattr(orders.OrderManager, "_poll", lambda self: False if len(hidden) == 1 else poll(self))
    at_alpaca.happens |= dict.fromkeys(range(8, 30), fills_a_part)
    at_alpaca.happens |= {30: lambda exchange: (at_alpaca.folder / "request").write_text("stop")}

    at_alpaca.run()

    assert hidden
    assert not events_of(at_alpaca.folder, "difference")


class Killed(BaseException):
    """Stands for SIGKILL: nothing of the session runs any more."""


KILLS = [(Journal, "add_adjustment", 1), (Journal, "set_snapshots", 1), (Journal, "set_snapshots", 2)]
KILLS += [(RestClient, "_call", number) for number in range(1, 7)]


@pytest.mark.parametrize(("owner", "name", "number"), KILLS)
def test_killed_while_it_books_a_split_and_a_deposit_it_books_each_once(at_alpaca, monkeypatch, owner, name, number):
    """Killed before or in the call with this number after both happened; what the transaction wrote is then undone."""
    calls: list[int] = []
    function = getattr(owner, name)

    def may_kill(*arguments: Any, **named: Any) -> Any:
        answer = function(*arguments, **named)
        if calls:
            calls.append(1)
            if len(calls) == number + 1:
                raise Killed
        return answer

    def happens(exchange) -> None:
        splits(exchange)
        exchange.adjust("CSD", cash=1_000)
        calls.append(0)

    monkeypatch.setattr(owner, name, may_kill)
    at_alpaca.exchange.cash, at_alpaca.exchange.positions = Decimal("50000"), {"AAPL": Decimal("431.6")}
    at_alpaca.happens[HAPPENS_AT] = happens
    with pytest.raises(Killed):
        at_alpaca.run(take_over=True)
    monkeypatch.undo()
    server = at_alpaca.server
    monkeypatch.setenv("APCA_API_KEY_ID", server.trading.key)
    monkeypatch.setenv("APCA_API_SECRET_KEY", server.trading.secret)

    result = at_alpaca.run(take_over=True)

    assert result.status == "finished", result.reason
    at_alpaca.assert_books_equal_the_account()
    assert sorted(each.kind for each in at_alpaca.adjustments()) == ["deposit", "split"]
    lines = [json.loads(line) for line in (at_alpaca.folder / "live.jsonl").read_text().splitlines()]
    assert sum(line["event"] == "adjustment" for line in lines) == 2

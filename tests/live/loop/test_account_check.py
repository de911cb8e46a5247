"""Whatever happens in the simulated account: the books follow, or the session stops and says why."""

import csv
from contextlib import closing
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ml_pipeline.live import account_check
from ml_pipeline.live.account_check import compare
from ml_pipeline.live.brokers.broker import AccountState, Adjustment, OrderRequest, QuantityRules
from ml_pipeline.live.brokers.simulated import SimulatedBroker
from ml_pipeline.live.components import EngineSettings
from ml_pipeline.live.record.journal import Journal
from ml_pipeline.live.session_files import JOURNAL_FILE, LEDGER_FILE
from ml_pipeline.trading.market.bar_set import BarSet
from tests.live.loop.sessions import backtest, deploy, session, trade, write_prices
from tests.live.loop.test_trading_loop import at_bar, events_of

ONE = ["A"]
TIME = np.datetime64("2024-03-05", "ns")


@pytest.fixture
def replay(tmp_path):
    write_prices(tmp_path / "prices.csv", ONE)
    return deploy(tmp_path / "model", ONE), tmp_path / "prices.csv"


def last_row(folder) -> dict[str, float]:
    row = list(csv.DictReader((folder / LEDGER_FILE).read_text().splitlines()))[-1]
    return {name: float(value) for name, value in row.items() if name != "time"}


class Watched:
    """A class of brokers whose last account is kept in `last`."""

    def __init__(self, number: int, do: Any) -> None:
        watched = self

        class Broker(at_bar(number, do)):
            def close(self) -> None:
                watched.last = self.account()
                super().close()

        self.broker_class, self.last = Broker, None


def adjust(kind: str, quantity: float = 0.0, cash: float = 0.0) -> Any:
    adjustment = Adjustment("1", kind, "A" if quantity else "", Decimal(str(quantity)), cash, "by the test", TIME)
    return lambda broker: broker.adjust(adjustment)


def splits(broker) -> None:
    held = broker.account().positions["A"]
    broker.adjust(Adjustment("1", "split", "A", held, 0.0, "2 for 1", TIME))


@pytest.mark.parametrize(
    ("kind", "do"),
    [
        ("deposit", adjust("deposit", cash=2_500.0)),
        ("withdrawal", adjust("withdrawal", cash=-3_000.0)),
        ("transfer", adjust("transfer", quantity=2.0)),
        ("split", splits),
    ],
)
def test_what_the_broker_names_is_booked_and_trading_goes_on(tmp_path, replay, kind, do):
    model, prices = replay
    watched = Watched(20, do)

    result = trade(model, tmp_path / "live", prices, broker_class=watched.broker_class, guard_drawdown=0.2)

    assert result.status == "finished", result.reason
    (booked,) = events_of(result.folder, "adjustment")
    assert booked["kind"] == kind
    row = last_row(result.folder)
    assert row["cash"] == pytest.approx(watched.last.cash, abs=0.01)
    assert row["position_A"] == pytest.approx(float(watched.last.positions.get("A", 0)))


def test_a_withdrawal_is_no_loss_and_a_deposit_no_profit(tmp_path, replay):
    """Without its limit shifted by 5,000 of 10,000, the guard on the drawdown would end the session at once."""
    model, prices = replay
    watched = Watched(20, adjust("withdrawal", cash=-5_000.0))

    result = trade(model, tmp_path / "live", prices, broker_class=watched.broker_class, guard_drawdown=0.3)

    assert result.status == "finished", result.reason


def buys_by_hand(broker) -> None:
    broker._account.adjust(0, Decimal(3), -300.0, splits=False)


def loses_cash(broker) -> None:
    broker._account.adjust(None, Decimal(0), -77.0, splits=False)


UNEXPLAINED = {"A": buys_by_hand, "cash": loses_cash}


@pytest.mark.parametrize("what", UNEXPLAINED)
def test_what_nobody_names_stops_the_session_within_a_bar(tmp_path, replay, what):
    model, prices = replay
    watched = Watched(20, UNEXPLAINED[what])

    result = trade(model, tmp_path / "live", prices, broker_class=watched.broker_class)

    assert (result.status, result.asked) == ("stopped", False)
    (told,) = events_of(result.folder, "difference")
    assert what in [row["what"] for row in told["rows"]]
    (missed,) = events_of(result.folder, "missed")
    assert "the account differs from the books" in missed["sentence"]
    assert missed["bar"] == told["bar"]
    assert not [each for each in events_of(result.folder, "order") if each["bar"] == told["bar"]]
    rows = (result.folder / LEDGER_FILE).read_text().splitlines()
    assert rows[-1].startswith(told["bar"].replace("T", " "))


@pytest.mark.parametrize("what", UNEXPLAINED)
def test_what_nobody_names_is_taken_over_if_so_configured(tmp_path, replay, what):
    model, prices = replay
    watched = Watched(20, UNEXPLAINED[what])

    result = trade(model, tmp_path / "live", prices, broker_class=watched.broker_class, on_difference="take-over")

    assert result.status == "finished", result.reason
    row = last_row(result.folder)
    assert row["cash"] == pytest.approx(watched.last.cash, abs=0.01)
    assert row["position_A"] == pytest.approx(float(watched.last.positions.get("A", 0)))
    assert {each["kind"] for each in events_of(result.folder, "adjustment")} == {"difference"}
    assert len(events_of(result.folder, "difference")) == 1


def test_what_nobody_names_is_closed_if_so_configured(tmp_path, replay):
    model, prices = replay
    watched = Watched(20, buys_by_hand)

    result = trade(model, tmp_path / "live", prices, broker_class=watched.broker_class, on_difference="flatten")

    assert (result.status, result.flat, result.asked) == ("stopped", True, False)
    assert not any(watched.last.positions.values())


def test_an_order_of_a_second_program_stops_the_session(tmp_path, replay):
    model, prices = replay
    theirs = OrderRequest("theirs", "A", Decimal(0), 0.5)

    def sends(broker) -> None:
        broker.submit([theirs])

    result = trade(model, tmp_path / "live", prices, broker_class=at_bar(20, sends))

    assert (result.status, result.asked) == ("stopped", False)
    assert "order theirs" in result.reason


def test_a_fill_that_is_reported_after_the_position_is_no_difference(tmp_path, replay):
    """Fills are reported only after the account was asked for: the first look shows the position without its fill."""
    model, prices = replay

    class Late(SimulatedBroker):
        n_asked = 0

        def account(self):
            self.n_asked += 1
            return super().account()

        def market_closed_bar(self, bars):
            super().market_closed_bar(bars)
            self.n_asked = 0

        def poll(self, cursor):
            return super().poll(cursor) if self.n_asked > 1 else ([], cursor)

    folder = trade(model, tmp_path / "live", prices, broker_class=Late).folder

    assert not events_of(folder, "difference")
    assert (folder / LEDGER_FILE).read_bytes() == backtest(model, prices, tmp_path / "expected.csv")


def account_with(monkeypatch, *, positions, cash, in_flight, sizes_at_fill=False) -> Any:
    """What `compare` reads of a session with 10 A and 1,000 in its books."""
    account = AccountState(cash, cash, cash, positions)
    broker = SimpleNamespace(account=lambda: account, orders=lambda: [], sizes_at_fill=sizes_at_fill, name="test")
    orders = SimpleNamespace(
        look=lambda: False, received=(), in_flight=lambda *, sized_at_fill: in_flight, knows=lambda name: False
    )
    return SimpleNamespace(
        broker=broker,
        orders=orders,
        symbols=("A",),
        quantities=QuantityRules(),
        account=SimpleNamespace(after=lambda events: (1_000.0, {"A": Decimal(10)})),
        state=SimpleNamespace(other_positions={}, other_orders=set(), cash_rounding=0.0, fills_since_check=0),
        settings=SimpleNamespace(real_time=False),
    )


@pytest.mark.parametrize(
    ("held", "cash", "in_flight", "differs"),
    [
        (10.0, 1_000.0, {}, []),
        (10.0, 1_000.004, {}, []),
        (10.0, 1_000.02, {}, ["cash"]),
        (12.0, 800.0, {"A": (0, 5)}, []),  # a part of an order to buy 5 is filled
        (15.0, 500.0, {"A": (0, 5)}, []),
        (16.0, 400.0, {"A": (0, 5)}, ["A", "cash"]),  # more than the order can buy
        (9.0, 1_100.0, {"A": (0, 5)}, ["A", "cash"]),  # sold, and only a purchase is open
        (10.0, 900.0, {"A": (0, 5)}, ["cash"]),  # nothing is filled, so the cash must be equal
        (12.0, 800.0, {"B": (0, 5)}, ["A", "cash"]),
    ],
)
def test_only_what_open_orders_can_fill_may_differ(monkeypatch, held, cash, in_flight, differs):
    session = account_with(monkeypatch, positions={"A": held}, cash=cash, in_flight=in_flight)
    assert [row.what for row in compare(session).rows] == differs


def test_cash_that_a_broker_rounds_at_each_fill_is_no_difference(monkeypatch):
    """Half a cent per fill adds up to 2 cents after four; without a fill, half a cent more is all that may come."""
    session = account_with(monkeypatch, positions={"A": 10.0}, cash=1_000.02, in_flight={})
    session.state.fills_since_check = 4
    found = compare(session)
    assert (found.rows, round(found.cash_rounding, 9)) == ([], 0.02)
    session.state.cash_rounding, session.state.fills_since_check = found.cash_rounding, 0
    assert compare(session).rows == []
    session.state.cash_rounding = 0.0
    assert [row.what for row in compare(session).rows] == ["cash"]


def test_in_real_time_what_differs_is_looked_at_for_two_seconds(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(account_check.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(account_check.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    session = account_with(monkeypatch, positions={"A": 11.0}, cash=900.0, in_flight={})
    session.settings.real_time = True
    assert [row.what for row in compare(session).rows] == ["A", "cash"]
    assert now[0] == pytest.approx(2.0, abs=0.2)
    now[0], answers = 0.0, [11.0, 11.0, 11.0, 10.0]
    session.broker.account = lambda: AccountState(1_000.0, 0.0, 0.0, {"A": answers.pop(0)})
    assert compare(session).rows == []
    assert answers == []


def test_what_is_left_below_the_smallest_order_is_an_alert_once(tmp_path, replay):
    """Also after a restart; the kill file keeps the account flat."""
    model, prices = replay
    kill_file = tmp_path / "STOP"
    kill_file.touch()

    def leaves_dust(broker) -> None:
        broker._account.adjust(0, Decimal("4e-10"), 0.0, splits=False)
        trading.stop.request("Enough.")

    stops = at_bar(20, leaves_dust)
    trading = session(model, tmp_path / "live", prices=prices, broker_class=stops, kill_file=kill_file)
    assert trading.run().status == "stopped"

    result = trade(model, tmp_path / "live", prices, kill_file=kill_file)

    assert result.status == "finished", result.reason
    told = [each["sentence"] for each in events_of(result.folder, "alert") if each["guard"] == "left_over"]
    assert told == ["0.0000000004 A is left over: it is below the smallest order and counts as flat."]


@pytest.mark.parametrize("what", ["cash", "deposit"])
def test_between_two_bars_the_account_is_compared_every_minute(tmp_path, replay, monkeypatch, what):
    """No bar comes after what happens: the session stops, or books it, in the rounds that wait for bars."""
    model, prices = replay
    monkeypatch.setattr(
        "ml_pipeline.live.session.EngineSettings", lambda **named: EngineSettings(**in_real_time(named))
    )
    monkeypatch.setattr(account_check, "_SETTLES_WITHIN_S", 0.0)
    monkeypatch.setattr("ml_pipeline.live.engine._CHECK_EVERY_S", 0.0)
    n_seen, n_idle, booked = [0], [0], []

    def in_real_time(named: dict[str, Any]) -> dict[str, Any]:
        return {**named, "real_time": True}

    def next_item(feed, timeout_s):
        if n_seen[0] == 20 and n_idle[0] < 3:
            if not n_idle[0]:
                loses_cash(broker[0]) if what == "cash" else adjust("deposit", cash=500.0)(broker[0])
            else:
                told = events_of(tmp_path / "live" / "NAME", "adjustment")
                booked.append([each["kind"] for each in told])
            n_idle[0] += 1
            return None
        item = feed.next(timeout_s)
        n_seen[0] += isinstance(item, BarSet)
        return item

    broker: list[SimulatedBroker] = []

    class Kept(SimulatedBroker):
        def __init__(self, *arguments: Any, **named: Any) -> None:
            super().__init__(*arguments, **named)
            broker.append(self)

    result = trade(model, tmp_path / "live", prices, broker_class=Kept, next_item=next_item)

    if what == "cash":
        assert (result.status, result.asked, n_seen, n_idle) == ("stopped", False, [20], [1])
        assert "cash" in result.reason
    else:
        assert result.status == "finished", result.reason
        assert booked == [["deposit"], ["deposit"]]


@pytest.mark.parametrize("seed", range(4))
def test_whatever_happens_together_the_books_equal_the_account_within_a_bar(tmp_path, replay, seed):
    """Deposits, withdrawals, fees, splits and trades by hand at random bars, up to three at once."""
    model, prices = replay
    random = np.random.default_rng(seed)
    accounts: list[AccountState] = []
    n_unexplained: list[int] = []

    class Eventful(SimulatedBroker):
        def market_closed_bar(self, bars):
            super().market_closed_bar(bars)
            n = 0
            happens = len(accounts) > 10 and random.random() < 0.3  # after the first decision
            for i in range(int(random.integers(1, 4)) if happens else 0):
                what, held = random.choice(["money", "split", "by hand"]), self.account().positions.get("A")
                if what == "money":
                    self.adjust(
                        Adjustment(f"{bars.time}{i}", "deposit", "", Decimal(0), random.normal(0, 300), "", TIME)
                    )
                elif what == "split" and held:
                    self.adjust(Adjustment(f"{bars.time}{i}", "split", "A", held, 0.0, "2 for 1", TIME))
                elif what == "by hand":
                    self._account.adjust(0, Decimal("0.5"), -50.0, splits=False)
                    n = 1
            n_unexplained.append(n)
            accounts.append(self.account())

    folder = trade(model, tmp_path / "live", prices, broker_class=Eventful, on_difference="take-over").folder

    assert len(events_of(folder, "difference")) == sum(n_unexplained)
    rows = list(csv.DictReader((folder / LEDGER_FILE).read_text().splitlines()))
    for row, account, n in list(zip(reversed(rows), reversed(accounts), reversed(n_unexplained), strict=False)):
        if not n:  # what is taken over is in the next row
            assert float(row["cash"]) == pytest.approx(account.cash, abs=0.01)
            assert float(row["position_A"]) == pytest.approx(float(account.positions.get("A", 0)))


class Killed(BaseException):
    """Stands for SIGKILL."""


@pytest.mark.parametrize("place", ["adjust", "add_adjustment", "save"])
@pytest.mark.parametrize("what", ["deposit", "split"])
def test_killed_while_it_books_an_adjustment_it_books_it_once(tmp_path, replay, monkeypatch, place, what):
    model, prices = replay
    owner, name = {
        "adjust": (SimulatedBroker, "adjust"),
        "add_adjustment": (Journal, "add_adjustment"),
        "save": (Journal, "set_snapshots"),
    }[place]
    function, adjusted = getattr(owner, name), []

    def may_kill(*arguments: Any, **named: Any) -> Any:
        answer = function(*arguments, **named)
        if (adjusted or place != "save") and "killed" not in adjusted:
            adjusted.append("killed")
            raise Killed
        return answer

    class Adjusted(SimulatedBroker):
        n_seen = 0

        def market_closed_bar(self, bars):
            super().market_closed_bar(bars)
            done = any(isinstance(event, Adjustment) for event in self.poll(None)[0])
            if not done and self.account().positions and str(bars.time) >= "2024-03-05T00:00":
                splits(self) if what == "split" else adjust("deposit", cash=2_500.0)(self)
                adjusted.append("adjusted")

    monkeypatch.setattr(owner, name, may_kill)
    with pytest.raises(Killed):
        trade(model, tmp_path / "live", prices, broker_class=Adjusted)

    result = trade(model, tmp_path / "live", prices, broker_class=Adjusted)

    assert result.status == "finished", result.reason
    assert [each["kind"] for each in events_of(result.folder, "adjustment")] == [what]
    with closing(Journal(result.folder / JOURNAL_FILE)) as journal:
        assert [adjustment.kind for _, adjustment in journal.adjustments()] == [what]


def test_a_journal_without_adjustments_is_read_and_goes_on(tmp_path, replay):
    """As an older program wrote it."""
    model, prices = replay
    stop = at_bar(20, lambda broker: trading.stop.request("Enough."))
    trading = session(model, tmp_path / "live", prices=prices, broker_class=stop)
    folder = trading.run().folder
    with closing(Journal(folder / JOURNAL_FILE)) as journal:
        journal._db.execute("DROP TABLE adjustments")
        journal._db.execute("DELETE FROM snapshots WHERE name IN ('other_positions', 'other_orders')")
    with closing(Journal(folder / JOURNAL_FILE, writes=False)) as journal:
        assert journal.adjustments() == []

    assert trade(model, tmp_path / "live", prices).status == "finished"
    assert not events_of(folder, "difference")

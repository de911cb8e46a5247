"""A week of minute bars in an account at Alpaca, with all that happens in one: the books are the account's throughout.

Each of five market days has its 390 bars. By day:

0. The server cannot be reached for six bars.
1. A dividend is paid. This machine's clock is set three minutes forward, and back ten minutes later.
2. A split of 2 for 1 before the open. The session is killed while it books the split.
3. A deposit. The server cannot be reached for eight bars.
4. The session is killed after an order was sent, before its answer was read.
"""

import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from decimal import Decimal
from itertools import count
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ml_pipeline.live.alpaca import activities, client
from ml_pipeline.live.alpaca.client import RestClient
from ml_pipeline.live.brokers.broker import ENDED
from ml_pipeline.live.feeds.bars import SymbolBar
from ml_pipeline.live.feeds.feed import CorporateAction
from ml_pipeline.live.reconciliation.reading import read_session
from ml_pipeline.live.reconciliation.reconciliation import reconcile
from ml_pipeline.live.record.journal import Journal
from ml_pipeline.live.session import SessionResult
from ml_pipeline.live.session_files import JOURNAL_FILE
from ml_pipeline.testing.feeds import BEGINS, MINUTE
from tests.live.alpaca.test_account_check import books_of
from tests.live.alpaca.timed_session import SYMBOL, WARM, Machine, Minutes, timed_session
from tests.live.loop.test_trading_loop import events_of
from tests.live.reconciliation.test_mixtures import assert_explained

N_BARS = 390
OPENS = BEGINS + np.array([0, 3, 4, 5, 6]) * np.timedelta64(1, "D")  # a Friday, and Monday to Thursday
STEP_S = 30.0
SPLIT_DAY = 2


class Killed(BaseException):
    """Stands for SIGKILL: nothing of the session runs any more."""


class WeekOfMinutes(Minutes):
    """The bars of the week as they were traded: at half the price from the split on."""

    def __init__(self, machine: Machine) -> None:
        generator = np.random.default_rng(5)
        closes = 100 * np.exp(generator.normal(0, 1e-3, 5 * N_BARS).cumsum())
        self._bars = []
        for i in range(5 * N_BARS):
            day, minute = divmod(i, N_BARS)
            close = round(float(closes[i]) / (2 if day >= SPLIT_DAY else 1), 2)
            opened = round(close * float(np.exp(generator.normal(0, 3e-4))), 2)
            prices = (opened, max(opened, close) + 0.01, min(opened, close) - 0.01, close)
            self._bars.append(SymbolBar(SYMBOL, OPENS[day] + minute * MINUTE, *prices, 1_000.0))
        self.opens = {bar.time: bar.open for bar in self._bars}
        self._machine, self._sent, self._told = machine, WARM, False

    def open(self) -> None:
        self._told = False

    def corporate_actions(self, since: np.datetime64, now: np.datetime64) -> list[Any]:
        if self._told or now < OPENS[SPLIT_DAY] - 60 * MINUTE:
            return []
        self._told = True
        return [CorporateAction("split-1", SYMBOL, "split", OPENS[SPLIT_DAY], 0.5, "AAPL is split 2 for 1.")]


class Week:
    """What happens to the account, the server, the clock and the process, and whether the books follow it."""

    def __init__(self, server, open_broker, tmp_path, monkeypatch) -> None:
        self.server, self.open_broker, self.root, self.monkeypatch = server, open_broker, tmp_path, monkeypatch
        self.exchange = server.trading.exchange
        self.machine = Machine(monkeypatch, server)
        self.source = WeekOfMinutes(self.machine)
        self.folder = tmp_path / "live" / "NAME"
        self.kills_at: str | None = None
        self.kills: list[str] = []
        self.checks: list[str] = []
        self._due: list[tuple[str, np.datetime64]] = []
        self._script = self._happenings()
        monkeypatch.setattr(activities, "time", SimpleNamespace(monotonic=time.monotonic, time_ns=self._time_ns))
        number = count()
        monkeypatch.setattr("tests.live.alpaca_server.exchange.moment", lambda: self._stamp(next(number)))
        self._watch(RestClient, "_call", lambda arguments: arguments[1:3] == ("POST", "/orders"))
        self._watch(Journal, "add_adjustment", lambda arguments: arguments[2].kind == "split")

    def _happenings(self) -> list[tuple[np.datetime64, str, Callable[[], object]]]:
        """(time, name, what happens), in order of time."""
        exchange, machine = self.exchange, self.machine

        def split() -> None:
            assert exchange.positions[SYMBOL], "nothing is tested"
            exchange.split(SYMBOL, 2, 1)
            self.kills_at = "add_adjustment"

        happenings = [
            (0, 60, "", self.end_of_line),
            (0, 66, "outage", self.line_again),
            (1, 40, "dividend", lambda: exchange.charge("-12.34", kind="DIV")),
            (1, 90, "", lambda: machine.set_clock(180)),
            (1, 95, "clock forward", lambda: None),
            (1, 100, "", lambda: machine.set_clock(-180)),
            (1, 103, "clock back", lambda: None),
            (2, -5, "split", split),
            (3, 40, "deposit", lambda: exchange.adjust("CSD", cash=5_000)),
            (3, 90, "", self.end_of_line),
            (3, 98, "outage", self.line_again),
            (4, 70, "", lambda: setattr(self, "kills_at", "_call")),
        ]
        return [(OPENS[day] + minute * MINUTE, name, do) for day, minute, name, do in happenings]

    def end_of_line(self) -> None:
        self.server.faults.cut("", times=1_000_000)
        self.server.updates.refuses = True
        self.server.updates.drop()

    def line_again(self) -> None:
        self.server.faults.clear()
        self.server.updates.refuses = False

    def _time_ns(self) -> int:
        return int(self.machine.wall.astype("datetime64[ns]").astype(np.int64))

    def _stamp(self, number: int) -> str:
        """The time of the server, another one for each order and fill."""
        now = self.server.trading.now() + timedelta(milliseconds=number % 20_000)
        return now.replace(tzinfo=None).isoformat(timespec="microseconds") + "000Z"

    def _watch(self, owner: Any, name: str, counts: Callable[[Any], bool]) -> None:
        function = getattr(owner, name)

        def may_kill(*arguments: Any, **named: Any) -> Any:
            answer = function(*arguments, **named)
            if self.kills_at == name and counts(arguments):
                self.kills_at = None
                self.kills.append(name)
                raise Killed
            return answer

        self.monkeypatch.setattr(owner, name, may_kill)

    def at(self, minutes: float) -> None:
        """Called between two looks at the feed."""
        self._check_due()
        machine = self.machine
        for day in range(4):
            if OPENS[day] + (N_BARS + 3) * MINUTE <= machine.right < OPENS[day + 1] - 10 * MINUTE:
                self.check(f"day {day}")
                machine.run(float((OPENS[day + 1] - 10 * MINUTE - machine.right) / np.timedelta64(1, "s")))
        while self._script and self._script[0][0] <= machine.right:
            _, name, do = self._script.pop(0)
            do()
            if name:
                first = max(machine.right, OPENS[SPLIT_DAY]) if name == "split" else machine.right
                self._due.append((name, first + 2 * MINUTE))
        minute = machine.right.astype("datetime64[m]").astype("datetime64[ns]")
        if minute in self.source.opens:
            self.exchange.prices[SYMBOL] = self.source.opens[minute]

    def _check_due(self) -> None:
        """The books follow within two bars."""
        for name, until in list(self._due):
            if self.differences() and self.machine.right < until:
                continue
            self.check(name)
            self._due.remove((name, until))

    def differences(self) -> list[str]:
        cash, held = books_of(self.folder)
        account = self.exchange.cash, self.exchange.positions.get(SYMBOL, Decimal(0))
        rows = [f"AAPL {held} in the books, {account[1]} in the account"] if held != account[1] else []
        wrong = abs(cash - float(account[0])) >= 0.01
        return [*rows, *([f"cash {cash} in the books, {account[0]} in the account"] if wrong else [])]

    def check(self, name: str) -> None:
        assert self.differences() == [], name
        self.checks.append(name)

    def trade(self) -> SessionResult:
        end = OPENS[4] + (N_BARS + 2) * MINUTE
        while True:
            n_bars = int((end - self.machine.right) / MINUTE)
            broker = self.open_broker(listening=False, symbols=(SYMBOL,))
            session = timed_session(
                *(self.root, self.machine, broker),
                **{"n_bars": n_bars, "at": self.at, "source": self.source, "step_s": STEP_S},
            )
            try:
                return session.run()
            except Killed:
                self._due.append((f"kill {len(self.kills)}", self.machine.right + 2 * MINUTE))


@pytest.mark.long
@pytest.mark.timeout(900)
def test_after_a_week_of_minutes_the_books_are_the_account(server, open_broker, tmp_path, monkeypatch):
    monkeypatch.setattr(client, "_FIRST_WAIT_S", 10.0)  # a request that fails is not repeated within its call
    week = Week(server, open_broker, tmp_path, monkeypatch)

    result = week.trade()

    assert result.status == "stopped", result.reason
    assert result.reason == "Enough."
    week.check("end")
    days, kills = [f"day {day}" for day in range(4)], ["kill 1", "kill 2"]
    named = ["outage", "dividend", "clock forward", "clock back", "split", "deposit", "outage"]
    assert Counter(week.checks) == Counter([*days, *kills, *named, "end"])
    assert week.kills == ["add_adjustment", "_call"]
    assert_nothing_is_doubled(week)
    assert_events_are_named(result.folder)
    assert_explained(reconcile(read_session(result.folder)))


def assert_nothing_is_doubled(week: Week) -> None:
    with closing(Journal(week.folder / JOURNAL_FILE, writes=False)) as journal:
        orders, fills, n_bars = journal.orders(), journal.fills(), journal.n_bars()
    assert n_bars > 4.9 * N_BARS
    assert {each.status for each in orders} <= {*ENDED}
    assert max(Counter(each.number for each in orders).values()) == 1
    sent, filled = Counter[str](), Counter[str]()
    for each in week.exchange.orders.values():
        sent[each.client_order_id.removesuffix(".0")] += each.filled
    for fill in fills:
        filled[fill.client_order_id] += abs(fill.quantity)
    assert sent == filled
    assert len(sent) > 50
    assert {*sent} <= {each.request.client_order_id for each in orders}
    assert len({fill.fill_id for fill in fills}) == len(fills)


def assert_events_are_named(folder: Any) -> None:
    assert [each["kind"] for each in events_of(folder, "adjustment")] == ["split", "deposit"]
    assert [each["what"].split()[0] for each in events_of(folder, "charge")] == ["dividend"]
    assert [each["kind"] for each in events_of(folder, "corporate_action")] == ["split"]
    assert len(events_of(folder, "broker_away")) == len(events_of(folder, "broker_back")) == 2
    clocks = [each["guard"] for each in events_of(folder, "alert") if "clock" in each["sentence"]]
    assert clocks == ["guard_clock_s", "clocks_agree"]
    assert len(events_of(folder, "start")) == 3
    assert not events_of(folder, "difference")

"""What passes is waited for: a broker that cannot be reached, refused keys, a full disk; and then a session ends so
that it can be started again."""

import errno
import itertools
import os
from contextlib import closing
from pathlib import Path

import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.live import connections
from ml_pipeline.live import session as session_module
from ml_pipeline.live.brokers.broker import BrokerUnavailable
from ml_pipeline.live.brokers.simulated import SimulatedBroker
from ml_pipeline.live.commands.paper_trade import LOOK_AT_IT, TRY_AGAIN, main
from ml_pipeline.live.config import paper_trade_config
from ml_pipeline.live.connections import open_feed
from ml_pipeline.live.decisions.deployed_policy import load_deployed_policy
from ml_pipeline.live.feeds.replay import ReplayFeed
from ml_pipeline.live.record.journal import MISSED, WRITTEN, Journal
from ml_pipeline.live.record.session_record import GrowingFile
from ml_pipeline.live.session import PaperTrading
from ml_pipeline.live.session_files import JOURNAL_FILE, LEDGER_FILE, LOG_FILE
from ml_pipeline.runs.state import read_state
from ml_pipeline.runtime.database_file import disk_failed
from tests.live.loop.sessions import backtest, deploy, write_prices
from tests.live.loop.test_trading_loop import events_of

ONE = ["A"]
UNIT = Path(__file__).resolve().parents[3] / "examples" / "paper-trade.service"


@pytest.fixture
def real_time(tmp_path, monkeypatch):
    """Opens sessions in real time, for which recorded bars stand for a followed file; pauses take no time."""
    write_prices(tmp_path / "prices.csv", ONE)
    model = deploy(tmp_path / "model", ONE)
    ticks = itertools.count()
    monkeypatch.setattr(connections, "_now_s", lambda: 10.0 * next(ticks))
    monkeypatch.setattr(connections, "_sleep", lambda seconds: None)

    def recorded(*arguments):
        values = {"model": model, "broker": "simulated", "replay": tmp_path / "prices.csv"}
        return open_feed(paper_trade_config(values), load_deployed_policy(model, {"data": tmp_path / "prices.csv"}))

    monkeypatch.setattr(session_module, "open_feed", recorded)

    def open_session(**settings):
        values = {"model": model, "root": tmp_path / "live", "name": "NAME", "broker": "simulated"}
        return PaperTrading(paper_trade_config({**values, "follow": tmp_path / "prices.csv", **settings}))

    open_session.folder = tmp_path / "live" / "NAME"
    open_session.backtest = lambda: backtest(model, tmp_path / "prices.csv", tmp_path / "expected.csv")
    open_session.argv = [
        *("--model", str(model), "--follow", str(tmp_path / "prices.csv"), "--broker", "simulated"),
        *("--root", str(tmp_path / "live"), "--name", "NAME"),
    ]
    return open_session


class Line:
    """The line to the simulated broker, which is dead after so many bars until `mend`."""

    def __init__(self, monkeypatch, *, after: int) -> None:
        self.n_bars = 0
        self.dead_after: float = after
        show = SimulatedBroker.market_closed_bar

        def seen(broker, bars):
            self.n_bars += 1
            show(broker, bars)

        monkeypatch.setattr(SimulatedBroker, "market_closed_bar", seen)
        for name in ("submit", "poll", "orders", "account", "cancel"):
            monkeypatch.setattr(SimulatedBroker, name, self._guarded(getattr(SimulatedBroker, name)))

    def _guarded(self, call):
        def guarded(broker, *arguments):
            if self.n_bars > self.dead_after:
                raise BrokerUnavailable("the line is dead")
            return call(broker, *arguments)

        return guarded

    def mend(self) -> None:
        self.dead_after = float("inf")


@pytest.mark.parametrize("positions", ["hold", "flatten"])
def test_a_broker_that_stays_away_ends_the_session_and_the_next_start_goes_on(real_time, monkeypatch, positions):
    line = Line(monkeypatch, after=40)
    session = real_time(on_unreachable=positions, unreachable_for="1m")

    result = session.run()

    assert (result.status, result.asked, result.again) == ("failed", False, True)
    done = {"hold": "positions are held", "flatten": "the next start closes all positions"}[positions]
    assert f"the line is dead. This lasted for more than 60 s (unreachable_for); {done}." in result.reason
    assert read_state(real_time.folder).status == "failed"
    assert (real_time.folder / "request").exists() is (positions == "flatten")

    line.mend()
    after = real_time(on_unreachable=positions).run()

    assert after.again is False
    assert after.flat is (True if positions == "flatten" else after.flat)
    assert after.status == ("stopped" if positions == "flatten" else "finished")
    assert not (real_time.folder / "request").exists()


def test_the_next_start_closes_all_positions_before_anything_else(real_time, monkeypatch):
    """The line breaks while an order is sent: it is still in time at the next start, which does not send it."""
    line, submit, sent = Line(monkeypatch, after=1_000), SimulatedBroker.submit, []
    next_item = ReplayFeed.next
    monkeypatch.setattr(ReplayFeed, "next", lambda *given: None if line.dead_after < 0 else next_item(*given))

    def breaks(broker, orders):
        if orders and broker.account().positions and len(sent) > 5 and line.dead_after == 1_000:
            line.dead_after = -1
        answers = submit(broker, orders)
        sent.extend(orders)
        return answers

    monkeypatch.setattr(SimulatedBroker, "submit", breaks)
    assert real_time(on_unreachable="flatten", unreachable_for="1m").run().again
    with closing(Journal(real_time.folder / JOURNAL_FILE)) as journal:
        (unsent,) = journal.orders(statuses=[WRITTEN])
    line.mend()
    before = len(sent)

    after = real_time(on_unreachable="flatten").run()

    assert (after.status, after.flat, after.asked) == ("stopped", True, True)
    assert [order.closing for order in sent[before:]] == [True]
    with closing(Journal(real_time.folder / JOURNAL_FILE)) as journal:
        assert journal.order(unsent.request.client_order_id).status == MISSED


def test_a_broker_that_is_away_for_less_ends_nothing(real_time):
    outages = {"sim_outage_rate": 0.1, "sim_outage_bars": 3, "sim_seed": 3}

    assert real_time(unreachable_for="1h", **outages).run().status == "finished"
    assert len(events_of(real_time.folder, "broker_back")) > 1


def test_a_broker_that_is_away_at_a_start_is_waited_for_as_long(real_time, monkeypatch):
    line = Line(monkeypatch, after=-1)

    result = real_time(unreachable_for="2m").run()

    assert (result.status, result.again) == ("failed", True)
    assert "This lasted for more than 2 minutes" in result.reason
    line.mend()
    assert real_time().run().status == "finished"


def test_the_command_ends_with_a_code_that_the_unit_file_restarts(real_time, monkeypatch):
    Line(monkeypatch, after=20)

    assert main([*real_time.argv, "--unreachable-for", "1m"]) == TRY_AGAIN

    settings = dict(line.split("=", 1) for line in UNIT.read_text().splitlines() if "=" in line and line[0] != "#")
    assert settings["Restart"] == "on-failure"
    assert settings["RestartPreventExitStatus"].split() == ["2", str(LOOK_AT_IT)]
    assert str(TRY_AGAIN) not in settings["SuccessExitStatus"].split()


@pytest.mark.parametrize("text", ["10", "soon", "0m", "-5m", ""])
def test_a_limit_that_is_no_time_span_is_refused(text):
    with pytest.raises(UserError, match="unreachable_for must be a time span such as 10m or 2h, but got"):
        paper_trade_config({"model": Path("m"), "unreachable_for": text})


# A full disk


class FullDisk:
    """The journal's file may not grow once so many bars are in it, `times` times."""

    def __init__(self, monkeypatch, *, bar: int, times: float) -> None:
        self.left = times
        add_bar = Journal.add_bar

        def limited(journal, number, bars, kind, *, line=None):
            if number >= bar and self.left > 0:
                self.left -= 1
                pages = journal._db.execute("PRAGMA page_count").fetchone()[0]
                journal._db.execute(f"PRAGMA max_page_count = {pages}")
                for i in itertools.count():  # until the last free page is full
                    journal._db.execute("INSERT INTO meta VALUES (?, ?)", (f"filler {i}", "x" * 4_096))
            add_bar(journal, number, bars, kind, line=line)

        monkeypatch.setattr(Journal, "add_bar", limited)


@pytest.mark.parametrize("times", [1, 3])
def test_a_disk_that_is_full_for_a_moment_changes_no_ledger(real_time, monkeypatch, times):
    FullDisk(monkeypatch, bar=30, times=times)
    said = []
    session = real_time()
    session._say = said.append

    result = session.run()

    assert result.status == "finished"
    assert (real_time.folder / LEDGER_FILE).read_bytes() == real_time.backtest()
    told = [each for each in said if "database or disk is full" in each]
    assert len(told) == 1
    assert "Nothing is ordered meanwhile; trying again." in told[0]
    names = [each["client_order_id"] for each in events_of(real_time.folder, "order")]
    assert len(names) == len({*names})


@pytest.mark.parametrize("positions", ["hold", "flatten"])
def test_a_disk_that_stays_full_ends_the_session_and_the_next_start_goes_on(real_time, monkeypatch, positions):
    disk = FullDisk(monkeypatch, bar=30, times=float("inf"))

    result = real_time(unreachable_for="5m", on_unreachable=positions).run()

    assert (result.status, result.asked, result.again) == ("failed", False, True)
    assert "disk is full" in result.reason
    disk.left = 0
    after = real_time(on_unreachable=positions).run()
    assert after.status == ("finished" if positions == "hold" else "stopped")
    if positions == "hold":
        assert (real_time.folder / LEDGER_FILE).read_bytes() == real_time.backtest()
    else:
        assert after.flat


def test_real_money_is_confirmed_once_though_the_session_opens_twice(real_time, monkeypatch):
    FullDisk(monkeypatch, bar=30, times=1)
    open_it, asked, typed = session_module.open_broker, [], []

    def opened(*arguments, ask, **named):
        typed.append(ask("Type the account number."))
        broker = open_it(*arguments, ask=ask, **named)
        broker.real_money, broker.account_number = True, "7"
        return broker

    monkeypatch.setattr(session_module, "open_broker", opened)
    session = real_time()
    session._ask = lambda question: asked.append(question) or "7"

    assert session.run().status == "finished"
    assert (len(asked), typed) == (1, ["7", "7"])


@pytest.mark.parametrize("name", [LEDGER_FILE, LOG_FILE])
def test_a_disk_that_is_full_when_a_table_is_written_loses_no_line(real_time, monkeypatch, name):
    add, failed = GrowingFile.add, []

    def full(file, text):
        if file.path.name == name and len(text) > 1 and not failed and file.path.read_text().count("\n") > 25:
            failed.append(name)
            add(file, text[: len(text) // 2])
            raise file.failure(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))) from OSError(errno.ENOSPC, "full")
        add(file, text)

    monkeypatch.setattr(GrowingFile, "add", full)

    assert real_time().run().status == "finished"
    assert failed
    assert (real_time.folder / LEDGER_FILE).read_bytes() == real_time.backtest()
    with closing(Journal(real_time.folder / JOURNAL_FILE)) as journal:
        assert (real_time.folder / LOG_FILE).read_text().splitlines() == [*journal.log_lines()]


def test_only_a_full_or_failing_disk_may_pass():
    def caused(error):
        try:
            raise UserError("It failed.") from error
        except UserError as raised:
            return raised

    assert disk_failed(caused(OSError(errno.ENOSPC, "full")))
    assert not disk_failed(caused(OSError(errno.EACCES, "denied")))
    assert not disk_failed(UserError("It is invalid."))
    assert not disk_failed(None)

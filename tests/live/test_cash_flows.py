"""Money that comes or goes is booked once, with who, when and why, and is neither profit nor loss."""

import json
from contextlib import closing

import numpy as np
import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.live import cash_flows, engine
from ml_pipeline.live.brokers.broker import BrokerUnavailable
from ml_pipeline.live.brokers.simulated import SimulatedBroker
from ml_pipeline.live.cash_flows import announce
from ml_pipeline.live.commands.paper_trade import main
from ml_pipeline.live.reconciliation.report import reconcile_session
from ml_pipeline.live.record.journal import Journal
from ml_pipeline.live.report import ledger_of
from ml_pipeline.live.session_files import JOURNAL_FILE, REPORT_FILE
from tests.live.loop.sessions import deploy, session, write_prices

N_BARS, N_LATER = 30, 60


@pytest.fixture
def traded(tmp_path):
    """(model, recording, root) of a session that has traded the first bars of a recording that has grown since."""
    model, prices, root = deploy(tmp_path / "model", ["A"]), tmp_path / "prices.csv", tmp_path / "live"
    write_prices(prices, ["A"], n_bars=N_BARS)
    assert session(model, root, prices=prices).run().status == "finished"
    write_prices(prices, ["A"], n_bars=N_LATER)
    lines = prices.read_text().splitlines()
    write_prices(prices, ["A"], n_bars=N_BARS)
    prices.write_text("\n".join([*prices.read_text().splitlines(), *lines[N_BARS + 1 :]]) + "\n")
    return model, prices, root


def adjust(root, *flags):
    return main(["adjust", "NAME", "--root", str(root), *map(str, flags)])


def booked(root):
    journal = Journal(root / "NAME" / JOURNAL_FILE, writes=False)
    found = journal.adjustments(), journal.announcements(), ledger_of(journal)
    journal.close()
    return found


class Elsewhere(SimulatedBroker):
    """A broker at which money is moved without a word. moved: by how much; after: so many answers."""

    moved, after, n_answers = 0.0, 0, 0

    def account(self):
        account = super().account()
        type(self).n_answers += 1
        moved = self.moved if self.n_answers > self.after else 0.0
        return account._replace(cash=account.cash + moved, equity=account.equity + moved)


@pytest.fixture
def elsewhere(monkeypatch):
    for name in ("moved", "after", "n_answers"):
        monkeypatch.setattr(Elsewhere, name, 0)
    monkeypatch.setattr(cash_flows, "SimulatedBroker", type("Nobody", (), {}))
    return Elsewhere


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--deposit", 500], "--deposit needs a reason"),
        (["--why", "more"], "--deposit or --withdraw"),
        (["--deposit", 500, "--withdraw", 500, "--why", "more"], "--deposit or --withdraw"),
        (["--deposit", 0, "--why", "more"], "at least 0.01, but got 0"),
        (["--withdraw", -5, "--why", "more"], "at least 0.01, but got -5"),
        (["--deposit", "inf", "--why", "more"], "at least 0.01, but got inf"),
        (["--deposit", "much", "--why", "more"], "much"),
    ],
)
def test_what_cannot_be_meant_is_one_sentence_and_books_nothing(traded, capsys, flags, words):
    with pytest.raises(SystemExit) as end:
        adjust(traded[2], *flags)
    assert end.value.code == 2
    assert words in capsys.readouterr().err
    assert booked(traded[2])[:2] == ([], [])


def test_an_amount_without_adjust_is_refused(tmp_path, capsys):
    for argv in (["--model", "m", "--deposit", "5"], ["stop", "NAME", "--why", "tired"]):
        with pytest.raises(SystemExit):
            main([*argv, "--root", str(tmp_path)])
        assert "belongs to `paper-trade adjust NAME`" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["adjust", "--deposit", "5", "--why", "more"])
    assert "Name the session" in capsys.readouterr().err


def test_a_simulated_account_is_paid_into_once_and_its_returns_leave_that_out(traded, capsys, monkeypatch):
    model, prices, root = traded
    monkeypatch.setattr(cash_flows, "_user", lambda: "ann@desk")
    assert adjust(root, "--deposit", 5_000, "--why", "more capital") == 0
    assert "deposit of 5,000.00 (more capital, by ann@desk)" in capsys.readouterr().out
    result = session(model, root, prices=prices).run()

    ((_, deposit),), announced, ledger = booked(root)
    assert announced == []
    assert (deposit.kind, deposit.cash, deposit.what) == ("deposit", 5_000.0, "more capital, by ann@desk")
    equity = ledger["equity"]
    (before,) = np.flatnonzero(np.diff(equity) > 4_000)
    first_part, bar = equity[before] / equity[0], (equity[before + 1] - 5_000) / equity[before]
    expected = first_part * bar * equity[-1] / equity[before + 1] - 1
    (total,) = [line for line in result.table.splitlines() if line.startswith("Total return")]
    assert total.split()[2:4] == [f"{100 * expected:+.1f}", "%"]
    assert "5,000.00 came into the account and 0.00 left it." in result.table
    assert "Returns are time-weighted" in (root / "NAME" / REPORT_FILE).read_text()
    status = json.loads((root / "NAME" / "live.json").read_text())
    assert status["time_weighted_return"] == pytest.approx(expected)

    assert adjust(root) == 0
    assert "more capital, by ann@desk" in capsys.readouterr().out
    assert session(model, root, prices=prices).run().status == "finished"
    assert len(booked(root)[0]) == 1


def test_a_kill_after_the_simulated_broker_moved_the_money_moves_it_once(traded, monkeypatch):
    model, prices, root = traded
    announce(root / "NAME", deposit=5_000.0, withdraw=None, why="more capital")
    move = cash_flows.move_simulated_money

    def moved_and_killed(trading):
        pending = trading.journal.announcements()
        move(trading)
        if pending:
            raise KeyboardInterrupt

    monkeypatch.setattr(engine, "move_simulated_money", moved_and_killed)
    with pytest.raises(KeyboardInterrupt):
        session(model, root, prices=prices).run()
    assert session(model, root, prices=prices).run().status == "finished"
    adjustments, announced, ledger = booked(root)
    assert [each.cash for _, each in adjustments] == [5_000.0]
    assert announced == []
    assert (np.diff(ledger["equity"]) > 4_000).sum() == 1


@pytest.mark.parametrize("after", [0, 10])
def test_money_that_nobody_announced_stops_the_session(traded, elsewhere, after):
    model, prices, root = traded
    elsewhere.moved, elsewhere.after = 500.0, after
    result = session(model, root, prices=prices, broker_class=elsewhere).run()
    assert not result.asked
    assert booked(root)[0] == []


@pytest.mark.parametrize("after", [0, 10])
def test_money_that_was_announced_is_booked_and_the_session_goes_on(traded, elsewhere, after):
    model, prices, root = traded
    announce(root / "NAME", deposit=None, withdraw=300.0, why="rent")
    announce(root / "NAME", deposit=500.0, withdraw=None, why="more capital")
    announce(root / "NAME", deposit=77.0, withdraw=None, why="comes later")
    elsewhere.moved, elsewhere.after = 200.0, after
    assert session(model, root, prices=prices, broker_class=elsewhere).run().asked
    adjustments, announced, _ = booked(root)
    assert [each.cash for _, each in adjustments] == [-300.0, 500.0]
    assert [each.cash for each in announced] == [77.0]
    (event,) = [
        each
        for line in (root / "NAME" / "live.jsonl").read_text().splitlines()
        if (each := json.loads(line))["event"] == "adjustment" and each["cash"] == 500.0
    ]
    assert "more capital" in event["sentence"]


def test_an_announcement_of_another_amount_explains_nothing(traded, elsewhere):
    model, prices, root = traded
    announce(root / "NAME", deposit=499.0, withdraw=None, why="more capital")
    elsewhere.moved = 500.0
    assert not session(model, root, prices=prices, broker_class=elsewhere).run().asked
    assert booked(root)[0] == []
    announce(root / "NAME", deposit=1.0, withdraw=None, why="the rest of it")
    assert session(model, root, prices=prices, broker_class=elsewhere).run().asked
    assert sum(each.cash for _, each in booked(root)[0]) == 500.0


def test_announced_money_that_does_not_come_within_a_month_is_an_alert_once(traded, elsewhere):
    model, prices, root = traded
    announced = announce(root / "NAME", deposit=500.0, withdraw=None, why="more capital")
    with closing(Journal(root / "NAME" / JOURNAL_FILE)) as journal, journal.transaction():
        journal.drop_announcement(announced.adjustment_id)
        journal.announce(announced._replace(time=np.datetime64("2024-02-01", "ns")))

    assert session(model, root, prices=prices, broker_class=elsewhere).run().asked

    assert booked(root)[:2] == ([], [])
    lines = [json.loads(line) for line in (root / "NAME" / "live.jsonl").read_text().splitlines()]
    (told,) = [each["sentence"] for each in lines if each.get("guard") == "announced"]
    assert told.startswith("The deposit of 500.00 that was announced (more capital, by ")
    assert "has not come within a month" in told


def test_ten_announcements_wait_at_most(traded):
    folder = traded[2] / "NAME"
    for _ in range(10):
        announce(folder, deposit=1.0, withdraw=None, why="more")
    with pytest.raises(UserError, match="already wait"):
        announce(folder, deposit=1.0, withdraw=None, why="more")


class AwayAfterwards(SimulatedBroker):
    """It moves the money, and is then away for one call."""

    was_away: bool | None = None

    def adjust(self, adjustment):
        super().adjust(adjustment)
        self.was_away = bool(self.was_away)

    def account(self):
        if self.was_away is False:
            self.was_away = True
            raise BrokerUnavailable("away")
        return super().account()


def test_an_outage_after_the_simulated_broker_moved_the_money_moves_it_once(traded):
    model, prices, root = traded
    announce(root / "NAME", deposit=5_000.0, withdraw=None, why="more capital")
    assert session(model, root, prices=prices, broker_class=AwayAfterwards).run().asked
    assert [each.cash for _, each in booked(root)[0]] == [5_000.0]


def test_the_backtest_moves_the_same_money(traded):
    model, prices, root = traded
    announce(root / "NAME", deposit=5_000.0, withdraw=None, why="more capital")
    announce(root / "NAME", deposit=None, withdraw=3_000.0, why="rent")
    assert session(model, root, prices=prices).run().status == "finished"
    found = reconcile_session(root / "NAME").found
    assert abs(found.difference) < 1e-6
    assert not [each for each in found.attribution.causes if each.worth]
    assert "The backtest moves the same money at the same bars: deposit, +5,000.00 in cash" in found.text

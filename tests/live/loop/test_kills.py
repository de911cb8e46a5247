"""Killed by SIGKILL at any moment and started again, a session ends as if nothing had been."""

import csv
import json
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ml_pipeline.live.record.journal import Journal
from ml_pipeline.live.session_files import BARS_FILE, BROKER_FILE, JOURNAL_FILE, LEDGER_FILE, LOG_FILE
from tests.live.loop.sessions import backtest, deploy, trade, write_prices

ROOT = Path(__file__).resolve().parents[3]


def killed(model: Path, root: Path, prices: Path, *more: Any) -> int:
    """Trade in a process that is killed on the way; how often it was."""
    command = [sys.executable, "-m", "tests.live.loop.killed_sessions", model, root, prices, *more]
    done = subprocess.run([str(each) for each in command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def orders_of(folder: Path) -> list[tuple[Any, ...]]:
    """The orders of a session without their names, which hold the session's own number."""
    journal = Journal(folder / JOURNAL_FILE)
    found = [(each.request[1:], each.number, each.status, each.filled_quantity) for each in journal.orders()]
    journal.close()
    return found


def broker_of(folder: Path) -> Any:
    """What the simulated broker has on disk of its account and of the orders that it took."""
    with sqlite3.connect(folder / BROKER_FILE) as db:
        tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        counts = {name: db.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in sorted(tables)}
    db.close()
    return counts


def assert_as_if_nothing_had_been(folder: Path, whole: Path) -> None:
    for name in (LEDGER_FILE, BARS_FILE):
        assert (folder / name).read_bytes() == (whole / name).read_bytes(), name
    assert orders_of(folder) == orders_of(whole)
    assert broker_of(folder) == broker_of(whole)
    lines = (folder / LOG_FILE).read_text().splitlines()
    events = [json.loads(line) for line in lines]
    fills = [each["fill_id"] for each in events if each["event"] == "fill"]
    assert len(fills) == len({*fills})
    assert not [each for each in events if each["event"] in {"missed", "difference"}]
    sent = [each["client_order_id"] for each in events if each["event"] == "order"]
    assert len(sent) == len({*sent}) == len(orders_of(folder))
    decided = [each["bar"] for each in events if each["event"] == "decision"]
    rows = list(csv.DictReader((folder / LEDGER_FILE).read_text().splitlines()))
    assert decided == [row["time"].replace(" ", "T") for row in rows]


@pytest.fixture
def replay(tmp_path):
    """(model, prices, folder of the session that was not killed) of three symbols."""
    symbols = ["A", "B", "C"]
    write_prices(tmp_path / "prices.csv", symbols, n_bars=120)
    model = deploy(tmp_path / "model", symbols, action_mode="discrete", stop_loss=0.02)
    whole = trade(model, tmp_path / "whole", tmp_path / "prices.csv").folder
    expected = backtest(model, tmp_path / "prices.csv", tmp_path / "expected.csv")
    assert (whole / LEDGER_FILE).read_bytes() == expected
    return model, tmp_path / "prices.csv", whole


@pytest.mark.long
def test_five_kills_leave_no_trace(tmp_path, replay):
    model, prices, whole = replay

    assert killed(model, tmp_path / "live", prices, 1, 5) >= 3

    assert_as_if_nothing_had_been(tmp_path / "live" / "NAME", whole)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(5))
def test_two_hundred_kills_leave_no_trace(tmp_path, replay, seed):
    model, prices, whole = replay

    killed(model, tmp_path / "live", prices, seed, 40)

    assert_as_if_nothing_had_been(tmp_path / "live" / "NAME", whole)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_kill_at_each_place_in_turn_leaves_no_trace(tmp_path, replay):
    model, prices, whole = replay

    assert killed(model, tmp_path / "live", prices, 0, 1_000, "every", 1, 120) >= 50

    assert_as_if_nothing_had_been(tmp_path / "live" / "NAME", whole)

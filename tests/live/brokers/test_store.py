"""The account's file: killed at any statement, shared, broken, or of other terms."""

import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace

import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.live.brokers.broker import OrderRequest
from ml_pipeline.live.brokers.simulated import SimulatedBroker
from ml_pipeline.trading.accounts.rules import TradingRules
from tests.live.brokers.test_contract import minute_bar

RULES = TradingRules("target_weights", fee_bps=2)


def open_account(path, rules=RULES, symbols=("ABC",)):
    return SimulatedBroker(symbols, rules, periods_per_year=252 * 390, store=path, durable=False)


@pytest.mark.slow
def test_killed_before_any_statement_the_account_ends_as_if_nothing_had_been(tmp_path):
    program = [sys.executable, "-m", "tests.live.brokers.killed", str(tmp_path), "0", "1"]
    result = subprocess.run(program, capture_output=True, text=True, timeout=100, check=True)
    told = json.loads(result.stdout)
    assert told["killed"] > 50
    assert told["differing"] == []
    assert "Fill" in told["account"]


@pytest.mark.parametrize("statement", range(6))
def test_a_write_that_fails_leaves_the_account_as_it_was(tmp_path, statement):
    with closing(open_account(tmp_path / "a.sqlite")) as broker:
        broker.market_closed_bar(minute_bar(0))
        broker.submit([OrderRequest("one", "ABC", 0.0, 0.5)])
        before = broker.account(), broker.orders(), broker.poll(None), broker.now()
        store = broker._store
        store.connection = FailingConnection(store.connection, statement)
        with pytest.raises(UserError, match="cannot be written: the disk is full"):
            broker.market_closed_bar(minute_bar(1))
        store.connection = store.connection.real
        assert (broker.account(), broker.orders(), broker.poll(None), broker.now()) == before
        broker.market_closed_bar(minute_bar(1))
        assert broker.account().positions["ABC"] > 0


class FailingConnection:
    """A connection whose statement of this number fails, and every one after it but ROLLBACK."""

    def __init__(self, real, statement):
        self.real, self._left = real, statement

    def _count(self):
        self._left -= 1
        if self._left < 0:
            raise sqlite3.OperationalError("the disk is full")

    def execute(self, sql, *values):
        if sql == "ROLLBACK" or sql.startswith("SELECT"):
            return self.real.execute(sql, *values)
        self._count()
        return self.real.execute(sql, *values)

    def executemany(self, *arguments):
        self._count()
        return self.real.executemany(*arguments)

    @property
    def in_transaction(self):
        return self.real.in_transaction


def test_two_processes_cannot_trade_one_account(tmp_path):
    with closing(open_account(tmp_path / "a.sqlite")) as one, closing(open_account(tmp_path / "a.sqlite")) as other:
        one.market_closed_bar(minute_bar(0))
        with pytest.raises(UserError, match="was changed by another process; only one session may use an account"):
            other.market_closed_bar(minute_bar(0))


def test_an_account_keeps_its_terms(tmp_path):
    open_account(tmp_path / "a.sqlite").close()
    with pytest.raises(UserError, match=r"was opened with fee_bps 2, but got 3; an account keeps its terms"):
        open_account(tmp_path / "a.sqlite", replace(RULES, fee_bps=3))
    with pytest.raises(UserError, match=r"opened with symbols \['ABC'\], but got \['ABC', 'X'\]"):
        open_account(tmp_path / "a.sqlite", symbols=("ABC", "X"))


def test_a_file_that_is_no_account_is_refused(tmp_path):
    path = tmp_path / "a.sqlite"
    path.write_text("time,close\n" * 100)
    with pytest.raises(UserError, match=r"a.sqlite cannot be used as the account of the simulated broker: file is not"):
        open_account(path)
    assert path.read_text().startswith("time,close")


def test_interest_by_day_needs_a_calendar(tmp_path):
    with pytest.raises(UserError, match="financing_bps_per_year is charged by calendar day"):
        open_account(tmp_path / "a.sqlite", TradingRules(max_gross=2, financing_bps_per_year=100))

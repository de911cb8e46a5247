"""The file of the simulated broker's account. Each change is one transaction: a kill leaves the file as it was before
or after it."""

import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ml_pipeline.config.errors import UserError
from ml_pipeline.live.brokers.broker import Adjustment, BrokerEvent, Charge, Fill, OrderRequest, OrderUpdate, exact
from ml_pipeline.runtime.database_file import open_database

_SCHEMA = """
CREATE TABLE IF NOT EXISTS account (
    id INTEGER PRIMARY KEY CHECK (id = 0), version INTEGER NOT NULL, terms TEXT NOT NULL, state TEXT);
CREATE TABLE IF NOT EXISTS orders (
    client_order_id TEXT PRIMARY KEY, number INTEGER NOT NULL, symbol TEXT NOT NULL, quantity REAL NOT NULL,
    weight REAL NOT NULL, limit_price REAL, closing INTEGER NOT NULL, targets TEXT, arrives INTEGER,
    status TEXT NOT NULL, ordered REAL, filled REAL NOT NULL, time INTEGER, reason TEXT NOT NULL, price REAL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS open_orders ON orders (status) WHERE status IN ('accepted', 'partly_filled');
CREATE TABLE IF NOT EXISTS events (number INTEGER PRIMARY KEY, told TEXT NOT NULL);
"""
_ADD_ORDER = "INSERT INTO orders VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_UPDATE_ORDER = """
UPDATE orders SET status = ?, ordered = ?, filled = ?, time = ?, reason = ?, price = ? WHERE client_order_id = ?
"""
_KINDS: tuple[type[BrokerEvent], ...] = (OrderUpdate, Fill, Charge, Adjustment)  # a file has their places
_TIME_AT = {kind: kind._fields.index("time") for kind in _KINDS}


class StoredOrder(NamedTuple):
    """An order in the account. arrives: when it reaches the market; None: at once. number: later orders have larger
    ones."""

    request: OrderRequest
    update: OrderUpdate
    arrives: np.datetime64 | None
    number: int


@dataclass
class Change:
    """A change of the account: new orders, changed orders, and events, oldest first."""

    new: list[StoredOrder] = field(default_factory=list)
    changed: list[StoredOrder] = field(default_factory=list)
    events: list[BrokerEvent] = field(default_factory=list)


class AccountStore:
    """The account in an SQLite file, which is created if missing.

    terms: of the account, as plain data. durable: whether a change survives a power cut; a killed process loses nothing
    either way.
    Raises UserError if the file is invalid, or belongs to an account with other terms.
    """

    def __init__(self, path: Path, *, terms: dict[str, Any], durable: bool) -> None:
        self.path = path
        self._durable = durable
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self.connection = open_database(path, timeout_s=5.0)
        except sqlite3.Error as error:
            raise self._unusable(error) from error
        try:
            self.connection.execute("PRAGMA journal_mode=WAL")
            self._synchronous(flushes=durable)
            with self._transaction():
                for statement in _SCHEMA.strip().split(";")[:-1]:
                    self.connection.execute(statement)
                row = self.connection.execute("SELECT version, terms, state FROM account").fetchone()
                if row is None:
                    row = (0, json.dumps(terms), None)
                    self.connection.execute("INSERT INTO account VALUES (0, ?, ?, ?)", row)
            self._version, self._state = int(row[0]), row[2]
            self._check_terms(json.loads(row[1]), json.loads(json.dumps(terms)))
        except BaseException as error:
            self.connection.close()
            if isinstance(error, sqlite3.Error):
                raise self._unusable(error) from error
            raise
        self.connection.opened()

    def _unusable(self, error: sqlite3.Error) -> UserError:
        return UserError(
            f"{self.path} cannot be used as the account of the simulated broker: {error}. Remove it, or start a "
            "session with another name."
        )

    def state(self) -> dict[str, Any] | None:
        """The account's last state; None before the first."""
        return None if self._state is None else json.loads(self._state)

    def write(self, change: Change, state: dict[str, Any] | None = None, *, quiet: bool = False) -> None:
        """Write a change, and a new state if given, in one transaction. quiet: a power cut may undo it.

        Raises UserError if another process has changed the account, or the disk is full.
        """
        text = self._state if state is None else json.dumps(state)
        try:
            self._synchronous(flushes=self._durable and not quiet)
            with self._transaction():
                self._write(change, text, is_new=state is not None)
        except sqlite3.Error as error:
            raise UserError(f"{self.path} cannot be written: {error}. Is the disk full?") from error
        self._version, self._state = self._version + 1, text

    def open_orders(self) -> list[StoredOrder]:
        """The open orders, in their order."""
        return self._orders("WHERE status IN ('accepted', 'partly_filled') ORDER BY number", ())

    def n_orders(self) -> int:
        """The number of the latest order."""
        return int(self.connection.execute("SELECT coalesce(max(number), 0) FROM orders").fetchone()[0])

    def orders(self, ids: Sequence[str]) -> list[StoredOrder]:
        """The known orders among these IDs, in this order."""
        asked = json.dumps(list(ids))
        known = self._orders("WHERE client_order_id IN (SELECT value FROM json_each(?))", (asked,))
        found = {order.request.client_order_id: order for order in known}
        return [found[each] for each in dict.fromkeys(ids) if each in found]

    def events_after(self, number: int) -> tuple[list[BrokerEvent], int]:
        """(events, number of the last change) of all changes after this number, oldest first."""
        rows = self.connection.execute("SELECT number, told FROM events WHERE number > ? ORDER BY number", (number,))
        events: list[BrokerEvent] = []
        for found, told in rows.fetchall():
            events += map(_event, json.loads(told))
            number = found
        return events, number

    def close(self) -> None:
        self.connection.close()

    def _write(self, change: Change, state: str | None, *, is_new: bool) -> None:
        run = self.connection.execute
        if is_new:
            updated = run(
                "UPDATE account SET version = version + 1, state = ? WHERE version = ?", (state, self._version)
            )
        else:
            updated = run("UPDATE account SET version = version + 1 WHERE version = ?", (self._version,))
        if updated.rowcount != 1:
            raise UserError(f"{self.path} was changed by another process; only one session may use an account.")
        if change.new:
            self.connection.executemany(_ADD_ORDER, map(_order_row, change.new))
        if change.changed:
            self.connection.executemany(_UPDATE_ORDER, map(_update_row, change.changed))
        if change.events:
            told = json.dumps([_told(event) for event in change.events], default=float)  # of decimals
            run("INSERT INTO events (told) VALUES (?)", (told,))

    def _orders(self, where: str, values: Sequence[Any]) -> list[StoredOrder]:
        rows = self.connection.execute(f"SELECT * FROM orders {where}", tuple(values)).fetchall()
        return [_order(row) for row in rows]

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self.connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self.connection.execute("COMMIT")
        except BaseException:
            if self.connection.in_transaction:
                self.connection.execute("ROLLBACK")
            raise

    def _synchronous(self, *, flushes: bool) -> None:
        self.connection.execute(f"PRAGMA synchronous={'FULL' if flushes else 'NORMAL'}")

    def _check_terms(self, had: dict[str, Any], terms: dict[str, Any]) -> None:
        if differing := sorted(name for name in {**had, **terms} if had.get(name) != terms.get(name)):
            name = differing[0]
            raise UserError(
                f"The account in {self.path} was opened with {name} {had.get(name)!r}, but got {terms.get(name)!r}; "
                "an account keeps its terms: give the same, or start a session with another name."
            )


@lru_cache(maxsize=16)  # most times of a bar are the same
def _ns(time: np.datetime64 | None) -> int | None:
    return None if time is None or np.isnat(time) else int(time.astype("datetime64[ns]").astype(np.int64))


def _time(ns: int | None) -> np.datetime64:
    return np.datetime64("NaT", "ns") if ns is None else np.datetime64(ns, "ns")


def _told(event: BrokerEvent) -> list[Any]:
    at = _TIME_AT[type(event)]
    return [_KINDS.index(type(event)), *event[:at], _ns(event.time), *event[at + 1 :]]


def _event(told: list[Any]) -> BrokerEvent:
    kind: Any = _KINDS[told[0]]
    at = _TIME_AT[kind] + 1
    event = kind(*told[1:at], _time(told[at]), *told[at + 1 :])
    if isinstance(event, Fill | Adjustment):
        return event._replace(quantity=exact(event.quantity))
    return _in_decimals(event) if isinstance(event, OrderUpdate) else event


def _order_row(order: StoredOrder) -> tuple[Any, ...]:
    name, symbol, quantity, weight, limit_price, closing, targets = order.request[:7]
    told = None if targets is None else json.dumps(targets)
    limit = None if limit_price is None else float(limit_price)
    sent = (name, order.number, symbol, float(quantity), float(weight), limit, int(closing), told, _ns(order.arrives))
    return (*sent, *_update_row(order)[:-1])


def _update_row(order: StoredOrder) -> tuple[Any, ...]:
    name, _, status, quantity, filled, time, reason, price = order.update
    ordered = None if quantity is None else float(quantity)
    return status, ordered, float(filled), _ns(time), reason, price, name


def _order(row: Sequence[Any]) -> StoredOrder:
    name, number, symbol, quantity, weight, limit_price, closing, targets, arrives = row[:9]
    status, ordered, filled, time, reason, price = row[9:]
    told = None if targets is None else tuple(json.loads(targets))
    request = OrderRequest(name, symbol, exact(quantity), weight, limit_price, bool(closing), told)
    update = OrderUpdate(name, symbol, status, ordered, filled, _time(time), reason, price)
    return StoredOrder(request, _in_decimals(update), None if arrives is None else _time(arrives), number)


def _in_decimals(update: OrderUpdate) -> OrderUpdate:
    """An update as it was before its quantities were stored as floats, which keeps their bits."""
    quantity = None if update.quantity is None else exact(update.quantity)
    return update._replace(quantity=quantity, filled_quantity=exact(update.filled_quantity))

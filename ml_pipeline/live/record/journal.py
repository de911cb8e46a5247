"""The journal of a session: decisions, orders, fills and charges, in one SQLite file.

It is authoritative after a kill. Related changes are written in one transaction, and orders before they are sent. Every
other file of a session can be rebuilt from it.
"""

import contextlib
import json
import sqlite3
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np

from ml_pipeline.config.errors import UserError
from ml_pipeline.live.brokers.broker import Adjustment, Charge, Fill, OrderRequest, exact
from ml_pipeline.live.feeds.feed import CorporateAction
from ml_pipeline.runtime.database_file import open_database
from ml_pipeline.trading.market.bar_set import BarSet

VERSION = 1
TABLES = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS bars (
    number INTEGER PRIMARY KEY, time INTEGER NOT NULL UNIQUE, kind TEXT NOT NULL, late INTEGER NOT NULL,
    data BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS ledger (number INTEGER PRIMARY KEY, line TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS decisions (
    number INTEGER PRIMARY KEY, model TEXT NOT NULL, action TEXT NOT NULL, weights TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS orders (
    client_order_id TEXT PRIMARY KEY, number INTEGER NOT NULL, symbol TEXT NOT NULL, quantity TEXT NOT NULL,
    weight REAL NOT NULL, limit_price REAL, closing INTEGER NOT NULL, targets TEXT, status TEXT NOT NULL,
    filled_quantity TEXT NOT NULL, reason TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS orders_by_status ON orders (status);
CREATE INDEX IF NOT EXISTS orders_by_bar ON orders (number);
CREATE TABLE IF NOT EXISTS fills (
    fill_id TEXT PRIMARY KEY, client_order_id TEXT NOT NULL, symbol TEXT NOT NULL, quantity TEXT NOT NULL,
    price REAL NOT NULL, costs REAL NOT NULL, time INTEGER NOT NULL, exit INTEGER NOT NULL,
    margin_called INTEGER NOT NULL DEFAULT 0, number INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS charges (
    charge_id TEXT PRIMARY KEY, amount REAL NOT NULL, what TEXT NOT NULL, time INTEGER NOT NULL, days REAL,
    margin_called INTEGER NOT NULL, number INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS adjustments (
    adjustment_id TEXT PRIMARY KEY, kind TEXT NOT NULL, symbol TEXT NOT NULL, quantity TEXT NOT NULL,
    cash REAL NOT NULL, what TEXT NOT NULL, time INTEGER NOT NULL, number INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS announcements (
    adjustment_id TEXT PRIMARY KEY, kind TEXT NOT NULL, symbol TEXT NOT NULL, quantity TEXT NOT NULL,
    cash REAL NOT NULL, what TEXT NOT NULL, time INTEGER NOT NULL, number INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS corporate_actions (
    action_id TEXT PRIMARY KEY, symbol TEXT NOT NULL, kind TEXT NOT NULL, begins INTEGER NOT NULL,
    factor REAL NOT NULL, what TEXT NOT NULL, number INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS models (
    number INTEGER PRIMARY KEY, path TEXT NOT NULL, version TEXT, why TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS snapshots (name TEXT PRIMARY KEY, state TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS log (number INTEGER PRIMARY KEY, line TEXT NOT NULL);
"""


_PRICES = ("open", "high", "low", "close", "volume")
_HEAD = struct.Struct("<qqIIBBH")  # time, closed_at, symbols, bytes of the names, late, half-spreads, not used


def pack_bars(bars: BarSet) -> bytes:
    """The bars as bytes, for `unpack_bars`."""
    names = json.dumps(list(bars.columns)).encode() if bars.columns else b""
    has_spread = bars.half_spread is not None
    tables = [getattr(bars, name) for name in _PRICES]
    tables += [bars.half_spread] if has_spread else []
    tables += list(bars.columns.values())
    times = (int(time.astype("datetime64[ns]").astype(np.int64)) for time in (bars.time, bars.closed_at))
    head = _HEAD.pack(*times, len(bars.close), len(names), bars.late, has_spread, 0)
    return head + names + bars.fillable.astype(np.bool_).tobytes() + np.array(tables, dtype="<f8").tobytes()


def unpack_bars(data: bytes) -> BarSet:
    """The bars that `pack_bars` wrote; the arrays are read-only."""
    time, closed_at, n_symbols, n_names, late, has_spread, _ = _HEAD.unpack_from(data)
    at = _HEAD.size
    names = json.loads(data[at : at + n_names]) if n_names else []
    at += n_names
    fillable = np.frombuffer(data, np.bool_, n_symbols, at)
    tables = np.frombuffer(data, "<f8", -1, at + n_symbols).reshape(-1, n_symbols)
    n_own = len(_PRICES) + has_spread
    prices = dict(zip(_PRICES, tables, strict=False))
    return BarSet(
        time=np.datetime64(time, "ns"),
        closed_at=np.datetime64(closed_at, "ns"),
        **prices,
        fillable=fillable,
        half_spread=tables[n_own - 1] if has_spread else None,
        columns=dict(zip(names, tables[n_own:], strict=True)),
        late=bool(late),
    )


Event = TypeVar("Event", Fill, Charge, Adjustment)
BarKind = Literal["warm", "account"]
"""warm: the bar only warmed features up. account: it has a row of the ledger."""
WRITTEN, MISSED, REFUSED = "written", "missed", "refused"
"""States of an order in addition to the broker's: possibly not sent; never sent; never sent because of a guard."""


class OrderRecord(NamedTuple):
    """An order in the journal. number: of the bar of its decision."""

    request: OrderRequest
    number: int
    status: str
    filled_quantity: Decimal
    reason: str


class ModelRecord(NamedTuple):
    """The model that trades from bar `number` on."""

    number: int
    path: str
    version: str | None
    why: str


class Journal:
    """An open journal. Bars are numbered from 0, including warm-up bars.

    A `transaction` is written as a whole or not at all. Every method raises UserError if the disk is full or the file
    is damaged.
    """

    def __init__(self, path: Path, *, durable: bool = True, writes: bool = True) -> None:
        """Open the file, or create it.

        writes: if False, the file must exist and is only read; the session may still be trading.

        durable: wait for the disk at each commit, so that a power cut loses nothing. Without it, a killed process still
        loses nothing. Raises UserError if the file is not a journal or cannot be written.
        """
        self.path = path
        try:
            self._db = open_database(path, timeout_s=30.0, writes=writes)
            try:
                if writes:
                    self._make(durable=durable)
                version = self.meta("version")
            except BaseException:
                self._db.close()
                raise
        except sqlite3.Error as error:
            raise UserError(f"{path} cannot be used as the journal of a session: {error}.") from error
        if version != str(VERSION):
            self._db.close()
            raise UserError(f"{path} is of version {version}, but this program writes version {VERSION}; update it.")
        self._db.opened()

    def _make(self, *, durable: bool) -> None:
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
        with self.transaction():
            self._make_tables()
            self._make_quantities_text()
            self._db.execute("INSERT OR IGNORE INTO meta VALUES ('version', ?)", (str(VERSION),))

    def _make_tables(self) -> None:
        for statement in filter(str.strip, TABLES.split(";")):
            self._db.execute(statement)

    def _make_quantities_text(self) -> None:
        """Rebuild tables from before quantities were decimals. SQLite cannot change the type of a column."""
        for table in ("orders", "fills"):
            kinds = {name: kind for _, name, kind, *_ in self._db.execute(f"PRAGMA table_info({table})").fetchall()}
            if kinds["quantity"] != "REAL":
                continue
            found = self._db.execute(f"SELECT * FROM {table} ORDER BY rowid").fetchall()
            rows = [
                [_text(value) if name.endswith("quantity") else value for name, value in zip(kinds, row, strict=True)]
                for row in found
            ]
            self._db.execute(f"DROP TABLE {table}")
            self._make_tables()
            places = ", ".join("?" * len(kinds))
            self._db.executemany(f"INSERT INTO {table} ({', '.join(kinds)}) VALUES ({places})", rows)

    @contextlib.contextmanager
    def at_one_time(self) -> Iterator[None]:
        """Read a consistent state within the block, even if another process writes at the same time."""
        self._db.execute("BEGIN")
        try:
            yield
        finally:
            self._db.execute("ROLLBACK")

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Write everything within the block, or nothing if it fails."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:  # False if a full disk has ended it
                self._db.execute("ROLLBACK")
            raise

    def close(self) -> None:
        """Close the file; may be called twice."""
        self._db.close()

    # Constants of a session

    def meta(self, key: str) -> str | None:
        found = self._db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return None if found is None else str(found[0])

    def set_meta(self, values: Mapping[str, str]) -> None:
        self._db.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", list(values.items()))

    # Bars and the ledger

    def add_bar(self, number: int, bars: BarSet, kind: BarKind, *, line: str | None = None) -> None:
        """Add a bar, and its line of the ledger if it has one."""
        row = (number, _ns(bars.time), kind, bars.late, pack_bars(bars))
        self._db.execute("INSERT INTO bars VALUES (?, ?, ?, ?, ?)", row)
        if line is not None:
            self._db.execute("INSERT INTO ledger VALUES (?, ?)", (number, line))

    def bars(self, first: int = 0) -> Iterator[BarSet]:
        """Every bar from this number on, in order."""
        for (data,) in self._db.execute("SELECT data FROM bars WHERE number >= ? ORDER BY number", (first,)):
            yield unpack_bars(data)

    def n_bars(self) -> int:
        return int(self._db.execute("SELECT count(*) FROM bars").fetchone()[0])

    def last_bar(self) -> tuple[int, np.datetime64] | None:
        """The number and time of the latest bar; None before the first."""
        found = self._db.execute("SELECT number, time FROM bars ORDER BY number DESC LIMIT 1").fetchone()
        return None if found is None else (int(found[0]), np.datetime64(int(found[1]), "ns"))

    def first_account_bar(self) -> int | None:
        """The number of the first bar with a row of the ledger."""
        found = self._db.execute("SELECT min(number) FROM ledger").fetchone()
        return None if found[0] is None else int(found[0])

    def ledger_lines(self) -> Iterator[str]:
        """The lines of the ledger in order, with their ends."""
        return (str(line) for (line,) in self._db.execute("SELECT line FROM ledger ORDER BY number"))

    # Orders

    def add_decision(self, number: int, model: str, action: Any, weights: Sequence[float]) -> None:
        row = (number, model, json.dumps(action), json.dumps(list(weights)))
        self._db.execute("INSERT INTO decisions VALUES (?, ?, ?, ?)", row)

    def decided_bars(self) -> list[int]:
        """The numbers of the bars at which the model decided."""
        return [int(n) for (n,) in self._db.execute("SELECT number FROM decisions ORDER BY number")]

    def add_orders(
        self, number: int, orders: Iterable[OrderRequest], *, status: str = WRITTEN, reason: str = ""
    ) -> None:
        """Add orders that were decided at a bar; an order whose ID exists is left unchanged."""
        rows = [(o[0], number, o[1], _text(o.quantity), *o[3:6], _targets(o), status, "0", reason) for o in orders]
        self._db.executemany("INSERT OR IGNORE INTO orders VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)

    def update_order(
        self, client_order_id: str, status: str, *, filled: Decimal = Decimal(0), reason: str = ""
    ) -> bool:
        """Set the state of an order. Returns whether it changed."""
        changed = self._db.execute(
            "UPDATE orders SET status = ?1, filled_quantity = ?2, reason = ?3 WHERE client_order_id = ?4 "
            "AND (status, filled_quantity, reason) IS NOT (?1, ?2, ?3)",
            (status, _text(filled), reason, client_order_id),
        )
        return changed.rowcount > 0

    def orders(self, *, statuses: Sequence[str] | None = None, number: int | None = None) -> list[OrderRecord]:
        """The orders with one of these statuses, of one bar or of all."""
        wanted, values = [], list[Any]()
        if statuses is not None:
            wanted.append(f"status IN ({', '.join('?' * len(statuses))})")
            values += statuses
        if number is not None:
            wanted.append("number = ?")
            values.append(number)
        where = f"WHERE {' AND '.join(wanted)} " if wanted else ""
        found = self._db.execute(f"SELECT * FROM orders {where}ORDER BY number, rowid", values)
        return [_order(row) for row in found]

    def order(self, client_order_id: str) -> OrderRecord | None:
        found = self._db.execute("SELECT * FROM orders WHERE client_order_id = ?", (client_order_id,)).fetchone()
        return None if found is None else _order(found)

    # Money

    def add_fill(self, number: int, fill: Fill) -> None:
        """Add a fill that was received at bar `number`; a fill whose ID exists is left unchanged."""
        self._add("fills", fill, number)

    def add_charge(self, number: int, charge: Charge) -> None:
        """Add a charge, as `add_fill` does a fill."""
        self._add("charges", charge, number)

    def add_adjustment(self, number: int, adjustment: Adjustment) -> None:
        """Add an adjustment, as `add_fill` does a fill."""
        self._add("adjustments", adjustment, number)

    def adjustments(self) -> list[tuple[int, Adjustment]]:
        """Every adjustment in order of receipt, with the number of the bar that includes it."""
        if not self._has("adjustments"):
            return []
        names = ", ".join(Adjustment._fields)
        found = self._db.execute(f"SELECT number, {names} FROM adjustments ORDER BY number, rowid")
        return [(int(number), _timed(Adjustment, row)) for number, *row in found]

    def announce(self, adjustment: Adjustment) -> None:
        """Add an adjustment that a person announces; it is booked when the account shows it."""
        self._add("announcements", adjustment, self.n_bars())

    def announcements(self) -> list[Adjustment]:
        """The announced adjustments that are not booked yet, oldest first."""
        if not self._has("announcements"):
            return []
        names = ", ".join(Adjustment._fields)
        found = self._db.execute(
            f"SELECT {names} FROM announcements WHERE adjustment_id NOT IN (SELECT adjustment_id FROM adjustments) "
            "ORDER BY rowid"
        )
        return [_timed(Adjustment, row) for row in found]

    def drop_announcement(self, adjustment_id: str) -> None:
        """Remove an announcement that came under another name, or not at all. Within a transaction."""
        self._db.execute("DELETE FROM announcements WHERE adjustment_id = ?", (adjustment_id,))

    def _has(self, table: str) -> bool:
        """False for a table that an older journal lacks, if it is only read."""
        return self._db.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table,)).fetchone() is not None

    def add_corporate_action(self, number: int, action: CorporateAction) -> None:
        """Add a corporate action that the feed reported before bar `number`."""
        row = (*action._replace(begins=_ns(action.begins)), number)  # type: ignore[arg-type]
        self._db.execute("INSERT OR IGNORE INTO corporate_actions VALUES (?, ?, ?, ?, ?, ?, ?)", row)

    def corporate_actions(self) -> list[tuple[int, CorporateAction]]:
        """Every corporate action, with the number of the bar before which it was reported."""
        found = []
        for *row, number in self._db.execute("SELECT * FROM corporate_actions ORDER BY number, rowid"):
            action = CorporateAction(*row)
            found.append((int(number), action._replace(begins=np.datetime64(int(row[3]), "ns"))))
        return found

    def fills(self) -> list[Fill]:
        """Every fill, in order of receipt."""
        names = ", ".join(Fill._fields)
        found = self._db.execute(f"SELECT {names} FROM fills ORDER BY number, rowid")
        return [_timed(Fill, row) for row in found]

    def charges(self) -> list[Charge]:
        """Every charge, in order of receipt."""
        names = ", ".join(Charge._fields)
        found = self._db.execute(f"SELECT {names} FROM charges ORDER BY number, rowid")
        return [_timed(Charge, row) for row in found]

    def _add(self, table: str, event: Fill | Charge | Adjustment, number: int) -> None:
        values: list[Any] = [*event._replace(time=_ns(event.time)), number]  # type: ignore[arg-type]
        if not isinstance(event, Charge):
            values[event._fields.index("quantity")] = _text(event.quantity)
        columns, places = ", ".join((*event._fields, "number")), ", ".join("?" * len(values))
        self._db.execute(f"INSERT OR IGNORE INTO {table} ({columns}) VALUES ({places})", values)

    def fills_by_bar(self) -> list[tuple[int, Fill]]:
        """Every fill, with the number of the bar whose row of the ledger includes it."""
        return list(zip(self._numbers("fills"), self.fills(), strict=True))

    def charges_by_bar(self) -> list[tuple[int, Charge]]:
        """Every charge, as `fills_by_bar` does fills."""
        return list(zip(self._numbers("charges"), self.charges(), strict=True))

    def _numbers(self, table: str) -> list[int]:
        return [int(n) for (n,) in self._db.execute(f"SELECT number FROM {table} ORDER BY number, rowid")]

    def n_fills(self) -> int:
        return int(self._db.execute("SELECT count(*) FROM fills").fetchone()[0])

    # Models, snapshots and the log

    def add_model(self, number: int, path: str, version: str | None, why: str) -> None:
        """Record the model that trades from bar `number` on."""
        self._db.execute("INSERT OR REPLACE INTO models VALUES (?, ?, ?, ?)", (number, path, version, why))

    def models(self) -> list[ModelRecord]:
        return [ModelRecord(*row) for row in self._db.execute("SELECT * FROM models ORDER BY number")]

    def set_snapshots(self, texts: Mapping[str, str]) -> None:
        """Save fields of the session's state as JSON, by key; floats keep their bits. See `SessionState`."""
        self._db.executemany("INSERT OR REPLACE INTO snapshots VALUES (?, ?)", list(texts.items()))

    def snapshots(self) -> dict[str, Any]:
        """The saved fields as plain data, by key."""
        return {str(name): json.loads(text) for name, text in self._db.execute("SELECT name, state FROM snapshots")}

    def add_log_lines(self, lines: Iterable[str]) -> None:
        self._db.executemany("INSERT INTO log (line) VALUES (?)", [(line,) for line in lines])

    def log_lines(self) -> Iterator[str]:
        """The lines of the session's log, without their ends."""
        return (str(line) for (line,) in self._db.execute("SELECT line FROM log ORDER BY number"))


def _order(row: Sequence[Any]) -> OrderRecord:
    name, number, symbol, quantity, weight, limit_price, closing, targets, status, filled, reason = row
    told = None if targets is None else tuple(json.loads(targets))
    request = OrderRequest(name, symbol, exact(quantity), weight, limit_price, bool(closing), told)
    return OrderRecord(request, number, status, exact(filled), reason)


def _text(quantity: Decimal | float) -> str:
    """A quantity with all of its digits; equal ones have equal texts."""
    return f"{exact(quantity).normalize():f}"


def _targets(order: OrderRequest) -> str | None:
    return None if order.targets is None else json.dumps(order.targets)


def _timed(kind: type[Event], row: Sequence[Any]) -> Event:
    values = dict(zip(kind._fields, row, strict=True))
    values["time"] = np.datetime64(values["time"], "ns")
    if "quantity" in values:
        values["quantity"] = exact(values["quantity"])
    values |= {name: bool(values[name]) for name in ("exit", "margin_called") if name in values}
    return kind(**values)


def _ns(time: np.datetime64) -> int:
    return int(time.astype("datetime64[ns]").astype(np.int64))

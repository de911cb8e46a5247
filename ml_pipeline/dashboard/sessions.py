"""The trading sessions in a folder: state, account, last decision and events of each.

Only their files are read; unchanged files are not read again.
"""

import os
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ml_pipeline.config.errors import UserError, nearest
from ml_pipeline.config.json_object import count, finite, text
from ml_pipeline.config.wording import in_one_line
from ml_pipeline.dashboard.curves.chart_data import plain_numbers, thinned
from ml_pipeline.dashboard.curves.equity_tail import EquityTail
from ml_pipeline.dashboard.files import JsonFile, NotThere, is_plain, is_plain_file, json_line, read_text
from ml_pipeline.dashboard.summaries import BROKEN
from ml_pipeline.live.session_files import (
    DECISION_FILE,
    LEDGER_FILE,
    LOG_FILE,
    RECONCILIATION_FILE,
    REPORT_FILE,
    STATUS_FILE,
    is_session,
    last_sign_of_life,
)
from ml_pipeline.runs.folders import folders_in
from ml_pipeline.runs.state import STATE_FILE, RunState, read_state

ORDER_EVENTS = ("order", "update", "fill")
_SILENT_S = 60.0
"""A session touches its heartbeat every few seconds."""
_FIGURES = ("equity", "start_equity", "time_weighted_return", "cash")
_COUNTS = ("bars", "fills", "open_orders", "pid")
_TEXTS = ("model", "version", "broker", "bar", "updated", "last_sentence")


@dataclass(frozen=True, kw_only=True)
class SessionSummary:
    """A session, from its state.json and live.json. None: unknown."""

    name: str
    folder: Path
    status: str
    """running, finished, stopped or failed; broken if the file is invalid."""
    reason: str | None = None
    """Why it counts as stopped, or what is broken."""
    model: str | None = None
    version: str | None = None
    broker: str | None = None
    real_money: bool = False
    symbols: tuple[str, ...] = ()
    bar: str | None = None
    """The time of its last bar."""
    began: str | None = None
    updated: str | None = None
    equity: float | None = None
    start_equity: float | None = None
    time_weighted_return: float | None = None
    cash: float | None = None
    positions: Mapping[str, float] = field(default_factory=dict)
    """Signed quantities by symbol."""
    open_orders: int | None = None
    bars: int | None = None
    fills: int | None = None
    refusals: Mapping[str, int] = field(default_factory=dict)
    """Number of refusals by guard."""
    latency_ms: Mapping[str, float] = field(default_factory=dict)
    """median and p99 of the time from a bar to its orders."""
    last_sentence: str | None = None
    retrain: str | None = None
    """Result of the latest retraining, such as "2 promoted"."""
    pid: int | None = None
    has_report: bool = False
    has_reconciliation: bool = False

    @property
    def simple_return(self) -> float | None:
        """Return since the start, as a fraction; time-weighted around deposits and withdrawals."""
        if self.time_weighted_return is not None:
            return self.time_weighted_return
        if self.equity is None or not self.start_equity:
            return None
        return self.equity / self.start_equity - 1.0

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "folder": str(self.folder), "simple_return": self.simple_return}


def session_summary(
    values: Mapping[str, Any],
    state: RunState,
    *,
    name: str,
    folder: Path,
    heartbeat_s: float,
    has_report: bool = False,
    has_reconciliation: bool = False,
) -> SessionSummary:
    """The session described by live.json. heartbeat_s: time of its last heartbeat, in seconds since 1970."""
    status: str = state.status
    reason = state.reason
    silent_s = time.time() - heartbeat_s
    if status == "running" and silent_s > _SILENT_S:
        status = "stopped"
        reason = (
            f"It gave no sign of life for {silent_s / 60:,.0f} minutes, so its process is gone or hangs; to continue, "
            "start it again with the same command."
        )
    symbols = values.get("symbols")
    plain: dict[str, Any] = {each: text(values.get(each)) for each in _TEXTS}
    plain |= {each: finite(values.get(each)) for each in _FIGURES}
    plain |= {each: count(values.get(each)) for each in _COUNTS}
    return SessionSummary(
        name=name,
        folder=folder,
        status=status,
        reason=reason,
        began=state.began,
        real_money=values.get("real_money") is True,
        symbols=tuple(filter(None, map(text, symbols))) if isinstance(symbols, list) else (),
        positions=_numbers(values.get("positions")),
        refusals={name: int(times) for name, times in _numbers(values.get("refusals")).items()},
        latency_ms=_numbers(values.get("latency_ms")),
        retrain=_retrain(values.get("retrain")),
        has_report=has_report,
        has_reconciliation=has_reconciliation,
        **plain,
    )


def decision_details(values: Mapping[str, Any]) -> dict[str, Any]:
    """{"bar", "model", "weights", "features": [[column, raw, scaled, [lowest, highest] of training or None]]}.

    features: those outside the range of the training data first. Invalid values are left out.
    """
    beyond = {}
    for each in values.get("out_of_range") or ():
        if isinstance(each, list) and len(each) == 4 and isinstance(each[0], str):
            beyond[each[0]] = [finite(each[2]), finite(each[3])]
    features = values.get("features")
    rows = [
        [name, finite(pair[0]), finite(pair[1]), beyond.get(name)]
        for name, pair in (features.items() if isinstance(features, dict) else ())
        if isinstance(pair, list) and len(pair) == 2
    ]
    return {
        "bar": text(values.get("bar")),
        "model": text(values.get("model")),
        "weights": _numbers(values.get("weights")),
        "features": sorted(rows, key=lambda row: row[3] is None),
    }


def orders_of(events: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One row per order, from the order, update and fill events of a session's log, which are sorted by time.

    {"bar": of the decision, "symbol", "ordered", "filled": signed quantities, "price": mean of its fills, "limit",
    "costs": money, "status": the broker's latest, "steps": all statuses, "reason"}. The newest order comes first.
    Missing or invalid values are None.
    """
    orders: dict[str, dict[str, Any]] = {}
    for event in events:
        which = text(event.get("client_order_id"))
        if which is None or event.get("event") not in ORDER_EVENTS:
            continue
        names = ("bar", "symbol", "ordered", "limit", "filled", "price", "costs", "status", "reason")
        order = orders.setdefault(which, {**dict.fromkeys(names), "steps": []})
        for name in ("bar", "symbol"):
            order[name] = order[name] or text(event.get(name))
        if event["event"] == "order":
            order |= {"ordered": finite(event.get("quantity")), "limit": finite(event.get("limit_price"))}
            order["steps"].append("sent")
        elif event["event"] == "update":
            order |= {"status": text(event.get("status")), "reason": text(event.get("reason")) or None}
            if order["status"] and order["steps"][-1:] != [order["status"]]:
                order["steps"].append(order["status"])
        else:
            _take_fill(order, event)
    return [*orders.values()][::-1]


def _take_fill(order: dict[str, Any], fill: Mapping[str, Any]) -> None:
    quantity, price = finite(fill.get("quantity")), finite(fill.get("price"))
    if quantity and price is not None:
        before = order["filled"] or 0.0
        paid = before * (order["price"] or 0.0) + quantity * price
        order["filled"] = before + quantity
        order["price"] = paid / order["filled"] if order["filled"] else price
    order["costs"] = (order["costs"] or 0.0) + (finite(fill.get("costs")) or 0.0)


def _retrain(value: object) -> str | None:
    """The number and the state of a `RetrainEvent`."""
    if not isinstance(value, dict):
        return None
    return " ".join(str(each) for each in (count(value.get("number")), text(value.get("state"))) if each is not None)


def _numbers(value: object) -> dict[str, float]:
    if not isinstance(value, dict):
        return {}
    return {str(name): number for name, each in value.items() if (number := finite(each)) is not None}


_N_BINS = 800
_MOST_EVENTS = 100
_EVENT_BYTES = 1 << 18
_UNTOLD = ("decision", *ORDER_EVENTS)
"""Events with views of their own: the last decision, and the orders."""


class SessionReader:
    """Reads the sessions of one folder repeatedly. Thread-safe."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._known: dict[Path, _KnownSession] = {}
        self._lock = threading.Lock()

    def read(self) -> list[SessionSummary]:
        """Running sessions first, then the newest. Does not raise for a broken session: its status shows it."""
        with self._lock:
            found = [self._session(folder).summary() for folder in self._folders()]
        return sorted(found, key=lambda each: (each.status == "running", each.updated or ""), reverse=True)

    def details(self, name: str) -> dict[str, Any]:
        """{"equity": [seconds since 1970, money, money of buy and hold], "holdings", "orders", "decision", "events"}.

        Orders and events are sorted from new to old. holdings: see `EquityTail.holdings`. Raises NotThere.
        """
        folder = self.folder(name)
        with self._lock:
            return self._session(folder).details()

    def folder(self, name: str) -> Path:
        """The folder of a session. Raises NotThere, also for a name that would leave the root."""
        folders = {folder.name: folder for folder in self._folders()}
        if name in folders:
            return folders[name]
        hint = nearest(name, sorted(folders)) if folders and is_plain(name) else "use the name of its folder."
        raise NotThere(f'{self._root} has no session "{in_one_line(name)}"; {hint}')

    def _session(self, folder: Path) -> "_KnownSession":
        return self._known.setdefault(folder, _KnownSession(folder))

    def _folders(self) -> list[Path]:
        """Session folders, without hidden ones and links."""
        try:
            inside = folders_in(self._root)
        except OSError:
            return []
        return [each for each in inside if not each.is_symlink() and is_session(each)]


class _KnownSession:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._status = JsonFile(folder / STATUS_FILE)
        self._decision = JsonFile(folder / DECISION_FILE)
        self._ledger = EquityTail(folder / LEDGER_FILE)

    def summary(self) -> SessionSummary:
        name = self._folder.name
        try:
            if (state := read_state(self._folder)) is None:
                raise UserError(f"{self._folder} has no {STATE_FILE}.")
            if os.path.lexists(self._status.path):  # there is none before the first bar
                self._status.refresh()
            return session_summary(
                self._status.values,
                state,
                name=name,
                folder=self._folder,
                heartbeat_s=last_sign_of_life(self._folder),
                has_report=is_plain_file(self._folder / REPORT_FILE),
                has_reconciliation=is_plain_file(self._folder / RECONCILIATION_FILE),
            )
        except Exception as error:  # any error: the other sessions must still be shown
            told = in_one_line(error) or type(error).__name__
            reason = told if isinstance(error, UserError) else f"{self._status.path} cannot be read: {told}."
            return SessionSummary(name=name, folder=self._folder, status=BROKEN, reason=reason)

    def details(self) -> dict[str, Any]:
        times, equity = self._ledger.read()
        seconds, holding = times.astype(np.int64) / 1e9, self._ledger.buy_and_hold()
        if len(seconds):
            chosen = thinned(seconds, equity, low=seconds[0], high=seconds[-1], n_bins=_N_BINS)
            seconds, equity, holding = seconds[chosen], equity[chosen], holding[chosen]
        finite = np.isfinite(equity)
        events = self._last_events()
        told = [event for event in reversed(events) if event["event"] not in _UNTOLD]
        return {
            "equity": [seconds[finite].tolist(), equity[finite].tolist(), plain_numbers(holding[finite])],
            "holdings": self._ledger.holdings(),
            "orders": orders_of(events)[:_MOST_EVENTS],
            "decision": self._last_decision(),
            "events": [_as_told(event) for event in told[:_MOST_EVENTS]],
        }

    def _last_decision(self) -> dict[str, Any] | None:
        try:
            self._decision.refresh()
        except (ValueError, UserError, OSError):  # there was none yet
            return None
        return decision_details(self._decision.values)

    def _last_events(self) -> list[dict[str, Any]]:
        """The last events of the log, the oldest first."""
        lines = read_text(self._folder / LOG_FILE, most=_EVENT_BYTES).text.splitlines()
        return [event for event in map(json_line, lines) if event is not None and isinstance(event.get("event"), str)]


def _as_told(event: dict[str, Any]) -> dict[str, str | None]:
    """{"event", "at", "bar", "text"}: the event's sentence or, without one, its values in one line."""
    known = ("event", "at", "bar", "sentence")
    told = {name: _plain(value) for name, value in event.items() if name not in known}
    values = ", ".join(f"{name} {in_one_line(value)}" for name, value in told.items() if value)
    texts = {name: event.get(name) if isinstance(event.get(name), str) else None for name in known}
    return {
        **{name: texts[name] for name in ("event", "at", "bar")},
        "text": in_one_line(texts["sentence"] or values, longest=400),
    }


def _plain(value: object) -> str:
    """A value of an event as text; empty if there is nothing to show.

    >>> _plain(["AAPL", "MSFT"]), _plain({"speed": 60.0}), _plain(8475.941041), _plain(None), _plain(False)
    ('AAPL MSFT', 'speed 60', '8475.94', '', '')
    """
    if isinstance(value, dict):
        return " ".join(f"{name} {_one(each)}" for name, each in value.items() if _one(each))
    if isinstance(value, list):
        return " ".join(filter(None, map(_one, value)))
    return _one(value)


def _one(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return str(value) if value or (value == 0 and value is not False) else ""

"""The trading sessions in a folder, read from their files alone; what did not change is not read again."""

import json
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np

from ml_pipeline.config.errors import UserError, nearest
from ml_pipeline.config.wording import in_one_line
from ml_pipeline.dashboard.curves.chart_data import plain_numbers
from ml_pipeline.dashboard.curves.equity_tail import EquityTail
from ml_pipeline.dashboard.curves.thinning import thinned
from ml_pipeline.dashboard.json_file import JsonFile
from ml_pipeline.dashboard.run_files import is_plain, read_text
from ml_pipeline.dashboard.session import ORDER_EVENTS, SessionSummary, decision_details, orders_of, session_summary
from ml_pipeline.dashboard.summary import BROKEN
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
from ml_pipeline.runs.state import STATE_FILE, read_state

_N_BINS = 800
_MOST_EVENTS = 100
_EVENT_BYTES = 1 << 18
_UNTOLD = ("decision", *ORDER_EVENTS)
"""Events that are shown by themselves: the last decision, and the life of each order."""


class NoSuchSession(UserError):
    """The folder of sessions holds no session of this name."""


class SessionReader:
    """Reads the sessions of one folder again and again; may be used by several threads."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._known: dict[Path, _KnownSession] = {}
        self._lock = threading.Lock()

    def read(self) -> list[SessionSummary]:
        """Those that run first, then the newest. Never raises for one that is broken: its status tells."""
        with self._lock:
            found = [self._session(folder).summary() for folder in self._folders()]
        return sorted(found, key=lambda each: (each.status == "running", each.updated or ""), reverse=True)

    def details(self, name: str) -> dict[str, Any]:
        """{"equity": [seconds since 1970, money, that of buy and hold], "holdings", "orders", "decision", "events"}.

        Orders and events, the newest first. holdings: see `EquityTail.holdings`.
        Raises NoSuchSession.
        """
        folder = self.folder(name)
        with self._lock:
            return self._session(folder).details()

    def folder(self, name: str) -> Path:
        """The folder of a session. Raises NoSuchSession, also for a name that would lead elsewhere."""
        folders = {folder.name: folder for folder in self._folders()}
        if name in folders:
            return folders[name]
        hint = nearest(name, sorted(folders)) if folders and is_plain(name) else "a session is named as its folder is."
        raise NoSuchSession(f'{self._root} holds no session "{in_one_line(name)}"; {hint}')

    def _session(self, folder: Path) -> "_KnownSession":
        return self._known.setdefault(folder, _KnownSession(folder))

    def _folders(self) -> list[Path]:
        """Hidden ones are left out, and links."""
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
                has_report=_is_file(self._folder / REPORT_FILE),
                has_reconciliation=_is_file(self._folder / RECONCILIATION_FILE),
            )
        except Exception as error:  # anything at all: the others are to be seen
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
        """Those at the end of the log, the oldest first."""
        events = []
        for line in read_text(self._folder / LOG_FILE, most=_EVENT_BYTES).text.splitlines():
            try:
                event = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(event, dict) and isinstance(event.get("event"), str):
                events.append(event)
        return events


def _as_told(event: dict[str, Any]) -> dict[str, str | None]:
    """{"event", "at", "bar", "text"}: a sentence where it has one, else its values that say something, in a line."""
    known = ("event", "at", "bar", "sentence")
    told = {name: _plain(value) for name, value in event.items() if name not in known}
    values = ", ".join(f"{name} {in_one_line(value)}" for name, value in told.items() if value)
    texts = {name: event.get(name) if isinstance(event.get(name), str) else None for name in known}
    return {
        **{name: texts[name] for name in ("event", "at", "bar")},
        "text": in_one_line(texts["sentence"] or values, longest=400),
    }


def _plain(value: object) -> str:
    """A value of an event as a person reads it; empty where it says nothing.

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


def _is_file(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()

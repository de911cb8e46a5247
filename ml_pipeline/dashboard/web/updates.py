"""Updates that pages receive while runs write: only new data; nothing is read while no page is open."""

import asyncio
import contextlib
import re
import secrets
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from starlette.types import Receive, Scope, Send

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.json_object import without_nan
from ml_pipeline.dashboard.curves.chart_data import new_rows
from ml_pipeline.dashboard.curves.metrics_columns import MetricsStore
from ml_pipeline.dashboard.sessions import SessionReader
from ml_pipeline.dashboard.studies import read_studies
from ml_pipeline.dashboard.summaries import read_summaries
from ml_pipeline.dashboard.web.http import json_bytes

_ID = re.compile(r"(?P<server>[0-9a-f]{8})-(?P<version>\d{1,15})(?:;(?P<rows>[\d.,]*))?", re.ASCII)
_ROWS = re.compile(r"\d{1,15}\.\d{1,15}\.\d{1,15}", re.ASCII)
SERVER = secrets.token_hex(4)  # versions and generations are valid in this process only


class Rows(NamedTuple):
    """Number of rows and of metric names in a generation; generation 0: nothing read."""

    generation: int = 0
    n_rows: int = 0
    n_names: int = 0


@dataclass(frozen=True)
class Position:
    """How far a page has read: the version of the list of runs, and the rows of each selected run.

    It is the id of every event. A page that reconnects sends the last id to continue there, so the server stores
    nothing per page. rows: in the order in which the page names its runs."""

    version: int = 0
    rows: Sequence[Rows] = field(default=())

    @classmethod
    def parse(cls, text: str, n_runs: int) -> "Position":
        """The inverse of `str`; the beginning if the text is invalid or from another process."""
        found = _ID.fullmatch(text)
        if found is None or found["server"] != SERVER:
            return cls(0, [Rows()] * n_runs)
        rows = [Rows(*map(int, each.split("."))) for each in (found["rows"] or "").split(",") if _ROWS.fullmatch(each)]
        return cls(int(found["version"]), rows if len(rows) == n_runs else [Rows()] * n_runs)

    def __str__(self) -> str:
        return f"{SERVER}-{self.version};" + ",".join(".".join(map(str, each)) for each in self.rows)


class Changes(NamedTuple):
    """runs: new and changed runs. removed: names. lists: "order" (names of all runs), "studies" and "sessions", each
    complete if it changed. problem: error if the folder of runs cannot be read, else None."""

    version: int
    runs: list[dict[str, Any]]
    removed: list[str]
    lists: dict[str, list[Any]]
    problem: str | None


class RunList:
    """The runs below a root, each with the version at which it last changed. Thread-safe."""

    def __init__(self, root: Path, sessions: SessionReader | None = None) -> None:
        self._root = root
        self._session_reader = sessions
        self._lock = threading.Lock()
        self.version = 0
        self._runs: dict[str, tuple[int, dict[str, Any]]] = {}
        self._removed: dict[str, int] = {}
        self._lists: dict[str, tuple[int, list[Any]]] = {name: (0, []) for name in ("order", "studies", "sessions")}
        self._problem: str | None = None

    def refresh(self) -> bool:
        """Read the folders again; return True if anything changed."""
        found: dict[str, dict[str, Any]] = {}
        lists: dict[str, list[Any]] = {"studies": []}
        problem = None
        try:
            summaries = read_summaries(self._root)
            found = {run.name: without_nan(run.as_json()) for run in summaries}
            lists["studies"] = [study.as_json() for study in read_studies(self._root, summaries)]
        except UserError as error:
            found, problem = {}, str(error)
        lists["order"] = list(found)
        lists["sessions"] = [each.as_json() for each in self._session_reader.read()] if self._session_reader else []
        with self._lock:
            before = {name: run for name, (_, run) in self._runs.items()}
            changed = {name: each for name, each in lists.items() if each != self._lists[name][1]}
            if found == before and not changed and problem == self._problem:
                return False
            self.version += 1
            new = self.version
            self._removed = {name: at for name, at in self._removed.items() if name not in found}
            self._removed.update(dict.fromkeys(before.keys() - found.keys(), new))
            self._runs = {
                name: self._runs[name] if before.get(name) == run else (new, run) for name, run in found.items()
            }
            self._lists.update({name: (new, each) for name, each in changed.items()})
            self._problem = problem
        return True

    def since(self, version: int) -> Changes:
        """Changes after this version; after version 0, everything."""
        with self._lock:
            return Changes(
                self.version,
                [run for at, run in self._runs.values() if at > version],
                [name for name, at in self._removed.items() if at > version] if version else [],
                {name: each for name, (at, each) in self._lists.items() if at > version},
                self._problem,
            )


TICK_S = 0.25
"""Seconds between two checks of the metrics of selected runs."""
_SHARE_OF_A_CORE = 0.008
_LONGEST_S = 2.0
_LOOKED_AHEAD = 4  # the number of runs that the page selects at first


@dataclass(frozen=True)
class Choice:
    """The runs and metrics that a page shows."""

    runs: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()


class Updates:
    """Checks the files in a thread, and wakes the streams of pages after changes.

    Reading the list of runs takes at most about 1 % of a core: with hundreds of runs, it is read less often.
    """

    def __init__(self, root: Path, sessions: SessionReader | None = None) -> None:
        self.runs = RunList(root, sessions)
        self.store = MetricsStore(root)
        self.closing = asyncio.Event()
        self._chosen: Counter[str] = Counter()
        self._pages = 0
        self._task: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._list_due = 0.0
        self._seen: dict[str, tuple[int, int]] = {}

    @property
    def pages(self) -> int:
        """Number of connected pages."""
        return self._pages

    @contextmanager
    def watched(self, choice: Choice) -> Iterator[None]:
        """Check these runs for changes within the block."""
        self._pages += 1
        self._chosen.update(choice.runs)
        if self._task is None:
            self._list_due = 0.0
            self._task = asyncio.create_task(self._look())
        try:
            yield
        finally:
            self._pages -= 1
            self._chosen.subtract(choice.runs)
            self._chosen += Counter()  # drop runs with a count of 0
            if not self._pages and self._task is not None:
                self._task.cancel()
                self._task = None

    def look_ahead(self) -> None:
        """Read what a page will request first: the list, and the running runs or the newest run."""
        self.runs.refresh()
        changes = self.runs.since(0)
        own = {run["name"]: run for run in changes.runs if run["study"] is None}
        running = [name for name, run in own.items() if run["status"] == "running"][:_LOOKED_AHEAD]
        for run in running or [name for name in changes.lists.get("order", ()) if name in own][:1]:
            with contextlib.suppress(UserError), self.store.opened(run):
                pass

    def next_change(self) -> asyncio.Event:
        """An event that is set after the next change, or when the server closes."""
        return self._changed

    def close(self) -> None:
        """End all streams."""
        self.closing.set()
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _look(self) -> None:
        while not self.closing.is_set():
            if await asyncio.to_thread(self._look_once, tuple(self._chosen)):
                self._wake()
            await asyncio.sleep(TICK_S)

    def _look_once(self, chosen: Sequence[str]) -> bool:
        changed = False
        began = time.thread_time()
        if time.monotonic() >= self._list_due:
            changed = self.runs.refresh()
            spent = time.thread_time() - began
            self._list_due = time.monotonic() + min(max(spent / _SHARE_OF_A_CORE, TICK_S * 0.9), _LONGEST_S)
        for run in chosen:
            try:
                with self.store.opened(run) as columns:
                    seen = columns.generation, columns.n_rows
            except UserError:  # the run was removed; the list shows that
                seen = (0, 0)
            changed |= self._seen.get(run) != seen
            self._seen[run] = seen
        for run in self._seen.keys() - set(chosen):
            del self._seen[run]
        return changed

    def message(self, choice: Choice, position: Position) -> tuple[dict[str, Any], Position]:
        """(the data after `position`, empty if there is none; the new position)."""
        changes = self.runs.since(position.version)
        message: dict[str, Any] = {}
        if changes.version != position.version:
            message = {"runs": changes.runs, "removed": changes.removed, "problem": changes.problem, **changes.lists}
        rows, found = [], {}
        for run, before in zip(choice.runs, position.rows, strict=True):
            now, new = self._new_rows(run, choice.metrics, before)
            rows.append(now)
            if new is not None:
                found[run] = new
        if found:
            message["rows"] = found
        return message, Position(changes.version, rows)

    def _new_rows(self, run: str, metrics: Sequence[str], before: Rows) -> tuple[Rows, dict[str, Any] | None]:
        try:
            with self.store.opened(run) as columns:
                names = columns.names
                now = Rows(columns.generation, columns.n_rows, len(names))
                if now == before:
                    return now, None
                new = new_rows(columns, metrics, since=before.n_rows) if now.generation == before.generation else None
        except UserError:
            return Rows(), None if before == Rows() else {"reload": True}
        told: dict[str, Any] = {"reload": True} if new is None else new
        return now, told if now.n_names == before.n_names else {**told, "names": names}


HEARTBEAT_S = 15.0
_SLOWEST_S = 20.0
"""A page that reads nothing for this time is disconnected; it reconnects and continues from its position."""
_RETRY_MS = 1000


class EventStream:
    """An ASGI application that sends a page the data after `position`."""

    def __init__(self, updates: Updates, choice: Choice, position: Position) -> None:
        self._updates = updates
        self._choice = choice
        self._position = position

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-store")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        gone = asyncio.create_task(_disconnect(receive))
        try:
            with self._updates.watched(self._choice):
                await self._send(send, f"retry: {_RETRY_MS}\n\n")
                await self._send_changes(send, gone)
            with contextlib.suppress(TimeoutError):
                await self._send(send, "", more=False)
        except TimeoutError:
            return  # without an end, so the server closes the connection
        finally:
            gone.cancel()

    async def _send_changes(self, send: Send, gone: "asyncio.Task[None]") -> None:
        while not (gone.done() or self._updates.closing.is_set()):
            changed = self._updates.next_change()
            if self._updates.runs.version:  # otherwise the list has not been read yet
                message, after = await asyncio.to_thread(self._updates.message, self._choice, self._position)
                if message:
                    await self._send(send, _event(message, after))
                self._position = after
            waiting = asyncio.create_task(changed.wait())
            done, _ = await asyncio.wait({waiting, gone}, timeout=HEARTBEAT_S, return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            if not done:
                await self._send(send, ": still here\n\n")

    async def _send(self, send: Send, text: str, *, more: bool = True) -> None:
        await asyncio.wait_for(
            send({"type": "http.response.body", "body": text.encode(), "more_body": more}), _SLOWEST_S
        )


def _event(message: dict[str, Any], position: Position) -> str:
    return f"id: {position}\ndata: {json_bytes(message).decode()}\n\n"


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass

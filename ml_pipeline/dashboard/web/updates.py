"""What is sent to pages while runs write: only what is new, and nothing is looked at while no page is open."""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ml_pipeline.config.errors import UserError
from ml_pipeline.dashboard.curves.chart_data import new_rows
from ml_pipeline.dashboard.curves.metrics_store import MetricsStore
from ml_pipeline.dashboard.run_list import RunList
from ml_pipeline.dashboard.sessions import SessionReader
from ml_pipeline.dashboard.web.positions import Position, Rows

TICK_S = 0.25
"""How often the metrics of chosen runs are looked at."""
_SHARE_OF_A_CORE = 0.008
_LONGEST_S = 2.0
_LOOKED_AHEAD = 4  # as many as the page chooses by itself


@dataclass(frozen=True)
class Choice:
    """What a page shows: curves of these metrics of these runs."""

    runs: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()


class Updates:
    """Looks at the files in turn, in a thread, and wakes the streams of pages where anything changed.

    The list of runs takes at most about 1 % of a core: with hundreds of runs it is read less often.
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
        """How many are connected."""
        return self._pages

    @contextmanager
    def watched(self, choice: Choice) -> Iterator[None]:
        """Looks at these runs within the block."""
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
            self._chosen += Counter()  # drops those that nobody looks at
            if not self._pages and self._task is not None:
                self._task.cancel()
                self._task = None

    def look_ahead(self) -> None:
        """Read what a page asks for first: the list, and the runs that are running, or the newest one."""
        self.runs.refresh()
        changes = self.runs.since(0)
        own = {run["name"]: run for run in changes.runs if run["study"] is None}
        running = [name for name, run in own.items() if run["status"] == "running"][:_LOOKED_AHEAD]
        for run in running or [name for name in changes.order or () if name in own][:1]:
            with contextlib.suppress(UserError), self.store.opened(run):
                pass

    def next_change(self) -> asyncio.Event:
        """Set once anything has changed after this call, or the server closes."""
        return self._changed

    def close(self) -> None:
        """Let every stream end."""
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
            except UserError:  # the run was removed, which the list tells
                seen = (0, 0)
            changed |= self._seen.get(run) != seen
            self._seen[run] = seen
        for run in self._seen.keys() - set(chosen):
            del self._seen[run]
        return changed

    def message(self, choice: Choice, position: Position) -> tuple[dict[str, Any], Position]:
        """(what is new after `position`, empty where nothing is; the position after it)."""
        changes = self.runs.since(position.version)
        message: dict[str, Any] = {}
        if changes.version != position.version:
            message = {"runs": changes.runs, "removed": changes.removed, "problem": changes.problem}
            if changes.order is not None:
                message["order"] = changes.order
            if changes.studies is not None:
                message["studies"] = changes.studies
            if changes.sessions is not None:
                message["sessions"] = changes.sessions
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

"""The service's queue: all submitted runs, in one SQLite file that only the service writes.

Each change is one transaction, on disk when the call returns. A locked file or a full disk raises StoreUnavailable and
changes nothing. A lock file next to the queue keeps a second service out, even if the queue is deleted.
"""

import json
import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, get_args

from ml_pipeline.config.errors import UserError
from ml_pipeline.runs.state import Status
from ml_pipeline.runtime.files import path_inside
from ml_pipeline.runtime.process_identity import ProcessIdentity, is_alive, this_process

QUEUE_FILE = "queue.sqlite"
SERVICE_FOLDER = ".service"
LOCK_FILE = "service.lock"
_VERSION = 1
_BUSY_TIMEOUT_S = 5.0
_LOCKED_BYTE = 1 << 20  # beyond the text with the holder: on Windows, others cannot read a locked byte
_MOST_LOCK_BYTES = 4096

_TABLES = """
CREATE TABLE runs (
    id TEXT PRIMARY KEY,
    position INTEGER NOT NULL,
    priority INTEGER NOT NULL,
    status TEXT NOT NULL,
    reason TEXT,
    settings TEXT NOT NULL,
    changes TEXT NOT NULL,
    folder_of_work TEXT NOT NULL,
    restarts_left INTEGER NOT NULL,
    starts INTEGER NOT NULL,
    stop_asked INTEGER NOT NULL,
    stop_sent INTEGER NOT NULL,
    process TEXT
);
CREATE INDEX runs_by_status ON runs (status);
CREATE TABLE service (only_row INTEGER PRIMARY KEY CHECK (only_row = 1), process TEXT, since TEXT);
"""


@dataclass(frozen=True, kw_only=True)
class QueuedRun:
    """A run in the queue, in any state. Its id is the name of its folder."""

    id: str
    position: int = 0
    """Order of submission; among runs of equal priority, the lowest starts first."""
    priority: int = 0
    status: Status = "queued"
    reason: str | None = None
    """Why it stopped or failed."""
    settings: dict[str, Any]
    """All settings of the training, flat."""
    changes: dict[str, Any]
    """Settings that change when the run is resumed."""
    folder_of_work: str
    """Working directory of its process, from which the user's modules are imported."""
    restarts_left: int = 0
    starts: int = 0
    """Number of processes started for it."""
    stop_asked: bool = False
    stop_sent: bool = False
    """The stop signal was sent: a second one would end the process before it has saved."""
    process: ProcessIdentity | None = None
    """Its current or last process."""


class StoreUnavailable(UserError):
    """The queue cannot be read or written now; nothing has changed."""


class RootGone(StoreUnavailable):
    """The root, or the queue in it, was deleted, moved or replaced: nothing can be recorded any more."""


class ServiceRuns(UserError):
    """Another service works on this folder, or possibly does on another machine."""


class Store:
    """The queue of one folder, opened for the service of this process; several threads may use it."""

    def __init__(self, root: Path, *, since: str) -> None:
        """since: start time of this service, shown to services that are refused.

        Raises ServiceRuns if another service works on the folder, StoreUnavailable if the queue is unusable.
        """
        self.path = root / SERVICE_FOLDER / QUEUE_FILE
        self._root = root.resolve()
        self._lock = threading.RLock()
        self._closed = False
        self._file: os.stat_result | None = None  # of the queue, once it is open
        self._unreadable: dict[str, str] = {}
        process = this_process()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._root_lock = RootLock(self.path.parent, who=f"process {process.pid} on {process.host}, since {since}")
        except RootTaken as taken:
            who = f": {taken.who}" if taken.who else ""
            raise ServiceRuns(
                f"A service works on {root} already{who}; submit to that one, or stop it first."
            ) from None
        except OSError as error:
            raise StoreUnavailable(
                f"The service cannot keep its queue in {self.path.parent}: {error.strerror}; choose another --root."
            ) from error
        try:
            with self._told():
                self._connection = sqlite3.connect(
                    self.path, timeout=_BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
                )
        except BaseException:
            self._root_lock.close()
            raise
        try:
            self._begin(root, since)
        except BaseException:
            self._connection.close()
            self._root_lock.close()
            raise

    def _begin(self, root: Path, since: str) -> None:
        with self._told():
            self._connection.row_factory = sqlite3.Row
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute("PRAGMA synchronous = FULL")
        with self._transaction() as connection:
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if version == 0:
                for statement in filter(str.strip, _TABLES.split(";")):
                    connection.execute(statement)
                connection.execute(f"PRAGMA user_version = {_VERSION}")
            elif version != _VERSION:
                raise StoreUnavailable(
                    f"{self.path} was written by another version of this program (format {version}, here {_VERSION}); "
                    "use that version, or move the file away. Run folders are kept."
                )
            found = connection.execute("SELECT process, since FROM service").fetchone()
            if found is not None and (other := _process_of(found["process"])) is not None:
                _require_gone(other, root, found["since"])
            connection.execute("INSERT OR REPLACE INTO service VALUES (1, ?, ?)", (json.dumps(this_process()), since))
            _open_here.add(self._root)
        with self._told():
            self._file = os.stat(self.path)

    def require_there(self) -> None:
        """Raise RootGone if the root or the queue was deleted, moved or replaced since the queue was opened."""
        if self._file is None:
            return
        try:
            is_there = self._root_lock.is_there() and os.path.samestat(os.stat(self.path), self._file)
        except OSError:
            is_there = False
        if not is_there:
            what = self.path if self._root_lock.is_there() else self.path.parent.parent
            raise RootGone(
                f"{what} was deleted, moved or replaced while the service used it, so the service starts and accepts "
                "no more runs; end it and start it again. Active runs continue without it."
            )

    @property
    def unreadable(self) -> dict[str, str]:
        """The errors of entries that could not be read, by id; other methods leave these runs out."""
        return dict(self._unreadable)

    def close(self) -> None:
        """Release the queue for another service. May be called twice."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            with suppress(StoreUnavailable), self._transaction() as connection:
                connection.execute("UPDATE service SET process = NULL")
            self._connection.close()
            self._root_lock.close()
            _open_here.discard(self._root)

    def add(self, run: QueuedRun) -> QueuedRun:
        """Add a run at the end of the queue, and return it with its position. If its id exists, return the existing run
        unchanged."""
        with self._transaction() as connection:
            if (there := self._get(run.id)) is not None:
                return there
            values = {**_as_row(run), "position": self._last_position() + 1}
            names = ", ".join(values)
            marks = ", ".join("?" * len(values))
            connection.execute(f"INSERT INTO runs ({names}) VALUES ({marks})", tuple(values.values()))
            added = self._get(run.id)
            assert added is not None
            return added

    def change(self, id: str, *, to_the_end: bool = False, **values: Any) -> QueuedRun:
        """Change columns of a run, and return it. to_the_end: move it behind all other runs of its priority."""
        with self._transaction() as connection:
            if to_the_end:
                values["position"] = self._last_position() + 1
            row = {name: _to_sql(value) for name, value in values.items()}
            connection.execute(
                f"UPDATE runs SET {', '.join(f'{name} = ?' for name in row)} WHERE id = ?", (*row.values(), id)
            )
            changed = self._get(id)
            assert changed is not None, f"{id} is in the queue"
            return changed

    def remove(self, id: str) -> None:
        """Delete a run. Does nothing if there is none."""
        with self._transaction() as connection:
            connection.execute("DELETE FROM runs WHERE id = ?", (id,))

    def get(self, id: str) -> QueuedRun | None:
        """The run with this id; None if there is none."""
        with self._lock, self._told():
            return self._get(id)

    def runs(self) -> list[QueuedRun]:
        """All runs, in order of submission."""
        return self._select("ORDER BY position")

    def active(self) -> list[QueuedRun]:
        """The queued and running runs, in the order in which they start."""
        return self._select("WHERE status IN ('queued', 'running') ORDER BY priority DESC, position")

    def _select(self, which: str) -> list[QueuedRun]:
        with self._lock, self._told():
            found = []
            for row in self._connection.execute(f"SELECT * FROM runs {which}"):
                try:
                    found.append(_from_row(row))
                except (ValueError, TypeError, RecursionError) as error:  # edited by hand; keep reading the others
                    self._unreadable[str(row["id"])] = str(error)
            return found

    def _get(self, id: str) -> QueuedRun | None:
        row = self._connection.execute("SELECT * FROM runs WHERE id = ?", (id,)).fetchone()
        try:
            return None if row is None else _from_row(row)
        except (ValueError, TypeError, RecursionError) as error:
            raise UserError(
                f"The entry of run {id} in {self.path} is unusable: {error}; submit the run again under another id."
            ) from error

    def _last_position(self) -> int:
        (last,) = self._connection.execute("SELECT max(position) FROM runs").fetchone()
        return last or 0

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Either all changes of the block are on disk at its end, or none."""
        with self._lock, self._told():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    self._connection.execute("ROLLBACK")
                raise

    @contextmanager
    def _told(self) -> Iterator[None]:
        self.require_there()
        try:
            yield
        except sqlite3.ProgrammingError:  # a bug
            raise
        except (sqlite3.Error, OSError) as error:
            raise StoreUnavailable(f"The queue {self.path} cannot be used: {_remedy(error)}") from error


def _require_gone(other: ProcessIdentity, root: Path, since: str) -> None:
    """Raise ServiceRuns unless the service recorded in the queue has ended."""
    alive = is_alive(other)
    if alive is False or (other == this_process() and root.resolve() not in _open_here):
        return
    who = f"process {other.pid} on {other.host}, since {since}"
    if alive:
        raise ServiceRuns(f"A service works on {root} already: {who}; submit to that one, or stop it first.")
    raise ServiceRuns(
        f"A service of another machine may still work on {root}: {who}; if that process is gone, delete "
        f"{root / SERVICE_FOLDER / QUEUE_FILE} and start again. Run folders are kept."
    )


_open_here: set[Path] = set()  # roots of the services in this process


def _remedy(error: Exception) -> str:
    text = str(error)
    if "locked" in text or "busy" in text:
        return f"another program has locked it ({text}); nothing has changed, and the service tries again."
    if "full" in text or "No space" in text:
        return f"the disk is full ({text}); nothing has changed, and the service continues once there is space."
    if "not a database" in text or "malformed" in text:
        return f"it is damaged ({text}); move it away. Run folders are kept."
    return f"{text}; nothing has changed."


def _as_row(run: QueuedRun) -> dict[str, Any]:
    return {field.name: _to_sql(getattr(run, field.name)) for field in fields(run)}


def _to_sql(value: Any) -> Any:
    if isinstance(value, dict | ProcessIdentity):
        return json.dumps(value)
    return int(value) if isinstance(value, bool) else value


def _from_row(row: sqlite3.Row) -> QueuedRun:
    """Raises ValueError or TypeError if a value is invalid."""
    values = {name: row[name] for name in row.keys()}  # noqa: SIM118 - iterating over a Row gives its values
    if path_inside(Path(), values["id"]) is None:
        raise ValueError(f"its id {values['id']!r} cannot be the name of a folder")
    for name in ("position", "priority", "restarts_left", "starts"):
        if not isinstance(values[name], int):
            raise ValueError(f"{name} is {values[name]!r}, and not a whole number")
    if values["status"] not in get_args(Status):
        raise ValueError(f"status is {values['status']!r}")
    parsed = {name: json.loads(values[name]) for name in ("settings", "changes")}
    for name, value in parsed.items():
        if not isinstance(value, dict):
            raise ValueError(f"{name} are {value!r}")
    return QueuedRun(
        **{
            **values,
            **parsed,
            "stop_asked": bool(values["stop_asked"]),
            "stop_sent": bool(values["stop_sent"]),
            "process": _process_of(values["process"]),
        }
    )


def _process_of(text: str | None) -> ProcessIdentity | None:
    return None if text is None else ProcessIdentity(*json.loads(text))


class RootTaken(UserError):
    """Another process holds the lock. who: its description of itself; empty if it could not write one."""

    def __init__(self, who: str) -> None:
        super().__init__(who)
        self.who = who


class RootLock:
    """The lock on the service's folder; the system releases it when this process ends."""

    def __init__(self, folder: Path, who: str) -> None:
        """who: description shown to services that are refused. Raises RootTaken, and OSError if the file cannot be
        opened."""
        self.path = folder / LOCK_FILE
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
        while True:
            self._descriptor = os.open(self.path, flags, 0o600)
            try:
                if not _try_lock(self._descriptor):
                    raise RootTaken(os.read(self._descriptor, _MOST_LOCK_BYTES).decode(errors="replace").strip())
                if self.is_there():  # otherwise the previous service has just deleted the folder
                    break
            except BaseException:
                os.close(self._descriptor)
                raise
            os.close(self._descriptor)
        with suppress(OSError):  # a full disk: the description is missing, but the lock holds
            os.ftruncate(self._descriptor, 0)
            os.write(self._descriptor, who.encode())

    def is_there(self) -> bool:
        """False if the folder was deleted, moved or replaced since the lock was taken."""
        try:
            return os.path.samestat(os.stat(self.path), os.fstat(self._descriptor))
        except OSError:
            return False

    def close(self) -> None:
        """Release the folder. The empty file stays: removing it would let two services in. Call once only."""
        with suppress(OSError):
            os.ftruncate(self._descriptor, 0)
        os.close(self._descriptor)


def _try_lock(descriptor: int) -> bool:
    """Lock an open file without waiting; False if another process holds the lock. On a file system without locks, only
    the queue keeps a second service out."""
    try:
        if os.name == "nt":
            import msvcrt

            os.lseek(descriptor, _LOCKED_BYTE, os.SEEK_SET)
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined,unused-ignore]
            os.lseek(descriptor, 0, os.SEEK_SET)
        else:
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    except OSError:
        pass
    return True

"""A limit on the number of environments that the processes of one machine may have open at the same time.

The limit is a SQLite file that every participating process reads and writes; there is no server process.
"""

import contextlib
import contextvars
import json
import os
import secrets
import shutil
import sqlite3
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ml_pipeline.config.errors import UserError
from ml_pipeline.runtime.process_identity import ProcessIdentity, is_alive, new_owned_folder, owner_of, this_process

ENV_POOL_VARIABLE = "ML_PIPELINE_ENV_POOL"
"""The environment variable that holds the address of an `EnvPool`; runs inherit it from their service."""
DEFAULT_WAIT_S = 5.0  # time for other processes to close their environments

_PREFIX, _FILE = "ml-env-pool-", "leases.db"
_LOCK_S = 10.0  # a transaction takes 1 ms
_LOOK_S = 0.02
_TABLES = """
CREATE TABLE terms (max_envs INTEGER);
CREATE TABLE leases (
    id INTEGER PRIMARY KEY AUTOINCREMENT, process TEXT, batch TEXT, n_envs INTEGER, is_held INTEGER DEFAULT 0
);
"""
# A batch counts once: while its environments move to other workers, two leases hold them.
_COUNT = """
SELECT COALESCE(SUM(n), 0) FROM (SELECT MAX(n_envs) AS n FROM leases WHERE is_held OR id = ? GROUP BY batch)
"""


class LeaseRefused(UserError):
    """A pool has no room for the requested environments; the message lists the holders."""


@dataclass(frozen=True, slots=True)
class EnvPoolState:
    """A snapshot of a pool.

    n_envs: leased environments. n_waiting: leases that wait for room. held: number of environments per holder, such as
    {"process 4711": 8}.
    """

    n_envs: int
    n_waiting: int
    held: dict[str, int]


def env_pool_address() -> str | None:
    """The address of the pool that this process belongs to; None if there is none."""
    return os.environ.get(ENV_POOL_VARIABLE) or None


def new_limit(max_envs: int) -> str:
    """Create a limit that exists as long as this process, and return its address. Raises OSError."""
    folder = new_owned_folder(_PREFIX)
    with contextlib.closing(sqlite3.connect(folder / _FILE)) as file:
        file.executescript(_TABLES)
        with file:
            file.execute("INSERT INTO terms VALUES (?)", [max_envs])
    return str(folder)


def end_limit(address: str) -> None:
    """Remove the limit; it can be called twice."""
    shutil.rmtree(address, ignore_errors=True)


def limit_state(address: str) -> EnvPoolState:
    """The current state of the pool. Raises LeaseRefused if the pool no longer exists."""
    with _changing(address) as file:
        (n_waiting,) = file.execute("SELECT COUNT(*) FROM leases WHERE NOT is_held").fetchone()
        return EnvPoolState(_count(file), n_waiting, _held(file))


class Lease:
    """Reserved room for the environments of one worker pool; it belongs to the process that took it."""

    def __init__(self, address: str, number: int) -> None:
        self._address, self._number = address, number
        self._taken_by: int | None = os.getpid()

    def give_back(self) -> None:
        """Release the room. It can be called twice, and does nothing in a fork of the process that took it."""
        taken_by, self._taken_by = self._taken_by, None
        if taken_by == os.getpid():
            with contextlib.suppress(LeaseRefused):  # the pool no longer exists
                _drop(self._address, self._number)


class EnvLeases:
    """The leases of one batch of environments. Each environment counts once, even while it moves to another worker.

    address: of the pool. wait_s: how long to wait for room. is_required: if there is no room, raise; otherwise warn and
    continue without a lease. refusals: these warnings, until `take_notices` takes them.
    """

    def __init__(self, address: str, *, wait_s: float = DEFAULT_WAIT_S, is_required: bool = False) -> None:
        self.address, self.wait_s, self.is_required = address, wait_s, is_required
        self.refusals: list[str] = []
        self._batch = secrets.token_hex(8)

    def take(self, n_envs: int, *, in_processes: bool) -> Lease | None:
        """Take a lease for n_envs environments. If there is no room, raises LeaseRefused if a lease is required.

        in_processes: whether worker processes step them. Returns None if the environments do not count: this process
        steps them and no lease is required, or there is no room.
        """
        if not (in_processes or self.is_required):
            return None
        try:
            return Lease(self.address, self._wait_for_room(n_envs))
        except LeaseRefused as refusal:
            if self.is_required:
                raise
            sentence = f"{refusal} Workers are started as usual."
            self.refusals.append(sentence)
            warnings.warn(sentence, RuntimeWarning, stacklevel=2)
            return None

    def _wait_for_room(self, n_envs: int) -> int:
        """The number of the lease, once there is room. Leases are granted in the order of requests."""
        deadline = time.monotonic() + self.wait_s
        with _changing(self.address) as file:
            if n_envs > (most := _most(file)):
                raise LeaseRefused(
                    f"{n_envs} environments do not fit into a pool of max_concurrent_envs={most}; use fewer, or raise "
                    "max_concurrent_envs."
                )
            row = [json.dumps(this_process()), self._batch, n_envs]
            number = file.execute("INSERT INTO leases (process, batch, n_envs) VALUES (?, ?, ?)", row).lastrowid
        assert number is not None
        try:
            while True:
                with _changing(self.address) as file:
                    if _grant(file, number):
                        return number
                    refusal = _refusal(file, n_envs)
                if time.monotonic() >= deadline:
                    raise LeaseRefused(refusal)
                time.sleep(_LOOK_S)
        except BaseException:
            with contextlib.suppress(LeaseRefused):
                _drop(self.address, number)
            raise


_current: contextvars.ContextVar[EnvLeases | None] = contextvars.ContextVar("env_leases", default=None)


def current_leases() -> EnvLeases | None:
    """Where a new batch takes its lease: the leases set by `leasing`, else the pool of ML_PIPELINE_ENV_POOL."""
    if (chosen := _current.get()) is not None:
        return chosen
    address = env_pool_address()
    return None if address is None else EnvLeases(address)


@contextlib.contextmanager
def leasing(leases: EnvLeases | None) -> Iterator[None]:
    """Within the block, new batches of this thread share `leases` and count as one batch; None changes nothing."""
    token = _current.set(leases)
    try:
        yield
    finally:
        _current.reset(token)


@contextlib.contextmanager
def _changing(address: str) -> Iterator[sqlite3.Connection]:
    """A transaction on the file, after removing leases of dead processes. Raises LeaseRefused if the pool is gone."""
    owner = owner_of(Path(address))
    if owner is None or is_alive(owner) is False:
        raise LeaseRefused(f"The pool of environments {address} no longer exists.")
    path = f"{(Path(address) / _FILE).absolute().as_uri()}?mode=rw"
    try:
        with contextlib.closing(sqlite3.connect(path, uri=True, timeout=_LOCK_S, isolation_level=None)) as file:
            file.execute("PRAGMA synchronous = OFF")  # after a power cut no process holds a lease
            file.execute("BEGIN IMMEDIATE")
            _drop_ended(file)
            yield file
            file.execute("COMMIT")
    except sqlite3.Error as error:
        raise LeaseRefused(f"The pool of environments {address} no longer exists ({error}).") from error


def _drop_ended(file: sqlite3.Connection) -> None:
    for (process,) in file.execute("SELECT DISTINCT process FROM leases").fetchall():
        if is_alive(ProcessIdentity(*json.loads(process))) is False:
            file.execute("DELETE FROM leases WHERE process = ?", [process])


def _drop(address: str, number: int) -> None:
    with _changing(address) as file:
        file.execute("DELETE FROM leases WHERE id = ?", [number])


def _grant(file: sqlite3.Connection, number: int) -> bool:
    """Grant the lease if it is next and there is room, or if its batch already holds as many environments."""
    (n_before,) = file.execute("SELECT COUNT(*) FROM leases WHERE NOT is_held AND id < ?", [number]).fetchone()
    n_envs, then = _count(file), _count(file, number)
    may_hold = then == n_envs or (n_before == 0 and then <= _most(file))
    if may_hold:
        file.execute("UPDATE leases SET is_held = 1 WHERE id = ?", [number])
    return may_hold


def _most(file: sqlite3.Connection) -> int:
    (most,) = file.execute("SELECT max_envs FROM terms").fetchone()
    return int(most)


def _count(file: sqlite3.Connection, number: int = 0) -> int:
    """The number of environments held, including this lease if given."""
    (n_envs,) = file.execute(_COUNT, [number]).fetchone()
    return int(n_envs)


def _held(file: sqlite3.Connection) -> dict[str, int]:
    """How many environments each process holds."""
    held: dict[str, int] = {}
    batches = "SELECT process, MAX(n_envs) FROM leases WHERE is_held GROUP BY process, batch ORDER BY id"
    for process, n_envs in file.execute(batches):
        holder = f"process {ProcessIdentity(*json.loads(process)).pid}"
        held[holder] = held.get(holder, 0) + n_envs
    return held


def _refusal(file: sqlite3.Connection, n_envs: int) -> str:
    counts = [f"; {holder} holds {n_held}" for holder, n_held in _held(file).items()]
    ahead = "" if counts else " Earlier requests are still waiting."
    return (
        f"The wait for {n_envs} environments timed out: of max_concurrent_envs={_most(file)}, "
        f"{_count(file)} are in use{''.join(counts)}.{ahead}"
    )

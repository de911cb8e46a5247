"""What the runs of a service may use: its limits, what the machine has of them, and how runs that go on share cores."""

import json
import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ml_pipeline.config.checks import check_count, check_positive
from ml_pipeline.config.errors import UserError
from ml_pipeline.jobs.budget import Need, free_memory_bytes, need_of, share_of_cores
from ml_pipeline.monitoring.sinks import METRICS_FILE, read_lines
from ml_pipeline.runs.env_pool import pool_for_runs
from ml_pipeline.runs.requests import REQUEST_FILE, write_request
from ml_pipeline.runtime.cores import usable_cores
from ml_pipeline.runtime.env_limit import ENV_POOL_VARIABLE
from ml_pipeline.service.loop import EventLog
from ml_pipeline.service.store import QueuedRun, Store

_MB = 1e6
_ROWS = 3  # of metrics, after which what is not done was refused: workers may be busy for an iteration


@dataclass(frozen=True, kw_only=True)
class ServiceLimits:
    """Runs go on at once as long as all of these hold; the rest waits.

    Raises UserError where a value cannot be used.

    >>> ServiceLimits(max_runs=2).max_runs
    2
    """

    max_runs: int | None = None
    """Most runs at once; none: as many as cores and memory allow."""

    max_concurrent_envs: int | None = None
    """Most environments of all runs at once; none: no limit."""

    cores: float | None = None
    """Cores that runs share: each takes one, or one per worker; none: those that this process may use."""

    memory_mb: float | None = None
    """Memory in MB that runs may take together; none: what is available."""

    stop_grace_s: float = 60.0
    """Seconds from the request to stop a run until it is killed."""

    def __post_init__(self) -> None:
        for name in ("max_runs", "max_concurrent_envs"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name))
        for name in ("cores", "memory_mb"):
            if getattr(self, name) is not None:
                check_positive(name, getattr(self, name))
        check_positive("stop_grace_s", self.stop_grace_s)


class Resources:
    """The limits of a service, and what its machine has of them. Close it: that ends the pool."""

    def __init__(self, limits: ServiceLimits, log: EventLog) -> None:
        """Makes the pool. If that fails, the log tells why, and runs share no limit."""
        self._limits = limits
        self._pool = pool_for_runs(limits.max_concurrent_envs, log.tell)

    @property
    def cores(self) -> float:
        """Cores that runs share; at least one."""
        return max(1.0, self._limits.cores or usable_cores())

    def total(self, given_mb: float) -> Need:
        """All there is. given_mb: memory in MB that runs under way were given; it counts whether they use it yet."""
        limits = self._limits
        memory_mb = given_mb + free_memory_bytes() / _MB
        return Need(
            runs=limits.max_runs or math.inf,
            cores=self.cores,
            memory_mb=memory_mb if limits.memory_mb is None else min(memory_mb, limits.memory_mb),
            envs=limits.max_concurrent_envs or math.inf,
        )

    def environment(self) -> dict[str, str]:
        """Variables for the process of a run. It counts its environments in this service's pool, not in another one."""
        return {ENV_POOL_VARIABLE: "" if self._pool is None else self._pool.address}

    def close(self) -> None:
        """May be called twice."""
        if self._pool is not None:
            self._pool.close()


@dataclass
class _Pending:
    """What a run was asked for. rows: of its metrics when it had taken the request; None before it has."""

    asked: dict[str, Any]
    rows: int | None = None


class Scaling:
    """The requests of one service to its runs."""

    def __init__(self, root: Path, store: Store, *, cores: float) -> None:
        self._root, self._store, self._cores = root, store, cores
        self._shares: dict[str, int] = {}  # workers that a run was last asked for; absent: it chooses by itself
        self._pending: dict[str, _Pending] = {}

    def ask(self, run: QueuedRun, asked: Mapping[str, Any]) -> None:
        """Write a request that somebody made. Raises UserError.

        It counts once the run has done it: it may refuse.
        """
        folder = self._root / run.id
        self._store.require_there()
        write_request(folder, **asked)
        self._pending[run.id] = _Pending({**self.pending(run.id), **asked})
        self._shares.pop(run.id, None)

    def pending(self, id: str) -> dict[str, Any]:
        """What a run was asked for and has not done or refused yet."""
        return dict(self._pending[id].asked) if id in self._pending else {}

    def note_done(self) -> None:
        """Write into the queue what runs have done of what they were asked for. Raises StoreUnavailable."""
        for id, pending in [*self._pending.items()]:
            folder, run = self._root / id, self._store.get(id)
            if run is None or run.status != "running":
                del self._pending[id]
            elif not (folder / REQUEST_FILE).exists():
                rows = read_lines(folder / METRICS_FILE)
                if pending.rows is None:
                    pending.rows = len(rows)
                for row in rows[pending.rows :]:  # of iterations that began after it was taken
                    self._note_row(run, pending, row)
                if len(rows) >= pending.rows + _ROWS or not pending.asked:
                    del self._pending[id]

    def _note_row(self, run: QueuedRun, pending: _Pending, row: str) -> None:
        metrics = _metrics_of(row)
        done = {name: value for name, value in pending.asked.items() if _is_done(name, value, metrics)}
        if done:
            now = self._store.get(run.id) or run
            self._store.change(run.id, settings={**now.settings, **done})
            pending.asked = {name: value for name, value in pending.asked.items() if name not in done}

    def share(self) -> None:
        """Give each run whose workers are "dynamic" its share of the cores, now that a run came or went.

        A run that is alone chooses by itself. The bits of a run do not depend on it.
        """
        running = [run for run in self._store.active() if run.status == "running"]
        dynamic = [run for run in running if run.settings.get("n_workers") == "dynamic"]
        self._shares = {run.id: self._shares[run.id] for run in dynamic if run.id in self._shares}
        fixed = sum(need_of(run.settings).cores for run in running if run not in dynamic)
        for run in dynamic:
            if len(running) == 1:
                if self._shares.pop(run.id, None) is not None:
                    self._request(run, "dynamic")
                continue
            cores = share_of_cores(self._cores, fixed, len(dynamic))
            workers = 0 if cores == 1 else min(cores, int(run.settings.get("n_envs") or 1))
            if self._shares.get(run.id) != workers:
                self._shares[run.id] = workers
                self._request(run, workers)

    def _request(self, run: QueuedRun, n_workers: int | str) -> None:
        with suppress(UserError):  # it goes on with what it has
            write_request(self._root / run.id, n_workers=n_workers)  # type: ignore[arg-type]


def _is_done(name: str, value: int | str, metrics: Mapping[str, Any]) -> bool:
    """Whether an iteration was made as asked. A run that chooses its workers has any number of them."""
    if name == "n_envs":
        return metrics.get("time/n_envs") == value
    return "workers/count" in metrics and (isinstance(value, str) or metrics["workers/count"] == value)


def _metrics_of(line: str) -> dict[str, Any]:
    with suppress(ValueError, RecursionError):
        if isinstance(values := json.loads(line), dict):
            return values
    return {}

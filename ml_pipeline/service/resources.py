"""Resources of the runs of a service: the limits, what the machine has, and how running runs share cores."""

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
_ROWS = 3  # iterations after which a pending request counts as refused: workers may be busy for one


@dataclass(frozen=True, kw_only=True)
class ServiceLimits:
    """Limits on the runs that are active at once; further runs wait in the queue.

    Raises UserError if a value is invalid.

    >>> ServiceLimits(max_runs=2).max_runs
    2
    """

    max_runs: int | None = None
    """Largest number of active runs; none: as many as cores and memory allow."""

    max_concurrent_envs: int | None = None
    """Largest number of environments of all active runs together; none: no limit."""

    cores: float | None = None
    """Number of cores for all active runs; a run counts one core, or one per worker. none: the cores available to the
    service."""

    memory_mb: float | None = None
    """Memory for all active runs, in MB; none: the memory that is available."""

    stop_grace_s: float = 60.0
    """Seconds that a run has after a stop request to save and end; then it is killed."""

    def __post_init__(self) -> None:
        for name in ("max_runs", "max_concurrent_envs"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name))
        for name in ("cores", "memory_mb"):
            if getattr(self, name) is not None:
                check_positive(name, getattr(self, name))
        check_positive("stop_grace_s", self.stop_grace_s)


class Resources:
    """The limits of a service, and the resources of its machine. Close it to end its environment pool."""

    def __init__(self, limits: ServiceLimits, log: EventLog) -> None:
        """Create the environment pool. If that fails, log the reason; runs then share no limit."""
        self._limits = limits
        self._pool = pool_for_runs(limits.max_concurrent_envs, log.tell)

    @property
    def cores(self) -> float:
        """Cores for all runs; at least one."""
        return max(1.0, self._limits.cores or usable_cores())

    def total(self, given_mb: float) -> Need:
        """All resources. given_mb: memory in MB assigned to active runs, whether they use it yet or not."""
        limits = self._limits
        memory_mb = given_mb + free_memory_bytes() / _MB
        return Need(
            runs=limits.max_runs or math.inf,
            cores=self.cores,
            memory_mb=memory_mb if limits.memory_mb is None else min(memory_mb, limits.memory_mb),
            envs=limits.max_concurrent_envs or math.inf,
        )

    def environment(self) -> dict[str, str]:
        """Environment variables of a run's process, which count its environments in this service's pool."""
        return {ENV_POOL_VARIABLE: "" if self._pool is None else self._pool.address}

    def close(self) -> None:
        """May be called twice."""
        if self._pool is not None:
            self._pool.close()


@dataclass
class _Pending:
    """A request to a run. rows: number of its metrics rows when it took the request; None before that."""

    asked: dict[str, Any]
    rows: int | None = None


class Scaling:
    """Requests of a service to change the workers or environments of its runs."""

    def __init__(self, root: Path, store: Store, *, cores: float) -> None:
        self._root, self._store, self._cores = root, store, cores
        self._shares: dict[str, int] = {}  # workers last requested of a run; absent: the run chooses
        self._pending: dict[str, _Pending] = {}

    def ask(self, run: QueuedRun, asked: Mapping[str, Any]) -> None:
        """Write the request of a user. Raises UserError.

        The queue's settings change once the run has applied the request, because the run may refuse it.
        """
        folder = self._root / run.id
        self._store.require_there()
        write_request(folder, **asked)
        self._pending[run.id] = _Pending({**self.pending(run.id), **asked})
        self._shares.pop(run.id, None)

    def pending(self, id: str) -> dict[str, Any]:
        """Requests that a run has neither applied nor refused yet."""
        return dict(self._pending[id].asked) if id in self._pending else {}

    def note_done(self) -> None:
        """Update the queue with the requests that runs have applied. Raises StoreUnavailable."""
        for id, pending in [*self._pending.items()]:
            folder, run = self._root / id, self._store.get(id)
            if run is None or run.status != "running":
                del self._pending[id]
            elif not (folder / REQUEST_FILE).exists():
                rows = read_lines(folder / METRICS_FILE)
                if pending.rows is None:
                    pending.rows = len(rows)
                for row in rows[pending.rows :]:  # iterations that began after the run took the request
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
        """Give each run with "dynamic" workers its share of the cores, after a run started or ended.

        A single run chooses its workers itself. Results do not depend on it.
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
        with suppress(UserError):  # the run keeps its workers
            write_request(self._root / run.id, n_workers=n_workers)  # type: ignore[arg-type]


def _is_done(name: str, value: int | str, metrics: Mapping[str, Any]) -> bool:
    """True if an iteration ran as requested. A run that chooses its own workers may have any number."""
    if name == "n_envs":
        return metrics.get("time/n_envs") == value
    return "workers/count" in metrics and (isinstance(value, str) or metrics["workers/count"] == value)


def _metrics_of(line: str) -> dict[str, Any]:
    with suppress(ValueError, RecursionError):
        if isinstance(values := json.loads(line), dict):
            return values
    return {}

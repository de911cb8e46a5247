"""`AgentTrainingService`: a queue of trainings that run in parallel within limits of cores, memory and environments.

It prints nothing and handles no signals. Each run is a separate process that needs the service only to start: you can
close or kill the service at any time, and the next service on the same root takes over its runs.
"""

import contextlib
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from ml_pipeline.config.checks import check_number
from ml_pipeline.config.errors import UserError, nearest
from ml_pipeline.config.files import convert_settings
from ml_pipeline.runs.folder import LATEST_CHECKPOINT, root_of_runs
from ml_pipeline.runs.requests import Request
from ml_pipeline.runs.state import ENDED, in_words
from ml_pipeline.runs.train_config import TrainConfig, layered, train_config
from ml_pipeline.service.loop import LOG_FILE, EventLog, Loop
from ml_pipeline.service.processes import RunProcesses, run_processes
from ml_pipeline.service.resources import Resources, Scaling, ServiceLimits
from ml_pipeline.service.run_supervisor import RunSupervisor
from ml_pipeline.service.store import SERVICE_FOLDER, QueuedRun, RootGone, Store, StoreUnavailable
from ml_pipeline.service.submission import (
    Settings,
    as_path,
    check_order,
    check_run_id,
    check_within_limit,
    flat_settings,
    known_run,
    new_run_id,
    require_name,
    resumable,
    submitted_config,
)

_CLOSE_S = 1.0  # to record the ends of runs, in addition to their grace period


class AgentTrainingService:
    """Runs submitted trainings, as many at once as the limits allow, and queues the rest.

    root: folder of run folders; the service keeps its own files in root/.service. limits: of cores, memory,
    environments and runs. say: called with a sentence per event, from a thread. Use it as a context manager, or call
    `close()`.
    """

    def __init__(
        self,
        root: Path | str | None = None,
        *,
        limits: ServiceLimits | None = None,
        say: Callable[[str], None] | None = None,
        processes: Callable[[Path, Callable[[], None]], RunProcesses] = run_processes,
    ) -> None:
        """root: None means checkpoints/, as for `ml-pipeline train`. processes: starts the processes of runs.

        Raises ServiceRuns if another service works on the root, and UserError if the root is not writable.
        """
        self.root = root_of_runs(None if root is None else Path(root))
        self.limits = limits or ServiceLimits()
        self._changed = threading.Condition(threading.RLock())
        self._closed = False
        log = EventLog(self.root / SERVICE_FOLDER / LOG_FILE, say)
        self._loop = Loop(log)
        with contextlib.ExitStack() as undo:
            self._store = store = Store(self.root, since=datetime.now(UTC).isoformat(timespec="seconds"))
            undo.callback(store.close)
            resources = Resources(self.limits, log)
            undo.callback(resources.close)
            self._processes = processes(log.path, self._loop.wake)
            undo.callback(self._processes.close)
            grace_s = self.limits.stop_grace_s
            self._supervisor = RunSupervisor(self.root, store, self._processes, resources, log=log, grace_s=grace_s)
            self._scaling = Scaling(self.root, store, cores=resources.cores)
            self._supervisor.take_over()
            self._loop.start(self._step)
            self._undo = undo.pop_all()

    # Requests of callers

    def submit(
        self,
        settings: Settings,
        *,
        priority: int = 0,
        restarts: int = 0,
        run_id: str | None = None,
        folder_of_work: Path | str | None = None,
    ) -> str:
        """Queue a run and return its id, which is the name of its folder. The queue is on disk when this returns.

        settings: a TrainConfig, settings by name (flat or in sections), or the path of a settings file. priority: runs
        with a higher priority start first. restarts: how often the run restarts from its checkpoint after a crash.
        run_id: an id of your own; submitting the same settings again under a known id does nothing, so a caller can
        safely repeat a request. folder_of_work: working directory of the run, from which relative paths are resolved;
        None means the current one.

        Raises UserError if a setting is invalid or the queue is not writable; nothing is queued then.
        """
        check_order(priority, restarts)
        where = Path.cwd() if folder_of_work is None else as_path("folder_of_work", folder_of_work).absolute()
        config = submitted_config(settings, working_directory=where)
        flat = flat_settings(config)
        check_within_limit(flat, self.limits.max_concurrent_envs)
        id = new_run_id(config) if run_id is None or run_id == "" else run_id
        check_run_id(id)
        run = QueuedRun(
            id=id,
            priority=int(priority),
            settings=flat,
            changes={},
            folder_of_work=str(where),
            restarts_left=int(restarts),
        )
        with self._changing() as store:
            there = store.get(id)
            if there is not None:
                _require_same(there, run)
                return id
            if (self.root / id).exists():
                raise UserError(f"{self.root / id} already exists; give the run another id.")
            added = store.add(run)
            try:
                self._supervisor.make_folder(added)
            except UserError:
                with contextlib.suppress(StoreUnavailable):  # else it stays queued; its folder is made when it starts
                    store.remove(id)
                    shutil.rmtree(self.root / id, ignore_errors=True)
                raise
        return id

    def list(self) -> list[QueuedRun]:
        """All runs ever submitted to this root, in order of submission."""
        with self._changed:
            self._require_open()
            return self._store.runs()

    def get(self, run: str) -> QueuedRun:
        """The run with this id. Raises UserError if there is none."""
        require_name(run)
        with self._changed:
            self._require_open()
            found = self._store.get(run)
            if found is None:
                raise UserError(f'There is no run "{run}" here. {nearest(run, [each.id for each in self.list()])}')
            return found

    def knows(self, run: str) -> bool:
        """Whether a run with this id was ever submitted here."""
        with self._changed:
            self._require_open()
            return self._store.get(run) is not None

    def wait(self, runs: Iterable[str] | None = None, timeout_s: float | None = None) -> Sequence[QueuedRun]:
        """Wait until these runs (None: all) have ended or `timeout_s` has passed, and return them.

        Raises UserError if there is no such run, or if the service is closed meanwhile.
        """
        if timeout_s is not None:
            check_number("timeout_s", timeout_s, lambda s: s >= 0, "at least 0 seconds, or None to wait for ever")
        if runs is not None and not isinstance(runs, Iterable):
            raise UserError(f"wait takes ids of runs, or None for all, but got {runs!r}.")
        ids = [run.id for run in self.list()] if runs is None else [runs] if isinstance(runs, str) else [*runs]
        end = None if timeout_s is None else time.monotonic() + timeout_s
        with self._changed:
            while True:
                found = [self.get(id) for id in ids]
                left_s = None if end is None else end - time.monotonic()
                if all(run.status in ENDED for run in found) or (left_s is not None and left_s <= 0):
                    return found
                self._changed.wait(left_s if left_s is None else min(left_s, threading.TIMEOUT_MAX))

    def stop(self, run: str) -> None:
        """Ask a run to save and end, or remove it from the queue; kill it if it is still active after the grace period.

        Does nothing if the run has ended. Raises UserError if there is no such run.
        """
        with self._changing():
            self._supervisor.stop(self.get(run))

    def resume(self, run: str, *, total_timesteps: int | None = None, **changes: Any) -> bool:
        """Queue a run that has ended: it continues from its checkpoint, or starts again if it has none.

        total_timesteps, changes: settings to change. Runs that the command line trained in this root can be resumed
        too. Returns True if there is a checkpoint. Raises UserError if the run cannot be resumed.
        """
        require_name(run)
        if total_timesteps is not None:
            changes["total_timesteps"] = total_timesteps
        with self._changing() as store:
            found = store.get(run) or known_run(self.root, run)
            changes = resumable(found, self.root / run, changes)
            settings = layered(found.settings, changes)
            check_within_limit(settings, self.limits.max_concurrent_envs)
            store.add(found)
            queued = store.change(
                run,
                status="queued",
                reason=None,
                process=None,
                stop_asked=False,
                stop_sent=False,
                settings=settings,
                changes=changes,
                to_the_end=True,
            )
            with contextlib.suppress(UserError):  # if it fails, the folder is made when the run starts
                self._supervisor.make_folder(queued)
            return (self.root / run / LATEST_CHECKPOINT).exists()

    def scale(self, run: str, *, n_workers: int | str | None = None, n_envs: int | None = None) -> None:
        """Change the number of workers or environments of a running run, from its next iteration.

        Raises UserError if it is not running, or if the number exceeds the limit of environments.
        """
        with self._changing():
            found = self.get(run)
            if found.status != "running":
                raise UserError(
                    f"{run} is not running: {in_words(found.status)}. Only a run in progress can be scaled."
                )
            Request(n_workers=n_workers, n_envs=n_envs)  # type: ignore[arg-type]  # checks both, and their limits
            asked = {name: value for name, value in (("n_workers", n_workers), ("n_envs", n_envs)) if value is not None}
            wanted = {**found.settings, **self._scaling.pending(run), **asked}
            if isinstance(wanted["n_workers"], int):
                train_config(layered(convert_settings(wanted, TrainConfig, source=Path("the request"))))
            check_within_limit(wanted, self.limits.max_concurrent_envs)
            self._scaling.ask(found, asked)

    def start_no_more(self) -> None:
        """Start no more runs. Call this before `close()` if runs must not start meanwhile."""
        self._supervisor.to_close = True

    def close(self, *, stop_runs: bool = False) -> None:
        """End the service; runs continue, and the next service on this root takes them over. May be called twice.

        stop_runs: stop all runs first, and wait for them.
        """
        self.start_no_more()
        try:
            if stop_runs and not self._closed:
                with contextlib.suppress(RootGone):  # already reported; the runs can no longer be found
                    self._stop_all()
        finally:
            with self._changed:
                was_closed, self._closed = self._closed, True
                self._changed.notify_all()
            if not was_closed:
                self._loop.close()
                self._undo.close()

    def _stop_all(self) -> None:
        going_on = [run.id for run in self.list() if run.status == "running"]
        for id in going_on:
            self.stop(id)
        self.wait(going_on, timeout_s=2 * self.limits.stop_grace_s + _CLOSE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    # Work of the thread

    def _step(self) -> None:
        with self._changed:
            self._scaling.note_done()
            if self._supervisor.tick():
                self._scaling.share()
                self._changed.notify_all()

    @contextlib.contextmanager
    def _changing(self) -> Iterator[Store]:
        """Hold the lock within the block, then wake the thread."""
        with self._changed:
            self._require_open()
            yield self._store
            self._changed.notify_all()
        self._loop.wake()

    def _require_open(self) -> None:
        if self._closed:
            raise UserError("This service is closed; create another on the same root.")


def _require_same(there: QueuedRun, submitted: QueuedRun) -> None:
    if there.settings != submitted.settings:
        differ = sorted(name for name in submitted.settings if submitted.settings[name] != there.settings.get(name))
        raise UserError(
            f"{there.id} was already submitted with another {differ[0] if differ else 'setting'}; give the run "
            "another id."
        )

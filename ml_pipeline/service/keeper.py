"""Keeps the runs of one root going: starts what fits, notices what ended, restarts, stops, and adopts.

Everything is done again until it is written down: a queue that is locked or a full disk delays, and loses nothing.
Called by one thread at a time; waits for nothing.
"""

import errno
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.files import write_yaml
from ml_pipeline.config.flags import flag_of
from ml_pipeline.config.wording import counted, written
from ml_pipeline.runs.folder import LATEST_CHECKPOINT, SETTINGS_FILE
from ml_pipeline.runs.state import RunState, read_state, record_end_for, record_queued
from ml_pipeline.runtime.process_identity import ProcessIdentity, identity_of, is_alive
from ml_pipeline.service.budget import Need, Waiting, need_of, to_start
from ml_pipeline.service.last_words import OUTPUT_FILE, how_it_ended, last_words
from ml_pipeline.service.processes import RunProcesses
from ml_pipeline.service.run_process import RunOrder
from ml_pipeline.service.store import QueuedRun, RunStatus, Store

_LOOK_S = 0.5  # how often runs of earlier services are looked for among the processes
_REFUSED = 2  # exit code of a command that cannot use what it was given: it would say the same again
_MOST_STARTS_IN_VAIN = 5
_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS}


@dataclass
class _Watched:
    """A run whose process goes on. kill_at: when a run that was asked to stop is killed, on the monotonic clock."""

    process: ProcessIdentity
    output_bytes: int = 0
    exit_code: int | None = None
    has_ended: bool = False
    kill_at: float | None = None


class Keeper:
    """See the module. `tick` does what there is to do."""

    def __init__(
        self,
        root: Path,
        store: Store,
        processes: RunProcesses,
        *,
        total: Callable[[float], Need],
        environment: Callable[[], dict[str, str]],
        say: Callable[[str], None],
        grace_s: float,
    ) -> None:
        """total: all there is for runs, from the memory in MB that those under way were given. environment: variables
        for the processes of runs. say: told each event in a sentence. grace_s: from a stop to a kill."""
        self._root, self._store, self._processes = root, store, processes
        self._total, self._environment, self._say, self._grace_s = total, environment, say, grace_s
        self._watched: dict[str, _Watched] = {}
        self._in_vain: dict[str, int] = {}  # starts in a row whose process ended before it began
        self._next_look = 0.0
        self.to_close = False

    def take_over(self) -> None:
        """Find what became of the runs of earlier services. Raises StoreUnavailable; it may be called again then."""
        for run in self._store.active():
            folder = self._root / run.id
            state = _state(folder)
            writer = state.writer if state is not None and state.status == "running" else None
            if writer is not None and is_alive(writer) is not False:
                self._adopt(run, writer)  # also one that a person went on with by hand
            elif run.status == "running" and run.process is not None and is_alive(run.process) is not False:
                self._adopt(run, run.process)
            elif run.status == "running":
                self._watched[run.id] = _Watched(run.process or identity_of(os.getpid()), has_ended=True)
            else:
                with suppress(UserError):  # it is made before the start at the latest
                    self.make_folder(run)

    def _adopt(self, run: QueuedRun, process: ProcessIdentity) -> None:
        if run.status != "running" or run.process != process:
            self._store.change(run.id, status="running", process=process)
        self._watched[run.id] = _Watched(process, output_bytes=_size(self._root / run.id / OUTPUT_FILE))
        self._say(f"{run.id} went on by itself, as process {process.pid}, and is watched again.")
        if run.stop_asked:
            self._stop(run.id)

    def make_folder(self, run: QueuedRun) -> None:
        """Make the folder of a queued run, with its settings, so that everybody sees it wait. Raises UserError."""
        folder = self._root / run.id
        record_queued(folder)
        if not (folder / SETTINGS_FILE).exists():
            write_yaml(folder / SETTINGS_FILE, run.settings)

    def tick(self) -> bool:
        """Do what there is to do; whether anything changed. Raises UserError where the disk or the queue refuses."""
        for pid, code in self._processes.ended().items():
            for watched in self._watched.values():
                if watched.process.pid == pid and not watched.has_ended:
                    watched.exit_code, watched.has_ended = code, True
        self._look()
        changed = False
        for id in [id for id, watched in self._watched.items() if watched.has_ended]:
            self._note_end(id)
            changed = True
        return self._start_what_fits() or changed

    def _look(self) -> None:
        """Notice the end of processes that are nobody's children here, and kill what would not stop."""
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + _LOOK_S
        for id, watched in self._watched.items():
            if watched.has_ended:
                continue
            watched.has_ended = is_alive(watched.process) is False
            if not watched.has_ended and watched.kill_at is not None and now >= watched.kill_at:
                self._say(f"{id} did not stop within {self._grace_s:g} s, and is killed.")
                _kill_group(watched.process)
                watched.kill_at = now + self._grace_s

    # Starting

    def _start_what_fits(self) -> bool:
        if self.to_close:
            return False
        active = self._store.active()
        queued = [run for run in active if run.status == "queued"]
        if not queued or not self._processes.is_ready():
            return False
        running = [_waiting(run) for run in active if run.status == "running"]
        total = self._total(sum(each.need.memory_mb for each in running))
        by_id = {run.id: run for run in queued}
        chosen = to_start([_waiting(run) for run in queued], running, total)
        for id in chosen:
            self._start(by_id[id])
        return bool(chosen)

    def _start(self, run: QueuedRun) -> None:
        folder = self._root / run.id
        try:
            if (state := _state(folder)) is None or state.status != "queued":
                self.make_folder(run)
        except UserError as error:
            if _may_pass(error):
                raise
            self._end(run.id, "failed", str(error))
            return
        output_bytes = _size(folder / OUTPUT_FILE)
        pid = self._processes.start(
            RunOrder(
                folder=str(folder),
                folder_of_work=run.folder_of_work,
                arguments=_arguments(run, folder),
                environment=self._environment(),
            )
        )
        try:
            process = identity_of(pid)
            self._store.change(run.id, status="running", process=process, starts=run.starts + 1)
        except BaseException:
            self._processes.drop(pid)
            raise
        self._watched[run.id] = _Watched(process, output_bytes=output_bytes)
        self._processes.go(pid)
        self._say(f"{run.id} starts, as process {pid}.")

    # Ending

    def _note_end(self, id: str) -> None:
        watched, run = self._watched[id], self._store.get(id)
        assert run is not None
        folder = self._root / id
        status, reason = self._outcome(run, watched, _state(folder))
        if status == "queued" and (in_vain := self._in_vain.get(id, 0)) < _MOST_STARTS_IN_VAIN:
            self._store.change(id, status="queued", process=None)
            self._in_vain[id] = in_vain + 1
            del self._watched[id]
            return
        status = "failed" if status == "queued" else status
        can_restart = run.restarts_left > 0 and not run.stop_asked and watched.exit_code != _REFUSED
        with suppress(UserError):  # a reader sees that the process is gone, whatever the file says
            record_end_for(folder, status, reason)
        if status == "failed" and can_restart:
            left = run.restarts_left - 1
            self._store.change(id, status="queued", reason=reason, process=None, restarts_left=left)
            self._say(f"{id} failed: {reason}\nIt starts again from its checkpoint; {counted(left, 'restart')} left.")
            with suppress(UserError):  # it is made before the start at the latest
                self.make_folder(run)
        else:
            self._end(id, status, reason)
        self._in_vain.pop(id, None)
        del self._watched[id]

    def _end(self, id: str, status: RunStatus, reason: str | None) -> None:
        self._store.change(id, status=status, reason=reason, stop_asked=False, changes={})
        self._say(f"{id} {status}{f': {reason}' if reason else '.'}")

    def _outcome(self, run: QueuedRun, watched: _Watched, state: RunState | None) -> tuple[RunStatus, str | None]:
        """How a run ended, by what its folder tells and what the system tells of its process.

        "queued" is one that never began: its folder is untouched.
        """
        folder, code = self._root / run.id, watched.exit_code
        words = last_words(folder, since_byte=watched.output_bytes)
        if state is not None and state.ended is not None and state.status != "queued":
            reason = state.reason or (words if state.status == "failed" else None)
            return state.status, reason
        if run.stop_asked:
            if code == -signal.SIGKILL:
                return "stopped", "It did not stop when asked, and was killed; what its last checkpoint holds is whole."
            return "stopped", "A stop was requested."
        if state is not None and state.status == "queued" and (code is None or code < 0):
            return "queued", "Its process ended before it began."
        said = f"; it said last:\n{words}" if words else ", and said nothing."
        return "failed", f"Its process was {how_it_ended(code)}{said}" if code is None or code < 0 else (
            words or f"Its process {how_it_ended(code)}, and said nothing."
        )

    # Stopping

    def stop(self, run: QueuedRun) -> None:
        """Stop a run that waits or goes on; does nothing to others. Raises StoreUnavailable."""
        if run.status == "queued":
            self._store.change(run.id, status="stopped", reason="Stopped before it began.", changes={})
            with suppress(UserError):
                record_end_for(self._root / run.id, "stopped", "Stopped before it began.")
            self._say(f"{run.id} is taken out of the queue.")
        elif run.status == "running" and not run.stop_asked:
            self._store.change(run.id, stop_asked=True)
            self._stop(run.id)
            self._say(f"{run.id} was asked to stop; it saves first.")

    def _stop(self, id: str) -> None:
        watched = self._watched.get(id)
        if watched is not None and is_alive(watched.process):
            with suppress(ProcessLookupError):
                os.kill(watched.process.pid, signal.SIGTERM)
            watched.kill_at = time.monotonic() + self._grace_s

    def handles(self) -> list[Any]:
        """What becomes readable once there is something to do."""
        return self._processes.handles()


def _arguments(run: QueuedRun, folder: Path) -> list[str]:
    """What `ml-pipeline train` is called with: to go on from a checkpoint where there is one."""
    if (folder / LATEST_CHECKPOINT).exists():
        changes = [[flag_of(name), *written(value).split()] for name, value in run.changes.items()]
        return ["--resume", str(folder), *(word for words in changes for word in words)]
    return ["--config", str(folder / SETTINGS_FILE), "--checkpoint-dir", str(folder)]


def _waiting(run: QueuedRun) -> Waiting:
    return Waiting(run.id, (-run.priority, run.position), need_of(run.settings))


def _state(folder: Path) -> RunState | None:
    """What the folder tells; None also where it cannot be read."""
    try:
        return read_state(folder)
    except UserError:
        return None


def _may_pass(error: UserError) -> bool:
    """Whether what a folder was refused for concerns the disk, and not the run."""
    return isinstance(error.__cause__, OSError) and error.__cause__.errno in _DISK


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _kill_group(process: ProcessIdentity) -> None:
    if is_alive(process):
        with suppress(OSError):
            if hasattr(os, "killpg"):
                os.killpg(process.pid, signal.SIGKILL)
            else:
                os.kill(process.pid, signal.SIGTERM)

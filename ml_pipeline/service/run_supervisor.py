"""Supervises the runs of one root: starts queued runs, records ended ones, restarts, stops, and takes over.

Every action is repeated until the queue has recorded it: a locked queue or a full disk delays it, and nothing is lost.
For one thread at a time; never blocks.
"""

import errno
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.files import write_yaml
from ml_pipeline.config.flags import flag_of
from ml_pipeline.config.wording import counted, shown_path, written
from ml_pipeline.jobs.budget import Waiting, decide, need_of
from ml_pipeline.jobs.exit_reason import last_words
from ml_pipeline.runs.folder import LATEST_CHECKPOINT, OUTPUT_FILE, SETTINGS_FILE
from ml_pipeline.runs.folder_claim import record_end_for, record_queued, record_waiting
from ml_pipeline.runs.state import ENDED, Status, last_sign_of_life, readable_state
from ml_pipeline.runtime.process_identity import ProcessIdentity, identity_of, is_alive
from ml_pipeline.service.loop import EventLog
from ml_pipeline.service.processes import RunProcess, RunProcesses, ask_to_stop, outcome
from ml_pipeline.service.resources import Resources
from ml_pipeline.service.run_process import RunOrder
from ml_pipeline.service.store import QueuedRun, Store

_LOOK_S = 0.5  # seconds between two checks for processes that an earlier service started
STOPPED_EARLY = "Stopped before it began."
_REFUSED = 2  # exit code for invalid settings: a restart would fail in the same way
_MOST_STARTS_IN_VAIN = 5
_MOST_TOLD = 50  # queued runs whose state.json shows the current reason for waiting
_MOST_NAMED = 8
_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS}


class RunSupervisor:
    """See the module. `tick` does all pending work."""

    def __init__(
        self,
        root: Path,
        store: Store,
        processes: RunProcesses,
        resources: Resources,
        *,
        log: EventLog,
        grace_s: float,
    ) -> None:
        """grace_s: seconds from a stop to a kill."""
        self._root, self._store, self._processes, self._resources = root, store, processes, resources
        self._log, self._grace_s = log, grace_s
        self._watched: dict[str, RunProcess] = {}
        self._unrecorded: dict[str, tuple[Status, str | None]] = {}  # ends in the queue, but not yet in the run folder
        self._in_vain: dict[str, int] = {}  # consecutive starts whose process ended before training began
        self._waits: dict[str, str] = {}  # by id, why a queued run waits, as in its state.json
        self._next_look = 0.0
        self.to_close = False

    def take_over(self) -> None:
        """Take over the runs of earlier services. Raises StoreUnavailable; it may be called again then."""
        for run in self._store.runs():
            if run.status in ENDED:
                state = readable_state(self._root / run.id)
                if state is not None and state.status == "queued":  # the service ended between two writes
                    self._unrecorded[run.id] = run.status, run.reason
                continue
            folder = self._root / run.id
            state = readable_state(folder)
            writer = state.writer if state is not None and state.status == "running" else None
            if writer is not None and is_alive(writer) is not False:
                self._adopt(run, writer)  # also a run that a user resumed on the command line
            elif run.status == "running" and run.process is not None and is_alive(run.process) is not False:
                self._adopt(run, run.process)
            elif run.status == "running":
                self._watched[run.id] = RunProcess(run.process or identity_of(os.getpid()), has_ended=True)
            else:
                with suppress(UserError):  # if it fails, the folder is made when the run starts
                    self.make_folder(run)
        for sentence in lost_runs(self._root, self._store):
            self._log.tell(sentence)

    def _adopt(self, run: QueuedRun, process: ProcessIdentity) -> None:
        if run.status != "running" or run.process != process:
            self._store.change(run.id, status="running", process=process)
        self._watched[run.id] = RunProcess(process, output_bytes=_size(self._root / run.id / OUTPUT_FILE))
        self._log.tell(f"{run.id} continued without the service, as process {process.pid}, and is watched again.")
        if run.stop_asked:
            self._signal_stop(run.id, again=run.stop_sent)

    def make_folder(self, run: QueuedRun) -> None:
        """Create the folder of a queued run, with its settings, so that readers see the run. Raises UserError."""
        folder = self._root / run.id
        self._store.require_there()
        record_queued(folder)
        self._waits.pop(run.id, None)
        if not (folder / SETTINGS_FILE).exists():
            write_yaml(folder / SETTINGS_FILE, run.settings)

    def tick(self) -> bool:
        """Do all pending work; return True if anything changed. Raises UserError if the disk or the queue fails."""
        for pid, code in self._processes.ended().items():
            for watched in self._watched.values():
                if watched.process.pid == pid and not watched.has_ended:
                    watched.exit_code, watched.has_ended = code, True
        self._look()
        self._record_ends()
        changed = False
        for id in [id for id, watched in self._watched.items() if watched.has_ended]:
            self._note_end(id)
            changed = True
        return self._start_what_fits() or changed

    def _look(self) -> None:
        """Check processes that are not our children for their end, and kill those that did not stop in time."""
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + _LOOK_S
        for id, watched in self._watched.items():
            if watched.look(grace_s=self._grace_s):
                self._log.tell(f"{id} did not stop within {self._grace_s:g} s and is killed.")

    def _record_ends(self) -> None:
        """Write ends into run folders that could not be written before, unless the run was queued again."""
        for id, (status, reason) in [*self._unrecorded.items()]:
            with suppress(UserError):
                if (run := self._store.get(id)) is not None and run.status in ENDED:
                    record_end_for(self._root / id, status, reason)
                del self._unrecorded[id]

    # Starting

    def _start_what_fits(self) -> bool:
        if self.to_close:
            return False
        active = self._store.active()
        queued = [run for run in active if run.status == "queued"]
        if not queued or not self._processes.is_ready():
            return False
        running = [_waiting(run) for run in active if run.status == "running"]
        total = self._resources.total(sum(each.need.memory_mb for each in running))
        by_id = {run.id: run for run in queued}
        decided = decide([_waiting(run) for run in queued], running, total)
        chosen = [id for id, reason in decided.items() if reason is None]
        for id in chosen:
            self._start(by_id[id])
        self._tell_waiting({id: reason for id, reason in decided.items() if reason is not None})
        return bool(chosen)

    def _tell_waiting(self, reasons: Mapping[str, str]) -> None:
        """Write into the folders of the next runs why they wait, if the reason changed; log it once per run."""
        told = {id: reason for id, reason in self._waits.items() if id in reasons}
        self._waits = told
        for id, reason in islice(reasons.items(), _MOST_TOLD):
            if told.get(id) == reason:
                continue
            with suppress(UserError):  # the reason is information for readers only
                if record_waiting(self._root / id, reason) and id not in told:
                    self._log.tell(f"{id} {reason[0].lower()}{reason[1:]}")
            told[id] = reason

    def _start(self, run: QueuedRun) -> None:
        folder = self._root / run.id
        try:
            if (state := readable_state(folder)) is None or state.status != "queued":
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
                environment=self._resources.environment(),
            )
        )
        try:
            process = identity_of(pid)
            self._store.change(run.id, status="running", process=process, starts=run.starts + 1)
        except BaseException:
            self._processes.drop(pid)
            raise
        self._watched[run.id] = RunProcess(process, output_bytes=output_bytes)
        self._processes.go(pid)
        self._log.tell(f"{run.id} starts, as process {pid}.")

    # Ending

    def _note_end(self, id: str) -> None:
        watched, run = self._watched[id], self._store.get(id)
        assert run is not None
        folder = self._root / id
        status, reason = outcome(
            state=readable_state(folder),
            exit_code=watched.exit_code,
            when=f"at {datetime.now(UTC):%H:%M:%S} UTC" if watched.exit_code is not None else last_sign_of_life(folder),
            stop_asked=run.stop_asked,
            words=last_words(folder / OUTPUT_FILE, since_byte=watched.output_bytes),
        )
        if status == "queued" and (in_vain := self._in_vain.get(id, 0)) < _MOST_STARTS_IN_VAIN:
            self._store.change(id, status="queued", process=None)
            self._in_vain[id] = in_vain + 1
            del self._watched[id]
            return
        status = "failed" if status == "queued" else status
        can_restart = run.restarts_left > 0 and not run.stop_asked and watched.exit_code != _REFUSED
        self._record_end(id, status, reason)
        if status == "failed" and can_restart:
            left = run.restarts_left - 1
            self._store.change(id, status="queued", reason=reason, process=None, restarts_left=left)
            self._log.tell(f"{id} failed: {reason}\nIt restarts from its checkpoint; {counted(left, 'restart')} left.")
            with suppress(UserError):  # if it fails, the folder is made when the run starts
                self.make_folder(run)
        else:
            self._end(id, status, reason)
        self._in_vain.pop(id, None)
        del self._watched[id]

    def _record_end(self, id: str, status: Status, reason: str | None) -> None:
        """Record the end of a run in its folder if the run could not; if the disk fails, try again later."""
        try:
            record_end_for(self._root / id, status, reason)
        except UserError:
            self._unrecorded[id] = status, reason

    def _end(self, id: str, status: Status, reason: str | None) -> None:
        self._store.change(id, status=status, reason=reason, stop_asked=False, stop_sent=False, changes={})
        self._log.tell(f"{id} {status}{f': {reason}' if reason else '.'}")

    # Stopping

    def stop(self, run: QueuedRun) -> None:
        """Stop a queued or running run; does nothing to others. Raises StoreUnavailable."""
        if run.status == "queued":
            self._store.change(run.id, status="stopped", reason=STOPPED_EARLY, changes={})
            self._record_end(run.id, "stopped", STOPPED_EARLY)
            self._log.tell(f"{run.id} is removed from the queue.")
        elif run.status == "running" and not run.stop_asked:
            self._store.change(run.id, stop_asked=True)
            self._signal_stop(run.id)
            self._log.tell(f"{run.id} was asked to stop; it saves first.")

    def _signal_stop(self, id: str, *, again: bool = False) -> None:
        """again: the signal was sent before; a second one would end the run at once, without saving."""
        watched = self._watched[id]
        watched.kill_after(self._grace_s)
        if not again:
            ask_to_stop(self._root / id, watched.process)
            self._store.change(id, stop_sent=True)


def lost_runs(root: Path, store: Store) -> list[str]:
    """Sentences about runs that the queue has lost or cannot read, with the remedy.

    Such runs are not queued again automatically: their folder contains neither the working directory, from which the
    user's modules are imported, nor the changed settings of a resumed run. Raises StoreUnavailable.
    """
    known = {run.id for run in store.runs()}
    broken = store.unreadable
    sentences = [
        f"The queue's entry of run {id} is unusable ({why}) and is ignored; other runs are not affected. Submit the "
        "run again under another id."
        for id, why in broken.items()
    ]
    others = [folder for folder in sorted(_folders(root)) if folder.name not in known | {*broken}]
    waiting = [
        folder.name for folder in others if (state := readable_state(folder)) is not None and state.status == "queued"
    ]
    if waiting:
        named = " ".join(waiting[:_MOST_NAMED])
        more = f" and {counted(len(waiting) - _MOST_NAMED, 'other')}" if len(waiting) > _MOST_NAMED else ""
        sentences.append(
            f"{counted(len(waiting), 'run')} in {shown_path(root)} {'waits' if len(waiting) == 1 else 'wait'}, but the "
            f"queue was deleted: {named}{more}. `ml-pipeline resume RUN` queues one again, to run in the directory "
            "where this service was started."
        )
    return sentences


def _folders(root: Path) -> list[Path]:
    try:
        return [each for each in root.iterdir() if each.is_dir() and not each.name.startswith(".")]
    except OSError:
        return []


def _arguments(run: QueuedRun, folder: Path) -> list[str]:
    """Arguments of `ml-pipeline train`: resume if there is a checkpoint, else start."""
    if (folder / LATEST_CHECKPOINT).exists():
        changes = [[flag_of(name), *written(value).split()] for name, value in run.changes.items()]
        return ["--resume", str(folder), *(word for words in changes for word in words)]
    return ["--config", str(folder / SETTINGS_FILE), "--checkpoint-dir", str(folder)]


def _waiting(run: QueuedRun) -> Waiting:
    return Waiting(run.id, (-run.priority, run.position), need_of(run.settings))


def _may_pass(error: UserError) -> bool:
    """True if making the folder failed because of the disk, and not because of the run."""
    return isinstance(error.__cause__, OSError) and error.__cause__.errno in _DISK


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0

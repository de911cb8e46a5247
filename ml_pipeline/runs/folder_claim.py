"""A run folder has one writer: `FolderClaim` makes this process the writer, or raises.

The `record_*` functions record a queued or starting run, and an end that its writer cannot record.
"""

import contextlib
from dataclasses import replace
from pathlib import Path

from ml_pipeline.config.errors import UserError
from ml_pipeline.runs.folder import refuse_links
from ml_pipeline.runs.ranks.rank_info import launcher_of_this_rank
from ml_pipeline.runs.state import (
    LOCK_FILE,
    STATE_FILE,
    RunState,
    Status,
    changing_state,
    state_text,
    stored_state,
    utc_now,
    write_state,
    write_state_text,
)
from ml_pipeline.runtime.process_identity import ProcessIdentity, is_alive, this_process

_claimed: set[Path] = set()  # run folders that this process writes


class FolderInUse(UserError):
    """Another run writes this folder, or may do so on another machine."""


def check_not_written(folder: Path) -> None:
    """Raise FolderInUse, naming the writer, if a process writes or may write this run folder."""
    state = stored_state(folder)
    if state is None or state.status != "running":
        return
    if state.writer == _this_writer() and folder.resolve() not in _claimed:
        return  # an earlier run of this process or its ranks that could not record its end
    alive = is_alive(state.writer)
    who = f"process {state.writer.pid} on {state.writer.host}, since {state.began}"
    if alive is None:
        raise FolderInUse(
            f"{folder} is being written by {who}, as far as this machine can tell; if that process is gone, delete "
            f"{folder / STATE_FILE} and try again."
        )
    if alive:
        raise FolderInUse(f"{folder} is being written by {who}; wait until it ends, stop it, or choose another folder.")


class FolderClaim:
    """A run folder, created if missing, while this process is its only writer.

    Finish with `end`, which records how the run ended, or `abandon`, which leaves no trace.
    """

    def __init__(self, folder: Path, *, made: bool = False) -> None:
        """made: whether the folder was just made for this run.

        Raises FolderInUse if another run is writing to the folder, UserError if it cannot be created or written to.
        """
        self.folder = folder
        self._state = RunState(status="running", writer=_this_writer(), began=utc_now())
        made_here = [each for each in (folder, *folder.parents) if not each.is_dir()]
        if made and not made_here:
            made_here = [folder]
        with contextlib.ExitStack() as undo:
            for each in reversed(made_here):
                undo.callback(_remove_if_empty, each)
            if made_here:
                undo.callback(_remove, folder / LOCK_FILE)  # if the claim fails
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise UserError(f"The folder {folder} cannot be created: {error.strerror}; choose another.") from error
            refuse_links(folder)
            with changing_state(folder):
                check_not_written(folder)
                undo.callback(self._restore, state_text(folder))
                write_state(folder, self._state)
                _claimed.add(folder.resolve())
            self._undo = undo.pop_all()

    def end(
        self, status: Status, reason: str | None, *, global_step: int, iterations: int, best_score: float | None
    ) -> None:
        """Record how the run ended, unless its state was deleted and another run took the folder over.

        Raises UserError if the file cannot be written.
        """
        ended = replace(
            self._state,
            status=status,
            reason=reason,
            ended=utc_now(),
            global_step=global_step,
            iterations=iterations,
            best_score=best_score,
        )
        with changing_state(self.folder):
            if stored_state(self.folder) == self._state:
                write_state(self.folder, ended)

    def release(self) -> None:
        """Let other runs of this process claim the folder, even if the end was not recorded. May be repeated."""
        _claimed.discard(self.folder.resolve())

    def abandon(self) -> None:
        """Restore the folder as it was."""
        self._undo.close()

    def _restore(self, before: str | None) -> None:
        """Restore the earlier state.json, if the current one is still this claim's."""
        self.release()
        with contextlib.suppress(UserError, OSError), changing_state(self.folder):
            if stored_state(self.folder) == self._state:
                if before is None:
                    (self.folder / STATE_FILE).unlink()
                else:
                    write_state_text(self.folder, before)


def _this_writer() -> ProcessIdentity:
    """This process or, for ranks, their launcher on this machine, which forwards signals and outlives a lost rank."""
    return launcher_of_this_rank() or this_process()


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()


def _remove_if_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()


def record_queued(folder: Path) -> None:
    """Create the folder if missing, and record that a run is queued in it; earlier figures stay.

    The parent folder must exist: a deleted root is not recreated.
    Raises FolderInUse if a run is writing to the folder, UserError if the folder cannot be created or written to.
    """
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise UserError(f"The folder {folder} cannot be created: {error.strerror}; choose another.") from error
    _record_unclaimed(folder, "queued")


def record_waiting(folder: Path, reason: str) -> bool:
    """Record why a queued run waits; returns whether it is queued. Raises UserError if the file cannot be written."""
    with changing_state(folder):
        state = stored_state(folder)
        if state is None or state.status != "queued":
            return False
        write_state(folder, replace(state, reason=reason))
        return True


def record_starting(folder: Path) -> None:
    """Record that this process is about to claim the folder of a queued run, so that its end is known if it is killed.

    Raises FolderInUse if another run writes the folder, UserError if it cannot be written.
    """
    _record_unclaimed(folder, "running")


def record_end_for(folder: Path, status: Status, reason: str | None) -> bool:
    """Record the end of a run that cannot do so itself: it is queued, its process is gone, or it is this process.

    Returns whether it did: False if another process still runs or an end is recorded. Raises UserError if the file
    cannot be written.
    """
    with changing_state(folder):
        state = stored_state(folder)
        if state is None or state.status not in {"queued", "running"}:
            return False
        if state.status == "running" and state.writer != this_process() and is_alive(state.writer) is not False:
            return False
        write_state(folder, replace(state, status=status, reason=reason, ended=utc_now()))
        return True


def record_end_of_lost(folder: Path, reason: str) -> bool:
    """Record a run as failed because the caller presumes its process lost, such as on a silent other machine.

    Returns whether it did: False if the process is known to live or the run has ended. Raises UserError if the file
    cannot be written.
    """
    with changing_state(folder):
        state = stored_state(folder)
        if state is None or state.status != "running" or is_alive(state.writer):
            return False
        write_state(folder, replace(state, status="failed", reason=reason, ended=utc_now()))
        return True


def _record_unclaimed(folder: Path, status: Status) -> None:
    with changing_state(folder):
        check_not_written(folder)
        earlier = stored_state(folder)
        state = RunState(status=status, writer=this_process(), began=utc_now())
        if earlier is not None:
            state = replace(earlier, status=status, reason=None, writer=state.writer, began=state.began, ended=None)
        write_state(folder, state)

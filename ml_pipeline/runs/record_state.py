"""What others than its writer record in a run's state: that it waits, that it starts, and an end that it cannot."""

from dataclasses import replace
from pathlib import Path

from ml_pipeline.config.errors import UserError
from ml_pipeline.runs.folder_claim import check_not_written
from ml_pipeline.runs.state import RunState, Status, changing_state, stored_state, utc_now, write_state
from ml_pipeline.runtime.process_identity import is_alive, this_process


def record_queued(folder: Path) -> None:
    """Make the folder where it is missing, and say that a run waits in it for its start; earlier figures stay.

    The folder that it is in must be there: a root that was deleted does not come back by itself.
    Raises FolderInUse where a run writes the folder, and UserError where it cannot be made or written.
    """
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise UserError(f"The folder {folder} cannot be made: {error.strerror}; choose another.") from error
    _record_unclaimed(folder, "queued")


def record_waiting(folder: Path, reason: str) -> bool:
    """Say why a queued run waits; returns whether it is queued. Raises UserError where the file cannot be written."""
    with changing_state(folder):
        state = stored_state(folder)
        if state is None or state.status != "queued":
            return False
        write_state(folder, replace(state, reason=reason))
        return True


def record_starting(folder: Path) -> None:
    """Say that this process is about to claim the folder of a queued run, so that its end is known if it is killed.

    Raises FolderInUse where another run writes the folder, and UserError where it cannot be written.
    """
    _record_unclaimed(folder, "running")


def record_end_for(folder: Path, status: Status, reason: str | None) -> bool:
    """Record the end of a run that cannot do so itself: it is queued, its process is gone, or it is this process.

    Returns whether it did, which it does not where a process goes on or an end is recorded. Raises UserError where the
    file cannot be written.
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
    """Record that a run failed whose process the caller takes for gone, although that cannot be known from here.

    As of another machine that gives no sign of life. Returns whether it did, which it does not where the process is
    known to live or the run has ended. Raises UserError where the file cannot be written.
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

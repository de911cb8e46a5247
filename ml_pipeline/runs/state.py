"""state.json: who writes a run folder, since when, and how the run ended.

A folder has one writer. `FolderClaim` makes this process the writer or refuses; `read_state` is for everybody else.
"""

import contextlib
import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, get_args

from ml_pipeline.config.errors import UserError
from ml_pipeline.runs.folder import refuse_links
from ml_pipeline.runtime.file_lock import alone
from ml_pipeline.runtime.process_identity import ProcessIdentity, identity_from, is_alive, this_process
from ml_pipeline.runtime.regular_file import open_regular
from ml_pipeline.runtime.whole_file import written_whole

STATE_FILE = "state.json"
_LOCK_FILE = "state.json.lock"
_MOST_BYTES = 1_000_000  # ours take 500
_LARGEST_COUNT = 2**63

Status = Literal["queued", "running", "finished", "stopped", "failed"]
ENDED: frozenset[str] = frozenset({"finished", "stopped", "failed"})


def in_words(status: Status) -> str:
    """What a run does, to go on with a sentence.

    >>> in_words("finished")
    'it has finished'
    """
    return {
        "queued": "it waits in the queue",
        "running": "it is running",
        "finished": "it has finished",
        "stopped": "it was stopped",
        "failed": "it failed",
    }[status]


@dataclass(frozen=True, kw_only=True)
class RunState:
    """What state.json tells. global_step, iterations and best_score are known once the run has ended.

    A queued run waits for a service to start it: `writer` is that service then, and whoever claims the folder takes it
    over.
    """

    status: Status
    reason: str | None = None
    """Why a run stopped or failed, finished early, or waits."""
    writer: ProcessIdentity
    began: str
    """When this stretch of the run began or was queued, in UTC (ISO 8601)."""
    ended: str | None = None
    global_step: int | None = None
    iterations: int | None = None
    best_score: float | None = None


class FolderInUse(UserError):
    """Another run writes this folder, or may do so on a machine that cannot be asked."""


def read_state(folder: Path) -> RunState | None:
    """The state of a run folder; None where it has no state.json, as folders of older versions.

    A run whose process was killed could not say so: it reads as failed, with the reason that its process is gone. One
    that another machine writes reads as running, and a queued one as queued even if its service is gone. Raises
    UserError where the file holds something else.
    """
    state = _stored(folder)
    if state is None or state.status != "running" or is_alive(state.writer) is not False:
        return state
    gone = f"Its process {state.writer.pid} on {state.writer.host} is gone: it was killed, or the machine went down."
    return replace(state, status="failed", reason=gone)


def check_not_written(folder: Path) -> None:
    """Raise FolderInUse, which names the writer, where a process writes this run folder or may do so."""
    state = _stored(folder)
    if state is None or state.status != "running":
        return
    if state.writer == this_process() and folder.resolve() not in _claimed:
        return  # a run of this process that could not record its end
    alive = is_alive(state.writer)
    who = f"process {state.writer.pid} on {state.writer.host}, since {state.began}"
    if alive is None:
        raise FolderInUse(
            f"{folder} is being written by {who}, as far as can be known from here; if that process is gone, delete "
            f"{folder / STATE_FILE} and try again."
        )
    if alive:
        raise FolderInUse(f"{folder} is being written by {who}; wait for its end, stop it, or name another folder.")


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
    with _alone(folder):
        state = _stored(folder)
        if state is None or state.status != "queued":
            return False
        _write(folder, _as_json(replace(state, reason=reason)))
        return True


def record_starting(folder: Path) -> None:
    """Say that this process is about to claim the folder of a queued run, so that its end is known if it is killed.

    Raises FolderInUse where another run writes the folder, and UserError where it cannot be written.
    """
    _record_unclaimed(folder, "running")


def _record_unclaimed(folder: Path, status: Status) -> None:
    with _alone(folder):
        check_not_written(folder)
        earlier = _stored(folder)
        state = RunState(status=status, writer=this_process(), began=_now())
        if earlier is not None:
            state = replace(earlier, status=status, reason=None, writer=state.writer, began=state.began, ended=None)
        _write(folder, _as_json(state))


def record_end_for(folder: Path, status: Status, reason: str | None) -> bool:
    """Record the end of a run that cannot do so itself: it is queued, its process is gone, or it is this process.

    Returns whether it did, which it does not where a process goes on or an end is recorded. Raises UserError where the
    file cannot be written.
    """
    with _alone(folder):
        state = _stored(folder)
        if state is None or state.status not in {"queued", "running"}:
            return False
        if state.status == "running" and state.writer != this_process() and is_alive(state.writer) is not False:
            return False
        _write(folder, _as_json(replace(state, status=status, reason=reason, ended=_now())))
        return True


def record_end_of_lost(folder: Path, reason: str) -> bool:
    """Record that a run failed whose process the caller takes for gone, although that cannot be known from here.

    As of another machine that gives no sign of life. Returns whether it did, which it does not where the process is
    known to live or the run has ended. Raises UserError where the file cannot be written.
    """
    with _alone(folder):
        state = _stored(folder)
        if state is None or state.status != "running" or is_alive(state.writer):
            return False
        _write(folder, _as_json(replace(state, status="failed", reason=reason, ended=_now())))
        return True


_claimed: set[Path] = set()  # the folders that runs of this process write


class FolderClaim:
    """A run folder while this process is its only writer; made if it is missing.

    Ended by `end`, which records how the run ended, or by `abandon`, which leaves no trace.
    """

    def __init__(self, folder: Path, *, made: bool = False) -> None:
        """made: whether the folder was just made for this run.

        Raises FolderInUse where another run writes the folder, and UserError where it cannot be made or written.
        """
        self.folder = folder
        self._state = RunState(status="running", writer=this_process(), began=_now())
        made_here = [each for each in (folder, *folder.parents) if not each.is_dir()]
        if made and not made_here:
            made_here = [folder]
        with contextlib.ExitStack() as undo:
            for each in reversed(made_here):
                undo.callback(_remove_if_empty, each)
            if made_here:
                undo.callback(_remove, folder / _LOCK_FILE)  # where the claim broke off
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise UserError(f"The folder {folder} cannot be made: {error.strerror}; choose another.") from error
            refuse_links(folder)
            with _alone(folder):
                check_not_written(folder)
                undo.callback(self._restore, _text_of(folder / STATE_FILE))
                _write(folder, _as_json(self._state))
                _claimed.add(folder.resolve())
            self._undo = undo.pop_all()

    def end(
        self, status: Status, reason: str | None, *, global_step: int, iterations: int, best_score: float | None
    ) -> None:
        """Record how the run ended, unless somebody took the folder over by deleting its state.

        Raises UserError where the file cannot be written.
        """
        ended = replace(
            self._state,
            status=status,
            reason=reason,
            ended=_now(),
            global_step=global_step,
            iterations=iterations,
            best_score=best_score,
        )
        with _alone(self.folder):
            if _stored(self.folder) == self._state:
                _write(self.folder, _as_json(ended))

    def release(self) -> None:
        """Let other runs of this process claim the folder, even if its end could not be recorded. May be repeated."""
        _claimed.discard(self.folder.resolve())

    def abandon(self) -> None:
        """Leave the folder as it was found."""
        self._undo.close()

    def _restore(self, before: str | None) -> None:
        """Put back what state.json held before, if it still is this claim's."""
        self.release()
        with contextlib.suppress(UserError, OSError), _alone(self.folder):
            if _stored(self.folder) == self._state:
                if before is None:
                    (self.folder / STATE_FILE).unlink()
                else:
                    _write(self.folder, before)


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()


def _remove_if_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Within the block no other process or thread looks at a folder's state to change it; the system ends it with us.

    Raises UserError where the folder cannot be written.
    """
    with contextlib.ExitStack() as lock:
        try:
            lock.enter_context(alone(folder / _LOCK_FILE))
        except OSError as error:
            raise UserError(f"The folder {folder} cannot be written: {error.strerror}; choose another.") from error
        yield


def _stored(folder: Path) -> RunState | None:
    """What state.json says, whether or not it still holds."""
    path = folder / STATE_FILE
    text = _text_of(path)
    if text is None:
        return None
    try:
        values = json.loads(text)
        writer = identity_from(*(values.pop(name) for name in ProcessIdentity._fields))
        state = RunState(**values, writer=writer)
        _check_types(state)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise UserError(f"{path} is not the state of a run; delete it if no process writes this folder.") from error
    return state


def _check_types(state: RunState) -> None:
    """Raises ValueError, TypeError or OverflowError where a value of the file is not what its name says."""
    texts, counts = (state.reason, state.ended), (state.global_step, state.iterations)
    good = (
        state.status in get_args(Status)
        and isinstance(state.began, str)
        and all(each is None or isinstance(each, str) for each in texts)
        and all(each is None or (_is_number(each, int) and 0 <= each < _LARGEST_COUNT) for each in counts)
        and (state.best_score is None or _is_number(state.best_score, int, float))
    )
    if not good:
        raise ValueError("a value of another type")
    float(state.best_score or 0)  # a whole number may be too large for one


def _is_number(value: object, *kinds: type) -> bool:
    return isinstance(value, kinds) and not isinstance(value, bool)


def _as_json(state: RunState) -> str:
    values: dict[str, Any] = {**asdict(state), **state.writer._asdict()}
    del values["writer"]
    if state.best_score is not None and not math.isfinite(state.best_score):
        values["best_score"] = None
    return json.dumps(values, indent=2, allow_nan=False) + "\n"


def _text_of(path: Path) -> str | None:
    try:
        with open_regular(path) as file:
            return file.read(_MOST_BYTES).decode(errors="replace")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from error


def _write(folder: Path, text: str) -> None:
    try:
        with written_whole(folder / STATE_FILE, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise UserError(f"{folder / STATE_FILE} cannot be written: {error.strerror}; choose another folder.") from error


def _now() -> str:
    return datetime.now(UTC).isoformat()

"""state.json: which process writes a run folder, since when, and how the run ended.

`FolderClaim` makes this process the writer; any process may call `read_state`.
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
from ml_pipeline.runs.folder import LATEST_CHECKPOINT, OUTPUT_FILE
from ml_pipeline.runtime.files import alone, open_regular, written_whole
from ml_pipeline.runtime.process_identity import ProcessIdentity, identity_from, is_alive

STATE_FILE = "state.json"
LOCK_FILE = "state.json.lock"
_WRITTEN_WHILE_IT_RUNS = (STATE_FILE, LATEST_CHECKPOINT, OUTPUT_FILE, "metrics.jsonl", "run.log")
_MOST_BYTES = 1_000_000  # ours take 500
_LARGEST_COUNT = 2**63

Status = Literal["queued", "running", "finished", "stopped", "failed"]
ENDED: frozenset[str] = frozenset({"finished", "stopped", "failed"})


def in_words(status: Status) -> str:
    """A run's status as a clause of a sentence.

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
    """The content of state.json. global_step, iterations and best_score are set once the run has ended.

    While a run is queued, `writer` is the service that will start it; the process that claims the folder replaces it.
    """

    status: Status
    reason: str | None = None
    """Why a run stopped or failed, finished early, or waits."""
    writer: ProcessIdentity
    began: str
    """When this part of the run began or was queued, in UTC (ISO 8601)."""
    ended: str | None = None
    global_step: int | None = None
    iterations: int | None = None
    best_score: float | None = None


def read_state(folder: Path) -> RunState | None:
    """The state of a run folder; None if it has no state.json, such as in older versions.

    A run whose process was killed reads as failed, with the last sign of life of its process. A run of another machine
    reads as running, and a queued one as queued, even if its service is gone. Raises UserError if the file is invalid.
    """
    state = stored_state(folder)
    if state is None or state.status != "running" or is_alive(state.writer) is not False:
        return state
    gone = (
        f"The process {state.writer.pid} on {state.writer.host} ended without a message ({last_sign_of_life(folder)}): "
        f"it was killed, or the machine went down."
    )
    return replace(state, status="failed", reason=gone)


def readable_state(folder: Path) -> RunState | None:
    """The state of a run folder; None also if it cannot be read."""
    with contextlib.suppress(UserError):
        return read_state(folder)
    return None


def last_sign_of_life(folder: Path) -> str:
    """When a run's process last wrote a file in its folder, in UTC, as part of a sentence."""
    written = []
    for name in _WRITTEN_WHILE_IT_RUNS:
        with contextlib.suppress(OSError):
            written.append((folder / name).lstat().st_mtime)
    if not written:
        return "no sign of life"
    return f"last sign of life at {datetime.fromtimestamp(max(written), UTC):%Y-%m-%d %H:%M:%S} UTC"


def stored_state(folder: Path) -> RunState | None:
    """The state in state.json, which may be out of date."""
    text = state_text(folder)
    if text is None:
        return None
    try:
        values = json.loads(text)
        writer = identity_from(*(values.pop(name) for name in ProcessIdentity._fields))
        state = RunState(**values, writer=writer)
        _check_types(state)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise UserError(
            f"{folder / STATE_FILE} is not the state of a run; delete it if no process writes this folder."
        ) from error
    return state


def write_state(folder: Path, state: RunState) -> None:
    """Replace state.json. Raises UserError if it cannot be written."""
    write_state_text(folder, _as_json(state))


@contextlib.contextmanager
def changing_state(folder: Path) -> Iterator[None]:
    """Lock a folder's state against changes by other processes and threads; freed if the process dies.

    Raises UserError if the folder cannot be written.
    """
    with contextlib.ExitStack() as lock:
        try:
            lock.enter_context(alone(folder / LOCK_FILE))
        except OSError as error:
            raise UserError(f"The folder {folder} cannot be written: {error.strerror}; choose another.") from error
        yield


def state_text(folder: Path) -> str | None:
    """The text of state.json; None without one. Raises UserError if it cannot be read."""
    path = folder / STATE_FILE
    try:
        with open_regular(path) as file:
            return file.read(_MOST_BYTES).decode(errors="replace")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from error


def write_state_text(folder: Path, text: str) -> None:
    """Write state.json atomically. Raises UserError if it cannot be written."""
    try:
        with written_whole(folder / STATE_FILE, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise UserError(f"{folder / STATE_FILE} cannot be written: {error.strerror}; choose another folder.") from error


def utc_now() -> str:
    """The current time in ISO 8601."""
    return datetime.now(UTC).isoformat()


def _check_types(state: RunState) -> None:
    """Raises ValueError, TypeError or OverflowError if a value has the wrong type or range."""
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
    float(state.best_score or 0)  # overflows if an int is too large


def _is_number(value: object, *kinds: type) -> bool:
    return isinstance(value, kinds) and not isinstance(value, bool)


def _as_json(state: RunState) -> str:
    values: dict[str, Any] = {**asdict(state), **state.writer._asdict()}
    del values["writer"]
    if state.best_score is not None and not math.isfinite(state.best_score):
        values["best_score"] = None
    return json.dumps(values, indent=2, allow_nan=False) + "\n"

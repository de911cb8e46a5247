"""What a run said: its log as it grows and, where it failed, how its process ended."""

import time
from collections.abc import Iterator
from pathlib import Path

from ml_pipeline.config.errors import UserError
from ml_pipeline.runs.state import read_state
from ml_pipeline.service.last_words import OUTPUT_FILE, tail

LOG_FILE = "run.log"
_LOOK_S = 0.2
_MOST_BYTES = 1 << 20


class RunOutput:
    """The log of the run in a folder: run.log, else output.log, which runs of a service have."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def texts(self, *, follow: bool) -> Iterator[str]:
        """The log in parts. follow: all that comes until the run has ended. At last, what a failed run left to say."""
        seen: dict[str, int] = {}
        while True:
            has_ended = not self._goes_on()
            yield from self._new(seen)
            if has_ended or not follow:
                break
            time.sleep(_LOOK_S)
        yield from self._end(logged=LOG_FILE in seen)

    def _goes_on(self) -> bool:
        try:
            state = read_state(self._folder)
        except UserError:
            return False
        return state is not None and state.status in {"queued", "running"}

    def _new(self, seen: dict[str, int]) -> Iterator[str]:
        """What came since the last call; seen: bytes by file."""
        name = LOG_FILE if (self._folder / LOG_FILE).exists() else OUTPUT_FILE
        while True:
            try:
                with (self._folder / name).open("rb") as file:
                    file.seek(seen.get(name, 0))
                    data = file.read(_MOST_BYTES)
            except OSError:
                return
            whole = data[: data.rfind(b"\n") + 1] if len(data) < _MOST_BYTES else data
            if not whole:
                return
            seen[name] = seen.get(name, 0) + len(whole)
            yield whole.decode(errors="replace")

    def _end(self, *, logged: bool) -> Iterator[str]:
        try:
            state = read_state(self._folder)
        except UserError:
            return
        if state is None or state.status != "failed":
            return
        if logged and (output := tail(self._folder / OUTPUT_FILE).strip()):
            yield f"\nThe end of {OUTPUT_FILE}:\n{output}\n"
        if state.reason:
            yield f"\nIt failed: {state.reason}\n"

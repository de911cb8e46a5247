"""A service's thread, which calls a function again and again, and its log, each line with its time in UTC."""

import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from ml_pipeline.config.errors import UserError
from ml_pipeline.runtime.files import only_regular

_PAUSE_S = 0.25
_AFTER_FAILURE_S = 1.0


LOG_FILE = "service.log"


class EventLog:
    """Adds events to a file, and passes their sentences on. For several threads; never raises."""

    def __init__(self, path: Path, say: Callable[[str], None] | None) -> None:
        self.path = path
        self._say = say

    def tell(self, sentence: str, *, details: str = "") -> None:
        """details: lines that only the file gets, such as a traceback."""
        lines = f"{sentence}\n{details}" if details else f"{sentence}\n"
        with suppress(OSError), open(self.path, "a", encoding="utf-8", opener=only_regular) as log:
            log.write(f"{datetime.now(UTC).isoformat(timespec='seconds')} {lines}")
        if self._say is not None:
            with suppress(Exception):  # whoever listens does not end the service
                self._say(sentence)


class Loop:
    """Calls `step` until it is closed. A failure of `step` is logged once for as long as it stays the same."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._failure: str | None = None
        self._closing = False
        self._woken = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, step: Callable[[], None]) -> None:
        """Begin."""
        self._thread = threading.Thread(target=self._run, args=(step,), name="training-service", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Call `step` now, or once more after the call that is under way."""
        self._woken.set()

    def close(self) -> None:
        """Wait for the call that is under way, and call no more. May be called twice, not from `step`."""
        self._closing = True
        self.wake()
        if self._thread is not None:
            self._thread.join()

    def _run(self, step: Callable[[], None]) -> None:
        while not self._closing:
            pause_s = _AFTER_FAILURE_S
            try:
                step()
                self._failure, pause_s = None, _PAUSE_S
            except UserError as error:  # the disk is full, the queue is locked: nothing is lost, and it is tried again
                self._note(str(error))
            except Exception as error:  # a mistake of ours
                sentence = f"The service failed, and tries again: {type(error).__name__}: {error}"
                self._note(sentence, details=traceback.format_exc())
            self._woken.wait(pause_s)
            self._woken.clear()

    def _note(self, sentence: str, *, details: str = "") -> None:
        if sentence != self._failure:
            self._failure = sentence
            self._log.tell(sentence, details=details)

"""The thread of a service, which calls one function repeatedly, and its log with times in UTC."""

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
    """Appends events to a file and passes their sentences on. Thread-safe; never raises."""

    def __init__(self, path: Path, say: Callable[[str], None] | None) -> None:
        self.path = path
        self._say = say

    def tell(self, sentence: str, *, details: str = "") -> None:
        """details: lines for the file only, such as a traceback."""
        lines = f"{sentence}\n{details}" if details else f"{sentence}\n"
        with suppress(OSError), open(self.path, "a", encoding="utf-8", opener=only_regular) as log:
            log.write(f"{datetime.now(UTC).isoformat(timespec='seconds')} {lines}")
        if self._say is not None:
            with suppress(Exception):  # an error of the listener must not end the service
                self._say(sentence)


class Loop:
    """Calls `step` until it is closed. Repeated failures of `step` with the same message are logged once."""

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
        """Call `step` now, or once more after the current call."""
        self._woken.set()

    def close(self) -> None:
        """Wait for the current call and stop. May be called twice, but not from `step`."""
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
            except UserError as error:  # the disk is full or the queue is locked: nothing is lost, so try again
                self._note(str(error))
            except Exception as error:  # a bug
                sentence = f"The service failed and tries again: {type(error).__name__}: {error}"
                self._note(sentence, details=traceback.format_exc())
            self._woken.wait(pause_s)
            self._woken.clear()

    def _note(self, sentence: str, *, details: str = "") -> None:
        if sentence != self._failure:
            self._failure = sentence
            self._log.tell(sentence, details=details)

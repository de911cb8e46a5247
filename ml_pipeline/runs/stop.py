"""A request to stop a run, made at any time by a signal handler or another thread."""

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ml_pipeline.runtime.files import read_regular, written_whole

STOP_NOTE = "stop.request"
ON_REQUEST = "Stopped on request."


def note_stop_request(folder: Path) -> None:
    """Leave a note in a run folder that the SIGTERM about to be sent is a requested stop.

    Without it the run records the signal as its reason.
    """
    with suppress(OSError):
        (folder / STOP_NOTE).touch()


def take_stop_note(folder: Path) -> bool:
    """Remove the note; return whether there was one."""
    try:
        (folder / STOP_NOTE).unlink()
    except OSError:
        return False
    return True


def ask_study_to_stop(folder: Path) -> None:
    """Leave a note for every `tune` process in a study's folder, here or on a machine that shares it.

    Raises OSError if it cannot be written.
    """
    with written_whole(folder / STOP_NOTE, "w", encoding="utf-8") as file:
        file.write(secrets.token_hex(16))


def study_note(folder: Path) -> bytes:
    """The content of a study's note, unique to each request; empty without a note."""
    try:
        return read_regular(folder / STOP_NOTE, most_bytes=100)
    except OSError:
        return b""


class StopRequest:
    """Stops the runs that hold it: once requested, they stop before their next step, and save.

    >>> stop = StopRequest()
    >>> stop.requested
    False
    >>> stop.request("the machine is wanted elsewhere")
    >>> stop.requested, stop.reason
    (True, 'the machine is wanted elsewhere')
    """

    def __init__(self) -> None:
        self.reason: str | None = None
        """Why, once requested; recorded in state.json."""
        self.signal: int | None = None
        """The number of the signal that requested it, or None."""
        self._listeners: list[Callable[[], None]] = []

    @property
    def requested(self) -> bool:
        return self.reason is not None

    def request(self, reason: str = "A stop was requested.", *, signal: int | None = None) -> None:
        """Make the request; the first reason stays. Takes no lock, so a signal handler may call it."""
        if self.reason is None:
            self.reason, self.signal = reason, signal
        for listener in tuple(self._listeners):
            listener()

    @contextmanager
    def told_to(self, listener: Callable[[], None]) -> Iterator[None]:
        """Within the block, a request calls `listener`; at once if already requested."""
        self._listeners.append(listener)
        try:
            if self.requested:
                listener()
            yield
        finally:
            self._listeners.remove(listener)

"""What a run tells besides figures: that it began, sentences for a reader, how it ended; and run.log with all this."""

import contextlib
import os
import re
import socket
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from io import FileIO
from pathlib import Path
from types import MappingProxyType
from typing import Literal, NamedTuple

from ml_pipeline.config.wording import counted
from ml_pipeline.runtime.files import only_regular


class RunStart(NamedTuple):
    """A run that is about to train.

    n_workers: 0 if the trainer's process steps the environments; start_method is None then. first_step: of a resumed
    run, the environment steps that were taken before; total_steps counts them too. n_envs_schedule: other numbers of
    environments that are planned, by global step; the totals take them into account. n_ranks: processes that share the
    environments, of which this is the first; n_workers are its own. one_env_steps: the environment steps of as many
    iterations with one environment; None if the length does not multiply with n_envs. unused_start_method: the start
    method that was set although no worker is started.
    """

    folder: Path
    n_envs: int
    n_workers: int
    start_method: str | None
    total_iterations: int
    total_steps: int
    first_step: int
    n_envs_schedule: Mapping[int, int] = MappingProxyType({})
    n_ranks: int = 1
    one_env_steps: int | None = None
    unused_start_method: str | None = None


class RunEnd(NamedTuple):
    """How a run ended. folder: also holds the report, where the run finished."""

    status: Literal["finished", "stopped", "failed"]
    reason: str | None
    """Why it stopped, failed, or finished before all iterations."""
    global_step: int
    best_score: float | None
    folder: Path


class RunListener:
    """Does nothing; override what you want to hear of. The thread that trains calls it, and its errors end the run."""

    def started(self, start: RunStart) -> None:
        """The run accepted its settings and its folder; training begins."""

    def say(self, sentence: str) -> None:
        """Something that a person who watches the run wants to read."""

    def trained(self) -> None:
        """Training is over and saved; if it finished, the report comes next."""


LOG_FILE = "run.log"
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # all but tab and line feed: a terminal would obey some


class RunLog:
    """Adds entries to a file: the time, a blank, the text. Further lines of a text are indented by two blanks.

    The file is made by the first entry, and a resumed run adds to it. What the disk does not take is dropped: a log
    does not end a run. Several threads may write.
    """

    def __init__(self, path: Path, *, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._path = path
        self._clock = clock
        self._lock = threading.Lock()
        self._file: FileIO | None = None  # kept open: it stays in its folder where that is moved or replaced

    def write(self, text: str) -> None:
        """Add one entry; it is on its way to the disk when this returns."""
        stamp = self._clock().strftime("%Y-%m-%dT%H:%M:%SZ")
        lines = _CONTROL.sub("\ufffd", text.replace("\r\n", "\n")).rstrip("\n").split("\n")
        entry = "\n  ".join([f"{stamp} {lines[0]}", *lines[1:]]) + "\n"
        with self._lock, contextlib.suppress(OSError):
            if self._file is None:
                self._file = self._open()
            self._file.write(entry.encode("utf-8", errors="replace"))

    def close(self) -> None:
        """May be called twice."""
        with self._lock, contextlib.suppress(OSError):
            if self._file is not None:
                self._file.close()

    def _open(self) -> FileIO:
        """The file, with the end of a line that a killed run or a full disk tore."""
        file = FileIO(self._path, "a+", opener=only_regular)
        if size := file.seek(0, os.SEEK_END):
            file.seek(size - 1)
            if file.read(1) != b"\n":
                file.write(b"\n")
        return file


class LoggedListener(RunListener):
    """Writes down what a listener is told, then tells it."""

    def __init__(self, listener: RunListener, log: RunLog) -> None:
        self._listener = listener
        self._log = log

    def started(self, start: RunStart) -> None:
        self._log.write(_opening(start))
        self._listener.started(start)

    def say(self, sentence: str) -> None:
        self._log.write(sentence)
        self._listener.say(sentence)

    def trained(self) -> None:
        self._listener.trained()


def closing_entry(end: RunEnd) -> str:
    """How a run ended, as run.log tells it.

    >>> closing_entry(RunEnd("finished", None, 5120, 500.0, Path("run")))
    'Finished at step 5,120, best score 500.'
    >>> closing_entry(RunEnd("failed", "Worker 1 was killed.", 64, None, Path("run")))
    'Failed at step 64: Worker 1 was killed.'
    """
    score = "" if end.best_score is None else f", best score {end.best_score:,.4g}"
    reason = "." if end.reason is None else f": {end.reason}"
    return f"{end.status.capitalize()} at step {end.global_step:,}{score}{reason}"


def _opening(start: RunStart) -> str:
    how = f"by {counted(start.n_workers, 'worker')} ({start.start_method})" if start.n_workers else "in this process"
    verb = "Resumed" if start.first_step else "Started"
    return (
        f"{verb} in process {os.getpid()} on {socket.gethostname()}: {counted(start.n_envs, 'environment')} {how}, "
        f"{counted(start.total_iterations, 'iteration')}, {start.total_steps:,} environment steps."
    )

"""Messages of a run other than metrics: its start, sentences for the user, and its end; and run.log, which has them."""

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

    n_workers: 0 if the trainer's process steps the environments; start_method is None then. first_step: environment
    steps before a resumed run continues; total_steps includes them. n_envs_schedule: planned numbers of environments by
    global step; the totals include them. n_ranks: number of ranks, of which this is the first; n_workers are its own.
    one_env_steps: environment steps of the same number of iterations with one environment; None if the length does not
    depend on n_envs. unused_start_method: the configured start method, if no worker is started.
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
    """How a run ended. folder: the run folder; if the run finished, it contains the report."""

    status: Literal["finished", "stopped", "failed"]
    reason: str | None
    """Why it stopped, failed, or finished before all iterations."""
    global_step: int
    best_score: float | None
    folder: Path


class RunListener:
    """Does nothing; override the methods you need. The training thread calls them, and their errors end the run."""

    def started(self, start: RunStart) -> None:
        """Called when settings and folder are valid, and training begins."""

    def say(self, sentence: str) -> None:
        """Called with a message for the user."""

    def trained(self) -> None:
        """Called when training is over and saved; if the run finished, its report is written next."""


LOG_FILE = "run.log"
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # all except tab and line feed: they may control a terminal


class RunLog:
    """Appends entries to a file: the time, a space, the text. Further lines of a text are indented by two spaces.

    The first entry creates the file; a resumed run appends to it. If the disk fails, entries are dropped, because a log
    must not end a run. Thread-safe.
    """

    def __init__(self, path: Path, *, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._path = path
        self._clock = clock
        self._lock = threading.Lock()
        self._file: FileIO | None = None  # kept open, so it stays in its folder if that is moved or replaced

    def write(self, text: str) -> None:
        """Append an entry; the operating system has it when this returns."""
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
        """Open the file, and complete its last line if a killed run or a full disk cut it off."""
        file = FileIO(self._path, "a+", opener=only_regular)
        if size := file.seek(0, os.SEEK_END):
            file.seek(size - 1)
            if file.read(1) != b"\n":
                file.write(b"\n")
        return file


class LoggedListener(RunListener):
    """Logs each message, then passes it on to a listener."""

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
    """The last entry of run.log: how the run ended.

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

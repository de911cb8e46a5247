"""The processes of runs: how the service starts, watches and kills them, and why they ended.

On Linux they are forked from a process that has already imported everything; elsewhere each is a new interpreter. A
process waits for the go signal (`run_process`), leads its own session, and outlives the service.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from ml_pipeline.config.errors import UserError
from ml_pipeline.jobs.child import Child, Message, kill_group, start_process
from ml_pipeline.jobs.exit_reason import how_it_ended
from ml_pipeline.runs.state import RunState, Status
from ml_pipeline.runs.stop import ON_REQUEST, note_stop_request
from ml_pipeline.runtime.files import only_regular
from ml_pipeline.runtime.process_identity import ProcessIdentity, is_alive
from ml_pipeline.service.run_process import GO, RunOrder

_ANSWER_TIMEOUT_S = 60.0  # a fork takes milliseconds, but the machine may be suspended
_END_TIMEOUT_S = 1.0
_MODULE = "ml_pipeline.service.run_process"


class RunProcesses(Protocol):
    """Starts processes of runs. For one thread at a time."""

    def is_ready(self) -> bool:
        """True if `start` would not block."""

    def start(self, order: RunOrder) -> int:
        """Start a process that waits for the go signal; return its pid. Raises UserError if that fails."""

    def go(self, pid: int) -> None:
        """Let a waiting process begin."""

    def drop(self, pid: int) -> None:
        """End a waiting process, which has not changed anything yet."""

    def ended(self) -> dict[int, int]:
        """Exit codes of processes that ended since the last call, by pid; -N means killed by signal N."""

    def close(self) -> None:
        """Stop starting processes: running ones continue, waiting ones end. May be called twice."""


def run_processes(log: Path, on_event: Callable[[], None]) -> RunProcesses:
    """The implementation for this system. log: file for errors of the run host. on_event: called from another thread
    when the host is ready and, on Linux, when a process has ended."""
    return ForkedProcesses(log, on_event) if sys.platform == "linux" else SpawnedProcesses()


class ForkedProcesses:
    """Forks processes from a run host, which starts immediately and needs seconds to get ready."""

    def __init__(self, log: Path, on_event: Callable[[], None]) -> None:
        self._log, self._on_event = log, on_event
        self._ended: dict[int, int] = {}
        self._begin()

    def _begin(self) -> None:
        self._ready = False
        try:
            with open(self._log, "ab", opener=only_regular) as log:
                self._host: Child | None = Child(
                    _MODULE, purpose="runs", environment=_environment(), log=log, on_event=self._on_event
                )
        except OSError as error:
            raise UserError(f"No process can be started for runs: {error.strerror}; see {self._log}.") from error

    def is_ready(self) -> bool:
        if self._host is None or self._host.exit_code is not None:
            self.close()
            self._begin()  # the host was killed; its runs continue and are polled instead
        self._hear()
        return self._ready

    def start(self, order: RunOrder) -> int:
        assert self._host is not None, "it is ready"
        self._host.send({"do": "start", "order": asdict(order)})
        while (event := self._host.next_event(_ANSWER_TIMEOUT_S)) is not None:
            self._note(event.message)
            if "started" in event.message:
                return int(event.message["started"])
            if "error" in event.message:
                raise UserError(f"No process can be started for a run: {event.message['error']}.")
        self.close()
        raise UserError(f"The process that starts runs has ended; see {self._log}. It is started again.")

    def go(self, pid: int) -> None:
        self._send("go", pid)

    def drop(self, pid: int) -> None:
        self._send("drop", pid)

    def _send(self, do: str, pid: int) -> None:
        if self._host is not None:  # otherwise waiting processes have ended with the host
            self._host.send({"do": do, "pid": pid})

    def ended(self) -> dict[int, int]:
        self._hear()
        ended, self._ended = self._ended, {}
        return ended

    def _hear(self) -> None:
        while self._host is not None and (event := self._host.next_event(0.0)) is not None:
            self._note(event.message)

    def _note(self, answer: Message) -> None:
        self._ready = self._ready or "ready" in answer
        if "ended" in answer:
            self._ended[answer["ended"]] = answer["exit_code"]

    def close(self) -> None:
        if self._host is not None:
            self._host.end_orders()  # the host still reads the last go signal before it ends
            self._host.wait(_END_TIMEOUT_S)  # it needs longer only while it imports
            self._host.close()
            self._host = None


class SpawnedProcesses:
    """Starts a new interpreter per run, for systems on which the run host cannot fork."""

    def __init__(self, command: Sequence[str] = (sys.executable, "-m", _MODULE)) -> None:
        """command: gets the order as its last argument."""
        self._command = command
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    def is_ready(self) -> bool:
        return True

    def start(self, order: RunOrder) -> int:
        command = [*self._command, json.dumps(asdict(order))]
        streams = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        process = start_process(command, purpose="a run", environment=_environment(), **streams)
        self._processes[process.pid] = process
        return process.pid

    def go(self, pid: int) -> None:
        self._finish_pipe(pid, GO)

    def drop(self, pid: int) -> None:
        self._finish_pipe(pid, b"")

    def _finish_pipe(self, pid: int, last: bytes) -> None:
        process = self._processes.get(pid)
        if process is None or process.stdin is None or process.stdin.closed:
            return
        with suppress(OSError):  # it has ended
            process.stdin.write(last)
            process.stdin.close()

    def ended(self) -> dict[int, int]:
        ended = {pid: process.poll() for pid, process in self._processes.items()}
        codes = {pid: code for pid, code in ended.items() if code is not None}
        for pid in codes:
            self.drop(pid)
            del self._processes[pid]
        return codes

    def close(self) -> None:
        for pid, process in self._processes.items():
            self.drop(pid)
            process.returncode = 0  # it continues without us; otherwise Popen would warn
        self._processes.clear()


def _environment() -> dict[str, str]:
    """Let waiting OpenMP threads sleep. By default GNU's OpenMP lets them spin, which slowed a run 70 times when other
    processes were busy. Results do not depend on it."""
    return {"OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "passive")}


@dataclass
class RunProcess:
    """The process of a run. output_bytes: size of output.log when it started. exit_code: None while it runs, or if
    unknown."""

    process: ProcessIdentity
    output_bytes: int = 0
    exit_code: int | None = None
    has_ended: bool = False
    _kill_at: float | None = None  # on the monotonic clock

    def look(self, *, grace_s: float) -> bool:
        """Check if it has ended, and kill it if its grace period is over. Returns True if it was killed now."""
        if not self.has_ended:
            self.has_ended = is_alive(self.process) is False
        if self.has_ended or self._kill_at is None or time.monotonic() < self._kill_at:
            return False
        if is_alive(self.process):
            kill_group(self.process.pid)
        self.kill_after(grace_s)
        return True

    def kill_after(self, grace_s: float) -> None:
        """Start the grace period: it has `grace_s` seconds to end by itself."""
        self._kill_at = time.monotonic() + grace_s


def ask_to_stop(folder: Path, process: ProcessIdentity) -> bool:
    """Ask the run in a folder to save and end; a second request ends it at once. False if the process is not on this
    machine."""
    if not is_alive(process):
        return False
    note_stop_request(folder)
    with suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGTERM)
    return True


def outcome(
    *, state: RunState | None, exit_code: int | None, when: str, stop_asked: bool, words: str
) -> tuple[Status, str | None]:
    """The status and reason of a run whose process is gone.

    state: state.json; None if it cannot be read. exit_code: -N means killed by signal N; None means unknown, because
    another service started the process. when: the end of the process, such as "at 14:02:11 UTC"; if exit_code is None,
    its last sign of life. words: the last lines of its output. A run whose process never began stays "queued".

    >>> outcome(state=None, exit_code=-9, when="at 14:02:11 UTC", stop_asked=False, words="")
    ('failed', 'The process ended without a message (killed by SIGKILL at 14:02:11 UTC).')
    >>> outcome(state=None, exit_code=None, when="last sign of life at ...", stop_asked=False, words="")
    ('failed', 'The process ended without a message (last sign of life at ...).')
    """
    if state is not None and state.ended is not None and state.status != "queued":
        return state.status, state.reason or (words if state.status == "failed" else None)
    if stop_asked:
        if exit_code == -signal.SIGKILL:
            return "stopped", "It did not stop in time and was killed; its last checkpoint is complete."
        return "stopped", ON_REQUEST
    was_killed = exit_code is None or exit_code < 0
    if was_killed and state is not None and state.status == "queued":
        return "queued", "Its process ended before training began."
    how = when if exit_code is None else f"{how_it_ended(exit_code).removeprefix('ended with ')} {when}"
    if not words:
        return "failed", f"The process ended without a message ({how})."
    return "failed", f"The process ended ({how}); its last output:\n{words}" if was_killed else words

"""The processes of runs, as the service sees them: started, watched, killed, and how they ended.

They are forked from a warm process where that can be, else new ones. Each waits for its go (`run_process`), leads a
session of its own, and outlives the service.
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

_ANSWER_TIMEOUT_S = 60.0  # to fork takes milliseconds; a machine may be suspended
_END_TIMEOUT_S = 1.0
_MODULE = "ml_pipeline.service.run_process"


class RunProcesses(Protocol):
    """What starts processes of runs. Used by one thread at a time."""

    def is_ready(self) -> bool:
        """Whether `start` would not wait."""

    def start(self, order: RunOrder) -> int:
        """The pid of a new process that waits for its go. Raises UserError where none can be started."""

    def go(self, pid: int) -> None:
        """Let a process begin that waits."""

    def drop(self, pid: int) -> None:
        """End a process that waits; it has touched nothing."""

    def ended(self) -> dict[int, int]:
        """The exit codes of processes that ended since the last call, by pid; -N is by signal N."""

    def close(self) -> None:
        """Start no more; processes that go on do so, and those that wait end. May be called twice."""


def run_processes(log: Path, on_event: Callable[[], None]) -> RunProcesses:
    """What suits this system. log: where the host says what goes wrong with itself. on_event: called, from another
    thread, once it is ready and whenever a process has ended, where that is heard."""
    return ForkedProcesses(log, on_event) if sys.platform == "linux" else SpawnedProcesses()


class ForkedProcesses:
    """Forks them from a run host, which is started at once and takes seconds to be ready."""

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
            self._begin()  # somebody killed it; its runs go on, and are watched from outside
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
        raise UserError(f"The process that starts runs has ended; {self._log} may say why. It is started again.")

    def go(self, pid: int) -> None:
        self._send("go", pid)

    def drop(self, pid: int) -> None:
        self._send("drop", pid)

    def _send(self, do: str, pid: int) -> None:
        if self._host is not None:  # else those that waited have ended with it
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
            self._host.end_orders()  # it hears the last go before it ends
            self._host.wait(_END_TIMEOUT_S)  # longer only where it still imports
            self._host.close()
            self._host = None


class SpawnedProcesses:
    """Starts a new interpreter for each, where processes cannot be forked from a warm one."""

    def __init__(self, command: Sequence[str] = (sys.executable, "-m", _MODULE)) -> None:
        """command: what the order is handed to, as the last argument."""
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
            process.returncode = 0  # not ours to wait for: it goes on, and Popen would warn
        self._processes.clear()


def _environment() -> dict[str, str]:
    """Where more threads wait than there are cores, they sleep: GNU's OpenMP lets them spin, which cost a factor of 70
    beside other busy processes. What is computed does not depend on it."""
    return {"OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "passive")}


@dataclass
class RunProcess:
    """output_bytes: of output.log before this process. exit_code: None while it goes on, or is not known."""

    process: ProcessIdentity
    output_bytes: int = 0
    exit_code: int | None = None
    has_ended: bool = False
    _kill_at: float | None = None  # on the monotonic clock

    def look(self, *, grace_s: float) -> bool:
        """Notice whether it has ended; kill it where its time to stop is over. Returns whether it was killed now."""
        if not self.has_ended:
            self.has_ended = is_alive(self.process) is False
        if self.has_ended or self._kill_at is None or time.monotonic() < self._kill_at:
            return False
        if is_alive(self.process):
            kill_group(self.process.pid)
        self.kill_after(grace_s)
        return True

    def kill_after(self, grace_s: float) -> None:
        """From now on it has so many seconds to end by itself."""
        self._kill_at = time.monotonic() + grace_s


def ask_to_stop(folder: Path, process: ProcessIdentity) -> bool:
    """Ask the run in a folder to save and end; a second request ends it at once. False if its process is not here."""
    if not is_alive(process):
        return False
    note_stop_request(folder)
    with suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGTERM)
    return True


def outcome(
    *, state: RunState | None, exit_code: int | None, when: str, stop_asked: bool, words: str
) -> tuple[Status, str | None]:
    """The status and the reason of a run whose process is gone.

    state: what state.json tells; None if it cannot be read. exit_code: -N is by signal N; None if the service did not
    start the process, so that the system does not tell. when: "at 14:02:11 UTC", the end of the process; if exit_code
    is None, its last sign of life. words: what the process printed last. A run that never began is "queued": its folder
    is untouched.

    >>> outcome(state=None, exit_code=-9, when="at 14:02:11 UTC", stop_asked=False, words="")
    ('failed', 'The process ended without a message (killed by SIGKILL at 14:02:11 UTC).')
    >>> outcome(state=None, exit_code=None, when="last sign of life at ...", stop_asked=False, words="")
    ('failed', 'The process ended without a message (last sign of life at ...).')
    """
    if state is not None and state.ended is not None and state.status != "queued":
        return state.status, state.reason or (words if state.status == "failed" else None)
    if stop_asked:
        if exit_code == -signal.SIGKILL:
            return "stopped", "It did not stop when asked, and was killed; what its last checkpoint holds is whole."
        return "stopped", ON_REQUEST
    was_killed = exit_code is None or exit_code < 0
    if was_killed and state is not None and state.status == "queued":
        return "queued", "Its process ended before it began."
    how = when if exit_code is None else f"{how_it_ended(exit_code).removeprefix('ended with ')} {when}"
    if not words:
        return "failed", f"The process ended without a message ({how})."
    return "failed", f"The process ended ({how}); it said last:\n{words}" if was_killed else words

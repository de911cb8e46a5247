"""A worker in a separate process, as the pool sees it: its pipes, the pending command, and its end."""

import contextlib
import itertools
import os
import pickle
import signal
import time
from collections.abc import Collection, Sequence
from multiprocessing import util
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np

from ml_pipeline.models.rl.core.stepping import by_value, env_block
from ml_pipeline.models.rl.core.stepping.errors import (
    FailureReport,
    ReplyNotReadableError,
    StepTimeoutError,
    VectorEnvError,
    WorkerDiedError,
)
from ml_pipeline.models.rl.core.stepping.protocol import FINISHED, NOTHING, STEP, Command, Reply
from ml_pipeline.models.rl.core.workers.main import end_group_of
from ml_pipeline.models.rl.core.workers.pipes import DONE_FINISHED, DONE_WITH_MESSAGE, WITH_MESSAGE, WorkerLink
from ml_pipeline.models.rl.core.workers.worker import CLOSED, IDLE, LOST, PENDING, STARTING, WorkerState

_STACK_WAIT_S, _STACK_PAUSE_S = 0.5, 0.05  # until a stack begins to arrive, and between its parts
_STACK_BYTES = 1 << 16
_LONGEST_GAP_S = 0.5  # between two looks at a limit
_LOOK_S = 0.02  # interval of the checks while waiting for a process to end


class TimeLimit:
    """Begins now, and is over once this process has run for `seconds`.

    A monotonic clock continues while a process is suspended (Ctrl-Z, SIGSTOP, a paused virtual machine, on some systems
    a closed lid). Workers are suspended as well, so that time must not count.
    Waits check the limit several times a second: a gap of more than half a second between two checks counts as half a
    second. The first such gap restarts the limit, since suspended workers need time to get going again; only the first,
    so that the limit still expires in a process that is stopped repeatedly.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = self._left_s = seconds
        self._looked_at = time.monotonic()
        self._was_renewed = False

    def left_s(self) -> float:
        """The time left, at least 0."""
        now = time.monotonic()
        passed_s = now - self._looked_at
        self._looked_at = now
        if passed_s > _LONGEST_GAP_S and not self._was_renewed:
            self._was_renewed = True
            self._left_s = self.seconds
        else:
            self._left_s -= min(passed_s, _LONGEST_GAP_S)
        return max(0.0, self._left_s)

    def is_over(self) -> bool:
        """Whether the time has passed."""
        return self.left_s() <= 0


class ProcessWorker:
    """A worker whose process was started. It is STARTING until the reply to its setup, command 0, is read.

    pending_command: the number of the last command; its reply has the same number. command, message: that command.
    limit: time limit of the pending command; None for no limit.
    """

    def __init__(
        self,
        number: int,
        environments: range,
        *,
        process: BaseProcess,
        link: WorkerLink,
        stacks: Connection,
        current_env: np.ndarray,
    ) -> None:
        """stacks: receives its Python stack on SIGUSR1. current_env: of the batch, with one entry per worker."""
        self.number = number
        self.environments = environments
        self.process = process
        self.link = link
        self.state: WorkerState = STARTING
        self.pending_command = 0
        self.command: Command = STEP
        self.message: bytes | None = None
        self.limit: TimeLimit | None = None
        self.reply: Reply = NOTHING
        self._stacks = stacks
        self._current_env = current_env
        current_env[number] = -1
        # Runs before multiprocessing's finalizer, which would end the worker but not its environments' processes.
        self._at_exit = util.Finalize(None, _stop, ([self],), exitpriority=0)

    def prepare(self, common: Any, per_env: Sequence[Any] | None) -> bytes:
        """The message with this worker's part of the arguments."""
        block = self.environments
        return by_value.dumps((common, None if per_env is None else per_env[block.start : block.stop]))

    def send(self, number: int, command: Command, arguments: bytes | None = None) -> None:
        """Sends a command. If the process has ended, `read` raises."""
        self.pending_command, self.command, self.message = number, command, arguments
        self.state = PENDING
        try:
            if arguments is None:
                self.link.note(number, command)
            else:
                self.link.note(number, command | WITH_MESSAGE)
                self.link.send(arguments)
        except BrokenPipeError:
            pass
        except BaseException:  # Ctrl-C; half a command may be in the pipe
            self.state = LOST
            raise

    def read(self) -> None:
        """Reads the reply, and waits for it if necessary.

        Raises EOFError if the process has ended, ReplyNotReadableError if the reply cannot be unpickled here.
        """
        message = None
        try:
            number, code = self.link.read_note()
            if code == DONE_WITH_MESSAGE:
                message = self.link.receive()
            self.reply = FINISHED if code == DONE_FINISHED else NOTHING
            assert number == self.pending_command, f"worker {self.number} replied to {number}"
            self.state = IDLE
        except (EOFError, ConnectionResetError):
            raise EOFError from None
        except BaseException:  # Ctrl-C; the rest of half a reply would be read as the next one
            self.state = LOST
            raise
        if message is not None:
            try:
                self.reply = pickle.loads(message)
            except Exception as error:  # foreign __setstate__ and __reduce__ may raise anything
                raise ReplyNotReadableError(self.number, self.environments, self.command.name.lower(), error) from error

    def is_ready(self) -> bool:
        """Whether nothing is pending, or the reply can be read, or the process has ended."""
        return self.state is IDLE or self.link.wait(0.0)

    def is_overdue(self) -> bool:
        """Whether something is pending, and its limit has passed."""
        return self.state is not IDLE and self.limit is not None and self.limit.is_over()

    def interval_s(self, interval_s: float, deadline: TimeLimit | None = None) -> float:
        """The time to wait for the reply: `interval_s`, or less if the limit or the deadline comes earlier."""
        return min([interval_s, *(end.left_s() for end in (self.limit, deadline) if end is not None)])

    def error(self, report: FailureReport) -> VectorEnvError:
        """The error of a failure in one of its environments."""
        return report.error(self.number)

    def death(self) -> WorkerDiedError:
        """The error for the end of its process."""
        self.has_ended(1.0)
        index = self._index()
        activity, at_work = "while idle", None
        if self.state is STARTING:
            activity = "while starting"
        elif self.state is PENDING and index is not None:
            activity, at_work = f"in {self.command.name.lower()}", index
        return WorkerDiedError(self.number, self.environments, self.process.exitcode, activity, at_work)

    def timeout(self) -> StepTimeoutError:
        """The error for an overdue command, with the Python stack if the system can read it."""
        assert self.limit is not None
        overdue = f"{self.command.name.lower()} within step_timeout_s={self.limit.seconds:g}"
        if self.state is STARTING:
            overdue = f"start within {self.limit.seconds:g} s"
        return StepTimeoutError(self.number, self.environments, self._index(), overdue, self._stack())

    def _index(self) -> int | None:
        """The environment that it is stepping, if any."""
        index = int(self._current_env[self.number])
        return index if index in self.environments else None

    def _stack(self) -> str:
        """The Python stack of its main thread down to our own code, innermost call first; "" if it cannot be read."""
        if not hasattr(signal, "SIGUSR1") or self.process.pid is None:
            return ""
        with contextlib.suppress(ProcessLookupError):  # it has ended
            os.kill(self.process.pid, signal.SIGUSR1)
        text = b""
        while self._stacks.poll(_STACK_PAUSE_S if text else _STACK_WAIT_S):
            text += os.read(self._stacks.fileno(), _STACK_BYTES)
        lines = text.decode(errors="replace").splitlines()
        return "\n".join(itertools.takewhile(lambda line: env_block.__file__ not in line, lines))

    def drain_until_closed(self, deadline: float) -> None:
        """Waits for a worker to close, and reads any data that it still sends."""
        with contextlib.suppress(EOFError, OSError):
            while time.monotonic() < deadline and self.process.is_alive():
                if self.link.wait(_LOOK_S):
                    _, code = self.link.read_note()
                    if code == DONE_WITH_MESSAGE:
                        self.link.receive()
        self.has_ended(deadline - time.monotonic())

    def has_ended(self, timeout_s: float) -> bool:
        """Whether the process has ended, or ends within the time.

        Its sentinel alone is not enough: a process that it forked can hold the sentinel open.
        """
        deadline = time.monotonic() + timeout_s
        while self.process.is_alive():
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return False
            self.process.join(min(_LOOK_S, left_s))
        return True

    def free(self) -> None:
        """Frees the resources of the ended process."""
        self.state = CLOSED
        with contextlib.suppress(TypeError):  # at exit, multiprocessing's table no longer exists
            self._at_exit.cancel()
        self.link.close()
        self._stacks.close()
        self.process.join()
        self.process.close()


def close_all(workers: Collection[ProcessWorker], timeout_s: float) -> None:
    """Tells workers to close their environments and end; after `timeout_s`, kills those that have not ended."""
    try:
        for worker in workers:
            with contextlib.suppress(OSError):
                worker.link.note(worker.pending_command + 1, Command.CLOSE)
        deadline = time.monotonic() + timeout_s
        for worker in workers:
            worker.drain_until_closed(deadline)
    finally:  # also after Ctrl-C, or if another thread is waiting for them
        end_all(workers)


def end_all(workers: Collection[ProcessWorker]) -> None:
    """Kills processes that still run, by SIGKILL, and frees their resources.

    Processes that their environments started and left running are killed as well.
    """
    _stop(workers)
    for worker in workers:
        worker.free()


def _stop(workers: Collection[ProcessWorker]) -> None:
    alive = [worker for worker in workers if worker.process.is_alive()]
    for worker in alive:
        worker.process.kill()
    deadline = time.monotonic() + 1.0
    for worker in alive:
        worker.has_ended(deadline - time.monotonic())
    for worker in workers:
        if worker.process.pid is not None:
            end_group_of(worker.process.pid)

"""One worker process as the trainer sees it: its link, the command that it has not replied to, and its end."""

import itertools
import os
import pickle
import signal
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import cloudpickle

from ml_pipeline.models.rl.core.stepping import env_block
from ml_pipeline.models.rl.core.stepping.errors import StepTimeoutError, WorkerDiedError
from ml_pipeline.models.rl.core.stepping.protocol import Reply
from ml_pipeline.models.rl.core.workers import worker as vec_worker
from ml_pipeline.models.rl.core.workers.pipes import WorkerLink

NOTHING = Reply()
FINISHED = Reply(finished=True)
_STACK_WAIT_S, _STACK_PAUSE_S = 0.5, 0.05  # until a stack begins to arrive, and between its parts
_STACK_BYTES = 1 << 16


class WorkerProcess:
    """A started worker.

    pending_command: the number of the command that it has not replied to, or None. reply: the last one.
    """

    def __init__(
        self, number: int, environments: range, process: BaseProcess, link: WorkerLink, stacks: Connection
    ) -> None:
        self.number = number
        self.environments = environments
        self.process = process
        self.link = link
        self.pending_command: int | None = None
        self.reply = NOTHING
        self.is_reading = False  # an interruption now would leave half a reply in the pipe
        self.is_starting = True  # until its environments are made, and reset where it replaces a failed one
        self.is_lost = False  # it replaces a failed one, and the next step must say so
        self.first_reply = NOTHING  # to the reset that its environments then began with
        self.failures_in_a_row = 0
        self._stacks = stacks

    def pack(self, common: Any, per_env: Sequence[Any] | None) -> bytes:
        """The message with this worker's part of a command."""
        block = self.environments
        return cloudpickle.dumps((common, None if per_env is None else per_env[block.start : block.stop]))

    def send(self, number: int, code: int, message: bytes | None) -> None:
        """Sends a command, whose reply is then pending. Raises BrokenPipeError where the worker is gone."""
        self.pending_command = number
        self.link.note(number, code)
        if message is not None:
            self.link.send(message)

    def read(self) -> None:
        """Takes the reply that is there. Raises EOFError where the worker is gone instead."""
        self.is_reading = True
        try:
            number, code = self.link.read_note()
            if code == vec_worker.DONE_WITH_MESSAGE:
                self.reply = pickle.loads(self.link.receive())
            else:
                self.reply = FINISHED if code == vec_worker.DONE_FINISHED else NOTHING
        except ConnectionResetError:
            raise EOFError from None
        assert number == self.pending_command, (
            f"worker {self.number} replied {number}, but {self.pending_command} is pending"
        )
        self.pending_command = None
        self.is_reading = False

    def died(self, command: str | None, at: int) -> WorkerDiedError:
        """The error that says how it ended. command: what it was asked, None while starting; at: its `current_env`."""
        self.process.join(1.0)
        if command is None:
            activity = "while starting"
        elif self.pending_command is None or at not in self.environments:
            activity = "while idle"
        else:
            activity = f"in {command} of environment {at}"
        return WorkerDiedError(self.number, self.environments, self.process.exitcode, activity)

    def stuck(self, overdue: str, at: int) -> StepTimeoutError:
        """The error that says where it hangs, with its Python stack if the system can tell. at: its `current_env`."""
        index = at if at in self.environments else None
        return StepTimeoutError(self.number, self.environments, index, overdue, self._stack())

    def _stack(self) -> str:
        """The Python stack of its main thread down to our own code, innermost call first; "" where it cannot be had."""
        if not hasattr(signal, "SIGUSR1") or self.process.pid is None:
            return ""
        os.kill(self.process.pid, signal.SIGUSR1)
        text = b""
        while self._stacks.poll(_STACK_PAUSE_S if text else _STACK_WAIT_S):
            text += os.read(self._stacks.fileno(), _STACK_BYTES)
        lines = text.decode(errors="replace").splitlines()
        return "\n".join(itertools.takewhile(lambda line: env_block.__file__ not in line, lines))

    def drain_until_closed(self, deadline: float) -> None:
        """Waits for a worker that was told to close, reading what it may still be sending."""
        try:
            while self.link.wait(max(0.0, deadline - time.monotonic())):
                _, code = self.link.read_note()
                if code == vec_worker.DONE_WITH_MESSAGE:
                    self.link.receive()
        except (EOFError, OSError):
            self.process.join(max(0.0, deadline - time.monotonic()))


def end_all(workers: Sequence[WorkerProcess]) -> None:
    """Ends what still runs, by SIGTERM and after a second by SIGKILL, and frees what they held here."""
    for end in (BaseProcess.terminate, BaseProcess.kill):
        alive = [worker for worker in workers if worker.process.is_alive()]
        for worker in alive:
            end(worker.process)
        deadline = time.monotonic() + 1.0
        for worker in alive:
            worker.process.join(max(0.0, deadline - time.monotonic()))
    for worker in workers:
        worker.link.close()
        worker._stacks.close()
        worker.process.join()
        worker.process.close()

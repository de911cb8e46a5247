"""Workers, which step a block of consecutive environments: the protocol of both kinds, and the kind in this process.

The kind in a separate process is in `process`.
"""

import copy
from collections.abc import Iterable, Sequence
from enum import Enum, auto
from typing import Any, Protocol

import gymnasium
import numpy as np
from gymnasium import Space
from gymnasium.vector import AutoresetMode

from ml_pipeline.models.rl.core.stepping.batch import Batch, BatchLayout
from ml_pipeline.models.rl.core.stepping.env_block import EnvBlock, EnvFactory
from ml_pipeline.models.rl.core.stepping.errors import AlsoFailed, FailureReport, VectorEnvError
from ml_pipeline.models.rl.core.stepping.protocol import STEP, Command, Reply

_NO_ARGUMENTS: tuple[Any, Sequence[Any] | None] = (None, None)
_NEVER_CHANGES = (int, float, bool, str, bytes, type(None), np.generic)


class WorkerState(Enum):
    """STARTING -> IDLE <-> PENDING; any of them -> LOST or CLOSED; LOST -> CLOSED."""

    STARTING = auto()  # its process was started, and makes the environments
    IDLE = auto()  # nothing is pending
    PENDING = auto()  # a command was sent, and its reply has not been read
    LOST = auto()  # its process failed, or was cut off in the middle of a transfer
    CLOSED = auto()


STARTING, IDLE, PENDING, LOST, CLOSED = WorkerState


class Worker(Protocol):
    """The interface of a worker for the pool, in any process.

    number: its name in errors, and its index in `Batch.current_env`. environments: the indices that it steps.
    reply: the last one; before the first command, its `values` are the worker's space mismatches.
    """

    number: int
    environments: range
    state: WorkerState
    reply: Reply

    def prepare(self, common: Any, per_env: Sequence[Any] | None) -> Any:
        """This worker's part of the arguments, for `send`. Raises if they cannot be pickled.

        common: for every environment; per_env: one item per environment of the batch.
        """

    def send(self, number: int, command: Command, arguments: Any = None) -> None:
        """Begins a command; its reply, with the same number, is then pending."""

    def read(self) -> None:
        """Reads the pending reply. Raises EOFError if the worker has ended."""

    def error(self, report: FailureReport) -> VectorEnvError:
        """The error for a failure in its reply."""


class LocalWorker:
    """A worker in this process: it runs a command when the reply is read."""

    def __init__(self, block: EnvBlock, batch: Batch, number: int = 0) -> None:
        self.number = number
        self._block = block
        block.attach(batch, number)
        self.environments = range(block.span.start, block.span.stop)
        self.state = IDLE
        self.reply = Reply(values=block.space_mismatches())
        self._command: Command = STEP
        self._arguments = _NO_ARGUMENTS

    @property
    def envs(self) -> list[gymnasium.Env]:
        """The environments themselves; none once it is closed."""
        return self._block.envs

    def prepare(self, common: Any, per_env: Sequence[Any] | None) -> tuple[Any, Sequence[Any] | None]:
        """The arguments, with this worker's part of `per_env`."""
        return common, None if per_env is None else per_env[self._block.span]

    def send(self, number: int, command: Command, arguments: tuple[Any, Sequence[Any] | None] = _NO_ARGUMENTS) -> None:
        """Keeps the command for `read`."""
        self._command, self._arguments = command, arguments
        self.state = PENDING

    def forget(self) -> None:
        """Drops a pending command, which did not begin."""
        self.state = IDLE

    def read(self) -> None:
        """Runs the command.

        The caller owns the reply, as if it came through a pipe; environments may change their own objects later.
        """
        command = self._command
        common, per_env = self._arguments
        reply = self._block.execute(command, common, per_env)
        if reply.infos:
            reply.infos = [(index, _own(info)) for index, info in reply.infos]
        if reply.values and command in (STEP, Command.RESET):
            reply.values = copy.deepcopy(reply.values)
        self.reply = reply
        self.state = IDLE

    def error(self, report: FailureReport) -> VectorEnvError:
        """The error for a failure, without the worker's number."""
        return report.error()

    def close(self) -> None:
        """Closes the environments. Raises the first error of them; may be called twice."""
        self.state = CLOSED
        self._block.close()


def raise_failures(workers: Iterable[Worker]) -> None:
    """Raises the first failure among their replies, if any; the others are its notes."""
    failures = [(worker, worker.reply.failure) for worker in workers if worker.reply.failure is not None]
    if failures:
        worker, report = failures[0]
        error = worker.error(report)
        error.note_failures([AlsoFailed(other.number, each.index, each.type_name) for other, each in failures[1:]])
        raise error


def local_worker(
    env_fns: Sequence[EnvFactory], autoreset_mode: AutoresetMode, spaces: tuple[Space, Space] | None = None
) -> tuple[LocalWorker, Batch]:
    """The worker that steps every environment of a batch in this process, and the batch.

    spaces: of the batch, for an observation and an action; None takes those of the first environment.
    """
    block = EnvBlock(env_fns, 0, len(env_fns), autoreset_mode)
    if spaces is None:
        # Copied, so that sampling from the batch's spaces does not advance the generators of an environment's spaces.
        spaces = copy.deepcopy((block.envs[0].observation_space, block.envs[0].action_space))
    batch = BatchLayout(len(env_fns), *spaces, autoreset_mode).place()
    return LocalWorker(block, batch), batch


def _own(info: dict[str, Any]) -> dict[str, Any]:
    """The info, copied if a value in it could change later."""
    return info if all(isinstance(value, _NEVER_CHANGES) for value in info.values()) else copy.deepcopy(info)

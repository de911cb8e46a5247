"""A group of worker processes: sends commands, waits for replies, notices who is gone, and goes on if told to."""

import contextlib
import multiprocessing
import os
import time
from collections import deque
from collections.abc import Mapping, Sequence
from multiprocessing.process import BaseProcess
from typing import Any, Literal

import cloudpickle

from ml_pipeline.models.rl.core.stepping.errors import StepTimeoutError, WorkerFailedError
from ml_pipeline.models.rl.core.stepping.protocol import STEP, Command, Reply, ResetOrder, SpaceMismatch
from ml_pipeline.models.rl.core.workers import worker as vec_worker
from ml_pipeline.models.rl.core.workers.pipes import WorkerLink, wait_for_links
from ml_pipeline.models.rl.core.workers.process import NOTHING, WorkerProcess, end_all
from ml_pipeline.models.rl.core.workers.restarts import LostEpisodes
from ml_pipeline.models.rl.core.workers.start import WorkerStarter

_WATCH_INTERVAL_S = 0.25  # how often a wait looks whether another worker has died
_CLOSE_TIMEOUT_S = 5.0
_START_S = 60.0  # what a worker may take beyond step_timeout_s for its process, imports and constructors
_KEPT_FAILURES = 100  # of those that nobody asks for, the last
_FAILURES_IN_A_ROW = 3  # of one worker, without a step between them, until a restart is no remedy


class WorkerPool:
    """Worker processes that own blocks of environments.

    At most one command is under way a worker. A command whose wait was given up (a timeout, Ctrl-C) stays pending: the
    next one first waits for that reply, which carries the old number, and drops it.

    blocks: the consecutive environments of each worker, by its number. The workers are under way to a start, and what
    was noticed there is in `space_mismatches`, once `finish_start()` has returned.
    on_failure: where a worker fails, "raise" closes the pool and raises WorkerFailedError. "restart" starts another in
    its place, whose environments begin new episodes; the next step reports the old ones as truncated.
    """

    def __init__(
        self,
        starter: WorkerStarter,
        blocks: Mapping[int, range],
        *,
        step_timeout_s: float | None,
        on_failure: Literal["raise", "restart"],
    ) -> None:
        self._starter = starter
        self.batch = starter.batch
        self.closed = False
        self.num_restarts = 0
        self.failures: deque[str] = deque(maxlen=_KEPT_FAILURES)  # what restarts made good, until somebody takes them
        self.waited_s = 0.0  # for replies, all in all
        indices = [index for block in blocks.values() for index in block]
        self.environments = range(indices[0], indices[-1] + 1)
        lost_episodes = LostEpisodes(self.batch, starter.layout, self.environments)
        self._lost_episodes = lost_episodes if on_failure == "restart" else None
        self._spin_s = starter.spin_s
        self._step_timeout_s = step_timeout_s
        self._owner = os.getpid()
        self._number = 0
        self._command: Command | None = None  # None: starting
        self._per_env: Sequence[Any] | None = None
        self._code = 0
        self._messages: dict[int, bytes] | None = None
        self._limit = self._limit_of(None)  # when the command under way is declared stuck
        for number in blocks:
            self.batch.current_env[number] = -1
        self._is_drained = False  # no reply is pending
        self.space_mismatches: list[SpaceMismatch] = []
        self._workers: list[WorkerProcess] = starter.start(blocks)

    def finish_start(self) -> None:
        """Waits until every worker has made its environments; to be called once, before all else."""
        try:
            self.space_mismatches = self.collect().values
            for worker in self._workers:
                worker.is_starting = False
        except BaseException:
            self.close(terminate=True)
            raise

    @property
    def processes(self) -> list[BaseProcess]:
        """The worker processes, in the order of their blocks."""
        return [worker.process for worker in self._workers]

    def post(self, command: Command, common: Any = None, per_env: Sequence[Any] | None = None) -> None:
        """Sends a command to every worker, each with its own part of `per_env`, and returns at once."""
        self.drain_replies()
        self._is_drained = False
        self._number += 1
        self._command, self._per_env = command, per_env
        self._code, self._messages = int(command), None
        if common is not None or per_env is not None:
            self._code |= vec_worker.WITH_MESSAGE
            self._messages = {worker.number: worker.pack(common, per_env) for worker in self._workers}
        if self._lost_episodes is not None and per_env is not None and command is Command.RESET:
            self._lost_episodes.remember_seeds(per_env)
        is_step = command is STEP
        self._limit = self._limit_of(command)
        try:
            for worker in self._workers:
                if not (is_step and worker.is_lost):
                    self._send(worker)
        except BaseException:  # Ctrl-C; who waits for the rest of half a command would wait forever
            self.close(terminate=True)
            raise

    def drain_replies(self) -> None:
        """Waits for replies that were given up, and drops them; then the batch may be written."""
        if self._is_drained:
            return
        for position in range(len(self._workers)):
            self._finish(position, None, wanted=False)
        self._is_drained = True

    def collect(self, timeout_s: float | None = None) -> Reply:
        """Waits for the replies to the last command and joins them in the order of the environments.

        Raises multiprocessing.TimeoutError where `timeout_s` passes first, EnvFailedError where an environment failed.
        """
        began = time.monotonic()
        deadline = None if timeout_s is None else began + timeout_s
        for position, worker in enumerate(self._workers):
            if not self._finish(position, deadline):
                _raise_failures([worker for worker in self._workers if worker.pending_command is None])
                raise multiprocessing.TimeoutError(
                    f"No reply within {timeout_s:g} second(s); worker {worker.number} is still busy."
                )
        self.waited_s += time.monotonic() - began
        self._is_drained = True
        if self._lost_episodes is not None:
            self._account_for_lost(self._lost_episodes)
        reply = _join(self._workers)
        if self._lost_episodes is not None and self._command in (STEP, Command.RESET):
            self._lost_episodes.remember(reply)
        return reply

    def is_ready(self) -> bool:
        """Whether every pending reply can be read, or is overdue: `collect` would return or raise at once."""
        if self._limit is not None and time.monotonic() >= self._limit:
            return True
        return all(worker.pending_command is None or worker.link.wait(0.0) for worker in self._workers)

    def late_links(self) -> list[WorkerLink]:
        """Those of workers whose reply is pending and not there yet."""
        return [
            worker.link for worker in self._workers if worker.pending_command is not None and not worker.link.wait(0.0)
        ]

    def close(self, *, timeout_s: float | None = None, terminate: bool = False) -> None:
        """Ends every worker: asked, after `timeout_s` (default 5) by SIGTERM, then by SIGKILL. May be called twice."""
        if os.getpid() != self._owner:
            return  # a fork of the trainer holds a copy of this object, but not its workers
        self.closed = True
        if not terminate:
            for worker in self._workers:
                with contextlib.suppress(OSError):
                    worker.link.note(self._number + 1, Command.CLOSE)
            deadline = time.monotonic() + (_CLOSE_TIMEOUT_S if timeout_s is None else timeout_s)
            for worker in self._workers:
                worker.drain_until_closed(deadline)
        workers, self._workers = self._workers, []
        end_all(workers)

    def _send(self, worker: WorkerProcess) -> None:
        message = None if self._messages is None else self._messages[worker.number]
        try:  # noqa: SIM105 - contextlib.suppress takes 0.4 µs
            worker.send(self._number, self._code, message)
        except BrokenPipeError:
            pass  # whoever waits for its reply reads that it died

    def _limit_of(self, command: Command | None) -> float | None:
        """When a command that begins now, None being the start, is declared stuck."""
        if self._step_timeout_s is None or command not in (None, STEP, Command.RESET):
            return None
        return time.monotonic() + self._step_timeout_s + (_START_S if command is None else 0.0)

    def _finish(self, position: int, deadline: float | None, *, wanted: bool = True) -> bool:
        """Waits for a worker's pending reply, or for its successor's where it fails. False at the deadline.

        wanted: False also once an environment of another worker has failed.
        """
        while (worker := self._workers[position]).pending_command is not None:
            try:
                if not self._await(worker, deadline, self._limit, wanted=wanted):
                    return False
                worker.read()
            except WorkerFailedError as error:
                self._replace(worker, error)
            except EOFError:
                self._replace(worker, self._death_of(worker))
            except BaseException:  # Ctrl-C; with half a reply read, the rest of it would be taken for the next
                if worker.is_reading:
                    self.close(terminate=True)
                raise
        return True

    def _await(
        self, worker: WorkerProcess, deadline: float | None, limit: float | None, *, wanted: bool = False
    ) -> bool:
        """Waits until the worker replied or died; False at the deadline. Raises StepTimeoutError at the limit.

        Where a failure ends it all, it also looks after those who are waited for later.
        """
        if self._spin_s and worker.link.spin(self._spin_s):
            return True
        while True:
            interval = _WATCH_INTERVAL_S
            for end in (deadline, limit):
                if end is not None:
                    interval = max(0.0, min(interval, end - time.monotonic()))
            if worker.link.wait(interval):
                return True
            for other in self._workers if self._lost_episodes is None else ():
                if other.pending_command is not None and not other.process.is_alive():
                    raise self._death_of(other)
            if wanted and self._has_failure_beside(worker):
                return False
            now = time.monotonic()
            if limit is not None and now >= limit:
                raise self._stuckness_of(worker)
            if deadline is not None and now >= deadline:
                return False

    def _has_failure_beside(self, worker: WorkerProcess) -> bool:
        """Reads what others reply meanwhile; whether an environment of theirs has failed."""
        for other in self._workers:
            if other is not worker and other.pending_command is not None and other.link.wait(0.0):
                try:
                    other.read()
                except EOFError:  # it died, which whoever waits for it will read again
                    continue
                if other.reply.failure is not None:
                    return True
        return False

    def _death_of(self, worker: WorkerProcess) -> WorkerFailedError:
        command = None if self._command is None else self._command.name.lower()
        return worker.died(command, int(self.batch.current_env[worker.number]))

    def _stuckness_of(self, worker: WorkerProcess) -> WorkerFailedError:
        assert self._step_timeout_s is not None
        overdue = f"start within {_START_S + self._step_timeout_s:g} s"
        if self._command is not None and not worker.is_starting:
            overdue = f"{self._command.name.lower()} within step_timeout_s={self._step_timeout_s:g}"
        return worker.stuck(overdue, int(self.batch.current_env[worker.number]))

    def _replace(self, worker: WorkerProcess, error: WorkerFailedError) -> None:
        """Starts a successor, whose environments begin anew, and then the pending command. Raises where it may not."""
        worker.failures_in_a_row += 1
        if self._lost_episodes is None or self._command is None or worker.failures_in_a_row > _FAILURES_IN_A_ROW:
            self.close(terminate=True)
            raise error
        end_all([worker])
        self.batch.current_env[worker.number] = -1
        (successor,) = self._starter.start({worker.number: worker.environments})
        self._workers[self._workers.index(worker)] = successor
        successor.failures_in_a_row = worker.failures_in_a_row
        self.num_restarts += 1
        self.failures.append(str(error).partition("\n")[0])
        try:
            self._begin(successor, self._lost_episodes.new_episodes(successor.environments, self.num_restarts))
        except EOFError:
            self._replace(successor, self._death_of(successor))
            return
        except StepTimeoutError as stuck:
            self._replace(successor, stuck)
            return
        except BaseException:
            self.close(terminate=True)
            raise
        successor.is_lost = True
        if self._command is not STEP:
            self._limit = self._limit_of(self._command)
            self._send(successor)

    def _begin(self, worker: WorkerProcess, orders: Sequence[ResetOrder]) -> None:
        """Resets all environments of a new worker. Raises EOFError where it dies."""
        limit = self._limit_of(None)
        self._await(worker, None, limit)
        worker.read()
        if worker.reply.failure is None:
            worker.send(self._number, Command.RESET | vec_worker.WITH_MESSAGE, cloudpickle.dumps((None, orders)))
            self._await(worker, None, limit)
            worker.read()
        if worker.reply.failure is not None:
            raise worker.reply.failure.error(worker.number)
        worker.first_reply = worker.reply
        worker.is_starting = False

    def _account_for_lost(self, lost_episodes: LostEpisodes) -> None:
        """Reports episodes that a lost worker took with it, once: in a step, or not at all where all begin anew."""
        for worker in self._workers:
            if self._command is STEP:
                if worker.is_lost:
                    worker.reply = lost_episodes.truncate(worker.environments, worker.first_reply)
                else:
                    worker.failures_in_a_row = 0
            if self._command in (STEP, Command.SET_STATES) or self._resets_all(worker):
                worker.is_lost = False

    def _resets_all(self, worker: WorkerProcess) -> bool:
        if self._command != Command.RESET or self._per_env is None:
            return False
        return all(self._per_env[index].wanted for index in worker.environments)


def wait_for_any(pools: Sequence[WorkerPool]) -> None:
    """Waits until a worker of these pools has something to say, or has died, but for a limited time."""
    wait_for_links([link for pool in pools for link in pool.late_links()], _WATCH_INTERVAL_S)


def _join(workers: Sequence[WorkerProcess]) -> Reply:
    """One reply of all, in the order of the environments. Raises where an environment failed."""
    joined = NOTHING
    for worker in workers:
        if worker.reply is not NOTHING:
            joined = worker.reply if joined is NOTHING else joined.followed_by(worker.reply)
    _raise_failures(workers)
    return joined


def _raise_failures(workers: Sequence[WorkerProcess]) -> None:
    """Raises the first failure that they replied, if any, the others being its notes."""
    failures = [(worker.number, worker.reply.failure) for worker in workers if worker.reply.failure is not None]
    if failures:
        number, report = failures[0]
        error = report.error(number)
        for number, report in failures[1:]:
            error.add_note(f"Worker {number} failed as well: environment {report.index} raised {report.type_name}.")
        raise error

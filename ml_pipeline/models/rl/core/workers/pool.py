"""The workers of a batch, in this process and in others: sends commands, collects replies, and notices dead workers.

Workers have indices in the order of their environments. A group is a range of indices; groups may step at the same
time. No worker has more than one command pending.
"""

import contextlib
import itertools
import multiprocessing
import os
import time
from collections.abc import Collection, Iterable, Sequence
from multiprocessing.process import BaseProcess
from typing import Any, Literal

from ml_pipeline.models.rl.core.stepping.batch import Batch
from ml_pipeline.models.rl.core.stepping.errors import WorkerFailedError
from ml_pipeline.models.rl.core.stepping.protocol import NOTHING, STEP, Command, Reply
from ml_pipeline.models.rl.core.workers.pipes import wait_for_links
from ml_pipeline.models.rl.core.workers.process import ProcessWorker, TimeLimit, close_all, end_all
from ml_pipeline.models.rl.core.workers.restarts import Restarts
from ml_pipeline.models.rl.core.workers.start import WorkerStarter
from ml_pipeline.models.rl.core.workers.worker import IDLE, LOST, PENDING, LocalWorker, Worker, raise_failures
from ml_pipeline.runtime.env_limit import Lease

_WATCH_INTERVAL_S = 0.25  # interval at which a wait checks for dead and overdue workers
_CLOSE_TIMEOUT_S = 5.0
_START_S = 60.0  # extra time beyond step_timeout_s for a worker's process, imports and constructors


class WorkerPool:
    """Owns the workers of `batch`; the constructor returns once all have made their environments.

    group_sizes: the number of workers of each group; not needed if all step at once. starter: starts replacements of
    worker processes. on_failure: what to do if a worker process fails. "raise" closes the pool and raises
    WorkerFailedError; "restart" replaces the worker. The new environments begin new episodes, and the next step reports
    the old episodes as truncated.

    After an abandoned wait (a timeout, Ctrl-C), the command stays pending: the next command first waits for its reply
    and drops it. here: the workers in this process. is_drained: no reply is pending. waited_s: the total time waited
    for other processes. lease: from the limit on environments, if any; `close` returns it.
    """

    def __init__(
        self,
        workers: Sequence[Worker],
        batch: Batch,
        *,
        group_sizes: Sequence[int] = (),
        starter: WorkerStarter | None = None,
        step_timeout_s: float | None = None,
        on_failure: Literal["raise", "restart"] = "raise",
    ) -> None:
        self.batch = batch
        self.here = [worker for worker in workers if isinstance(worker, LocalWorker)]
        self.restarts = Restarts(batch) if on_failure == "restart" else None
        self.closed = False
        self.is_drained = True
        self.waited_s = 0.0
        self.lease: Lease | None = None
        self._workers = list(workers)
        self._processes = {index: worker for index, worker in enumerate(workers) if isinstance(worker, ProcessWorker)}
        ends = [0, *itertools.accumulate(group_sizes)]
        self._groups = [range(start, stop) for start, stop in itertools.pairwise(ends)]
        self._starter = starter
        self._spin_s = 0.0 if starter is None else starter.spin_s
        self._step_timeout_s = step_timeout_s
        self._owner = os.getpid()
        self._number = 0  # of the last command; 0 is the start
        self._next_watch = 0.0
        try:
            self._set_limits(self._processes, None)
            self._wait_for(self._processes)
            raise_failures(self._workers)
        except BaseException:
            self._abandon()
            raise
        self.space_mismatches = [mismatch for worker in workers for mismatch in worker.reply.values]

    @property
    def processes(self) -> list[BaseProcess]:
        """The worker processes, in the order of their environments."""
        return [worker.process for worker in self._processes.values()]

    def group_environments(self) -> list[range]:
        """The environments of each group."""
        ends = [(self._workers[group[0]].environments, self._workers[group[-1]].environments) for group in self._groups]
        return [range(first.start, last.stop) for first, last in ends]

    def post(
        self, command: Command, common: Any = None, per_env: Sequence[Any] | None = None, *, group: int | None = None
    ) -> None:
        """Sends a command to every worker, or a step to the workers of a group, and returns at once.

        common: for all; per_env: one item per environment of the batch. Workers in this process run in `collect`.
        """
        if not self.is_drained:
            self.drain_replies(group)
        self.is_drained = False
        self._number = number = self._number + 1
        workers = self._workers if group is None else self._members(group)
        if self.restarts is not None:
            workers = self.restarts.begin(workers, command, per_env)
        is_plain = common is None and per_env is None
        arguments = () if is_plain else [worker.prepare(common, per_env) for worker in workers]
        if self._step_timeout_s is not None:
            self._set_limits(self._processes if group is None else self._groups[group], command)
        try:
            if is_plain:
                for worker in workers:
                    worker.send(number, command)
            else:
                for worker, argument in zip(workers, arguments, strict=True):
                    worker.send(number, command, argument)
        except BaseException:  # Ctrl-C; a worker would wait forever for the rest of half a command
            if self._processes:
                self._abandon()
            raise

    def drain_replies(self, group: int | None = None) -> None:
        """Waits for abandoned replies and drops them; afterwards, the batch may be written."""
        for index in range(len(self._workers)) if group is None else self._groups[group]:
            worker = self._workers[index]
            if isinstance(worker, LocalWorker):
                worker.forget()
            elif worker.state is not IDLE:
                self._finish(index)
        self.is_drained = group is None

    def collect(self, timeout_s: float | None = None, *, group: int | None = None) -> Reply:
        """Waits for the replies to the last command, of all or of a group; joins them in the order of the environments.

        Raises multiprocessing.TimeoutError if other processes take longer than `timeout_s`, EnvFailedError if an
        environment failed, WorkerFailedError if any worker of the pool failed and is not replaced.
        """
        if self._processes:
            for local in self.here:
                local.read()
            self._wait_for(self._processes if group is None else self._groups[group], timeout_s)
            workers = self._workers if group is None else self._members(group)
        else:
            workers = self._workers if group is None else self._members(group)
            for worker in workers:
                worker.read()
        self.is_drained = group is None
        if self.restarts is not None:
            self.restarts.account(workers)
        joined = NOTHING
        for worker in workers:
            reply = worker.reply
            if reply is not NOTHING:
                joined = reply if joined is NOTHING else joined.followed_by(reply)
        if joined.failure is not None:
            raise_failures(workers)
        return joined

    def wait_for_any(self, groups: Collection[int]) -> list[int]:
        """Waits until one or more of these groups, all of which are stepping, are ready; returns the ready ones."""
        if not self._processes:
            return list(groups)
        while True:
            late = {index for group in groups for index in self._groups[group] if not self._processes[index].is_ready()}
            if ready := [group for group in groups if late.isdisjoint(self._groups[group])]:
                return ready
            waiting = [self._processes[index] for index in late]
            interval_s = min(worker.interval_s(_WATCH_INTERVAL_S) for worker in waiting)
            if not wait_for_links([worker.link for worker in waiting], interval_s):
                self._watch()
                self._check_limits()

    def close(self, *, timeout_s: float | None = None, terminate: bool = False) -> None:
        """Ends all workers, those in other processes first; may be called twice.

        Workers that have not ended after `timeout_s` (default 5) are killed by SIGKILL. Raises the first error of an
        environment in this process.
        """
        self.closed = True
        # A fork of the trainer holds a copy of this object, but not its workers.
        processes = list(self._processes.values()) if os.getpid() == self._owner else []
        self._processes.clear()
        try:
            if terminate:
                end_all(processes)
            else:
                close_all(processes, _CLOSE_TIMEOUT_S if timeout_s is None else timeout_s)
        finally:
            if self.lease is not None:
                self.lease.give_back()
        errors: list[Exception] = []
        for local in self.here:
            try:
                local.close()
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def _abandon(self) -> None:
        """Closes all workers at once, after an error that the caller raises."""
        with contextlib.suppress(Exception):
            self.close(terminate=True)

    def _members(self, group: int) -> list[Worker]:
        return [self._workers[index] for index in self._groups[group]]

    def _set_limits(self, indices: Iterable[int], command: Command | None) -> None:
        """Sets the time limit for a command that begins now; None means the start of the worker."""
        limit = None
        if self._step_timeout_s is not None and command in (None, STEP, Command.RESET):
            limit = TimeLimit(self._step_timeout_s + (_START_S if command is None else 0.0))
        for index in indices:
            self._processes[index].limit = limit

    def _wait_for(self, indices: Collection[int], timeout_s: float | None = None) -> None:
        """Waits until all of these processes have replied to the same command, or one has replied with a failure.

        Raises multiprocessing.TimeoutError after `timeout_s`, and the errors of `_lose`.
        """
        began = time.monotonic()
        deadline = None if timeout_s is None else TimeLimit(timeout_s)
        for index in indices:
            if not self._finish(index, deadline, asked=indices):
                raise_failures(self._failed(indices))
                raise multiprocessing.TimeoutError(
                    f"No reply within {timeout_s:g} second(s); worker {self._workers[index].number} is still busy."
                )
        now = time.monotonic()
        self.waited_s += now - began
        if now > self._next_watch and len(indices) < len(self._processes):  # others may be waited for much later
            self._watch()
            self._check_limits()
            self._next_watch = now + _WATCH_INTERVAL_S

    def _finish(self, index: int, deadline: TimeLimit | None = None, asked: Collection[int] = ()) -> bool:
        """Waits for a pending reply, from the worker or from its replacement.

        False at the deadline, or once a worker in `asked` has replied with a failure.
        """
        spin_s = self._spin_s
        while (worker := self._processes[index]).state is not IDLE:
            if spin_s and worker.link.spin(spin_s):
                self._read(index, worker)
                continue
            spin_s, interval_s = 0.0, _WATCH_INTERVAL_S
            if deadline is not None or worker.limit is not None:
                interval_s = worker.interval_s(interval_s, deadline)
            if worker.link.wait(interval_s):
                self._read(index, worker)
                continue
            self._watch()
            if asked and self._failed(asked):
                return False
            self._check_limits()
            if deadline is not None and deadline.is_over():
                return False
        return True

    def _failed(self, indices: Iterable[int]) -> list[Worker]:
        """The workers here and in these processes that have replied with a failure."""
        workers: list[Worker] = [*self.here, *(self._processes[index] for index in indices)]
        return [worker for worker in workers if worker.state is IDLE and worker.reply.failure is not None]

    def _read(self, index: int, worker: ProcessWorker) -> None:
        """Reads a reply that has arrived, or notices that the process has ended."""
        try:
            worker.read()
        except EOFError:
            self._lose(index, worker.death())
        except BaseException:
            if worker.state is LOST:
                self._abandon()
            raise

    def _watch(self) -> None:
        """Checks every process, pending or not: reads replies that have arrived, and finds ended processes."""
        for index, worker in list(self._processes.items()):
            if worker.state is not IDLE and worker.link.wait(0.0):
                self._read(index, worker)
            elif not worker.process.is_alive():
                self._lose(index, worker.death())

    def _check_limits(self) -> None:
        """Finds overdue workers."""
        for index, worker in list(self._processes.items()):
            if worker.is_overdue():
                self._lose(index, worker.timeout())

    def _lose(self, index: int, error: WorkerFailedError) -> None:
        """Replaces a failed worker, and its replacement if that fails as well.

        The new worker begins new episodes, and then runs the pending command, unless that is a step. If the worker may
        not be replaced, closes the pool and raises the last failure.
        """
        worker = self._processes[index]
        command, message = (worker.command, worker.message) if worker.state is PENDING else (STEP, None)
        worker.state = LOST
        restarts, failed = self.restarts, error
        try:
            while True:
                if restarts is None or self._number == 0 or not restarts.is_remedy(worker.number):
                    raise failed
                assert self._starter is not None
                end_all([worker])
                orders = restarts.new_episodes(worker.environments)
                (worker,) = self._starter.start({worker.number: worker.environments}, orders)
                self._workers[index] = self._processes[index] = worker
                restarts.add(worker.environments, failed)
                self._set_limits([index], None)
                if (failure := self._await_start(worker)) is None:
                    break
                failed = failure
            if worker.reply.failure is not None:
                raise worker.error(worker.reply.failure)
        except BaseException:
            self._abandon()
            raise
        restarts.unreported[worker.number] = worker.reply
        if command is not STEP:
            self._set_limits([index], command)
            worker.send(self._number, command, message)

    def _await_start(self, worker: ProcessWorker) -> WorkerFailedError | None:
        """Waits until a replacement has made and reset its environments; returns its failure, if any."""
        try:
            while not worker.link.wait(worker.interval_s(_WATCH_INTERVAL_S)):
                if not worker.process.is_alive():
                    return worker.death()
                if worker.is_overdue():
                    return worker.timeout()
            worker.read()
        except EOFError:
            return worker.death()
        return None

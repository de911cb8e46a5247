"""The trainer's side of the worker processes: starts them, sends commands, waits for answers, notices who is gone."""

import contextlib
import ctypes
import itertools
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
import types
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing import forkserver
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any, NoReturn

import cloudpickle
from gymnasium.vector.utils import clear_mpi_env_vars

from ml_pipeline.models.rl.core import vec_worker
from ml_pipeline.models.rl.core.batch import Batch, BatchLayout
from ml_pipeline.models.rl.core.env_block import Answer, Command, EnvFactory
from ml_pipeline.models.rl.core.vec_errors import (
    FactoryNotPicklableError,
    StepTimeoutError,
    WorkerDiedError,
    span,
)
from ml_pipeline.models.rl.core.worker_link import WorkerLink

_WATCH_INTERVAL_S = 0.25  # how often a wait looks whether another worker has died
_ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"), "1"
)
_starting = threading.Lock()  # process-wide settings are changed while workers start


def blocks_of(num_envs: int, n_workers: int) -> list[range]:
    """Contiguous blocks of environments, the first ones larger by one where it does not divide.

    >>> blocks_of(7, 3)
    [range(0, 3), range(3, 5), range(5, 7)]
    """
    small, n_large = divmod(num_envs, n_workers)
    starts = [worker * small + min(worker, n_large) for worker in range(n_workers + 1)]
    return [range(start, stop) for start, stop in itertools.pairwise(starts)]


@dataclass(slots=True)
class _Worker:
    number: int
    environments: range
    process: BaseProcess
    link: WorkerLink
    owes: int | None = None  # the number of the command that it has not answered
    answer: Answer = field(default_factory=Answer)


class WorkerPool:
    """Worker processes that own blocks of environments.

    At most one command is under way a worker. A command whose wait was given up (a timeout, Ctrl-C) stays owed: the
    next one first waits for that answer, which carries the old number, and drops it.
    Raises VectorEnvError where a worker fails; the pool is then closed.
    """

    def __init__(
        self,
        env_fns: Sequence[EnvFactory],
        layout: BatchLayout,
        start_method: str,
        *,
        step_timeout_s: float | None,
    ) -> None:
        context = multiprocessing.get_context(start_method)
        # Anonymous memory of the context: a file without a name, gone with the last process that maps it.
        memory = context.RawArray(ctypes.c_uint8, layout.nbytes())
        self.batch: Batch = layout.place_in(memory)
        self._doing = self.batch.doing
        self._step_timeout_s = step_timeout_s
        self._number = 0
        self._command: Command | None = None  # None: starting
        self._limit: float | None = None  # when the command under way is declared stuck
        self._owner = os.getpid()
        self.closed = False
        self._workers: list[_Worker] = []
        blocks = blocks_of(layout.num_envs, layout.n_workers)
        setups = [cloudpickle.dumps(self._setup(layout, env_fns, block)) for block in blocks]
        try:
            with _quiet_start(context):
                for number, block in enumerate(blocks):
                    self._workers.append(_start(context, number, block, memory))
            for worker, setup in zip(self._workers, setups, strict=True):
                worker.owes = 0
                self._send(worker, setup)
            self.misfits = self.collect().values
        except BaseException:
            self.close(terminate=True)
            raise

    @staticmethod
    def _setup(layout: BatchLayout, env_fns: Sequence[EnvFactory], block: range) -> vec_worker.WorkerSetup:
        mine = [env_fns[index] for index in block]
        try:
            factories = cloudpickle.dumps(mine)
        except Exception as error:  # foreign __getstate__ and __reduce__ may raise anything
            raise FactoryNotPicklableError(
                f"A factory of {span(block)} cannot be sent to a worker: "
                f"{type(error).__name__}: {error}. Create what it holds inside the factory, or pass num_workers=0."
            ) from error
        return vec_worker.WorkerSetup(layout, {**os.environ, **_ONE_THREAD}, factories)

    @property
    def processes(self) -> list[BaseProcess]:
        """The worker processes, in the order of their blocks."""
        return [worker.process for worker in self._workers]

    def post(self, command: Command, common: Any = None, per_env: Sequence[Any] | None = None) -> None:
        """Sends a command to every worker, each with its own part of `per_env`, and returns at once."""
        self.settle()
        self._number += 1
        messages = None
        if common is not None or per_env is not None:
            code = command | vec_worker.WITH_MESSAGE
            messages = [self._message(worker, common, per_env) for worker in self._workers]
        else:
            code = command
        for position, worker in enumerate(self._workers):
            self._send(worker, messages[position] if messages is not None else None, code)
        self._command = command
        self._limit = None
        if self._step_timeout_s is not None and command == Command.STEP:
            self._limit = time.monotonic() + self._step_timeout_s

    def close(self, *, timeout_s: float | None = None, terminate: bool = False) -> None:
        """Ends every worker: asked, after `timeout_s` (default 5) by SIGTERM, then by SIGKILL. May be called twice."""
        if os.getpid() != self._owner:
            return  # a fork of the trainer holds a copy of this object, but not its workers
        self.closed = True
        if not terminate:
            for worker in self._workers:
                with contextlib.suppress(OSError):
                    worker.link.note(self._number + 1, Command.CLOSE)
            deadline = time.monotonic() + (5.0 if timeout_s is None else timeout_s)
            for worker in self._workers:
                self._drain_until_closed(worker, deadline)
        for end in (BaseProcess.terminate, BaseProcess.kill):
            alive = [worker for worker in self._workers if worker.process.is_alive()]
            for worker in alive:
                end(worker.process)
            deadline = time.monotonic() + 1.0
            for worker in alive:
                worker.process.join(max(0.0, deadline - time.monotonic()))
        for worker in self._workers:
            worker.link.close()
            worker.process.join()
            worker.process.close()
        self._workers = []

    def _drain_until_closed(self, worker: _Worker, deadline: float) -> None:
        """Waits for a worker that was told to close, reading what it may still be sending."""
        with contextlib.suppress(EOFError, OSError):
            while worker.link.wait(max(0.0, deadline - time.monotonic())):
                _, code = worker.link.read_note()
                if code == vec_worker.DONE_WITH_MESSAGE:
                    worker.link.receive()
        worker.process.join(max(0.0, deadline - time.monotonic()))

    @staticmethod
    def _message(worker: _Worker, common: Any, per_env: Sequence[Any] | None) -> bytes:
        block = worker.environments
        return cloudpickle.dumps((common, None if per_env is None else per_env[block.start : block.stop]))

    def _send(self, worker: _Worker, message: bytes | None, code: int | None = None) -> None:
        try:
            if code is not None:
                worker.link.note(self._number, code)
                worker.owes = self._number
            if message is not None:
                worker.link.send(message)
        except BrokenPipeError:
            self._raise_died(worker)

    def settle(self) -> None:
        """Waits for answers that were given up, and drops them; then the batch may be written."""
        for worker in self._workers:
            if worker.owes is not None:
                self._await(worker, None)
                self._read(worker)

    def collect(self, timeout_s: float | None = None) -> Answer:
        """Waits for the answers to the last command and joins them in the order of the environments.

        Raises multiprocessing.TimeoutError where `timeout_s` passes first, EnvFailedError where an environment failed.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        for worker in self._workers:
            if worker.owes is not None:
                if not self._await(worker, deadline):
                    raise multiprocessing.TimeoutError(
                        f"No answer within {timeout_s:g} second(s); worker {worker.number} is still busy."
                    )
                self._read(worker)
        return self._join()

    def _await(self, worker: _Worker, deadline: float | None) -> bool:
        """Waits until the worker answered, or False at the deadline. Raises where any worker is gone or stuck."""
        limit = self._limit
        while True:
            interval = _WATCH_INTERVAL_S
            for end in (deadline, limit):
                if end is not None:
                    interval = max(0.0, min(interval, end - time.monotonic()))
            if worker.link.wait(interval):
                return True
            now = time.monotonic()
            for other in self._workers:
                if other.owes is not None and not other.process.is_alive():
                    self._raise_died(other)
            if limit is not None and now >= limit:
                self._raise_stuck(worker)
            if deadline is not None and now >= deadline:
                return False

    def _read(self, worker: _Worker) -> None:
        """Takes the answer that is there."""
        try:
            number, code = worker.link.read_note()
            if code == vec_worker.DONE_WITH_MESSAGE:
                worker.answer = pickle.loads(worker.link.receive())
            else:
                worker.answer = _FINISHED if code == vec_worker.DONE_FINISHED else _NOTHING
        except (EOFError, ConnectionResetError):
            self._raise_died(worker)
        except BaseException:  # Ctrl-C with half an answer read: the rest of it would be taken for the next
            self.close(terminate=True)
            raise
        assert number == worker.owes, f"worker {worker.number} answered {number}, but owes {worker.owes}"
        worker.owes = None

    def _join(self) -> Answer:
        joined = _NOTHING
        for worker in self._workers:
            answer = worker.answer
            if answer is not _NOTHING:
                joined = answer if joined is _NOTHING else _both(joined, answer)
        failures = [(w.number, w.answer.failure) for w in self._workers if w.answer.failure is not None]
        if failures:
            number, report = failures[0]
            error = report.error(number)
            for number, report in failures[1:]:
                error.add_note(f"Worker {number} failed as well: environment {report.index} raised {report.type_name}.")
            raise error
        return joined

    def _activity(self, worker: _Worker) -> tuple[str, int | None]:
        """What a worker was doing, in words, and which environment was at work."""
        at = int(self._doing[worker.number])
        index = at if at in worker.environments and worker.owes is not None else None
        if self._command is None:
            return "while starting", None
        if index is None:
            return "while idle", None
        return f"in {self._command.name.lower()} of environment {index}", index

    def _raise_died(self, worker: _Worker) -> NoReturn:
        worker.process.join(1.0)
        activity, _ = self._activity(worker)
        error = WorkerDiedError(worker.number, worker.environments, worker.process.exitcode, activity)
        self.close(terminate=True)
        raise error

    def _raise_stuck(self, worker: _Worker) -> NoReturn:
        assert self._step_timeout_s is not None
        _, index = self._activity(worker)
        error = StepTimeoutError(worker.number, worker.environments, index, self._step_timeout_s)
        self.close(terminate=True)
        raise error


_NOTHING = Answer()
_FINISHED = Answer(finished=True)


def _both(a: Answer, b: Answer) -> Answer:
    return Answer(
        a.finished or b.finished, a.infos + b.infos, a.finals + b.finals, a.values + b.values, a.failure or b.failure
    )


def _start(context: BaseContext, number: int, block: range, memory: Any) -> _Worker:
    worker_inbox, trainer_outbox = context.Pipe(duplex=False)
    trainer_inbox, worker_outbox = context.Pipe(duplex=False)
    link = WorkerLink(trainer_inbox, trainer_outbox, in_trainer=True)
    process = context.Process(  # type: ignore[attr-defined]
        target=vec_worker.run_worker,
        args=(worker_inbox, worker_outbox, memory),
        kwargs={"trainer_pid": os.getpid(), "worker": number, "first": block.start},
        name=f"env-worker-{number}",
        daemon=True,
    )
    try:
        process.start()
    except BaseException:
        link.close()
        raise
    finally:
        worker_inbox.close()
        worker_outbox.close()
    return _Worker(number, block, process, link)


@contextlib.contextmanager
def _quiet_start(context: BaseContext) -> Iterator[None]:
    """The process-wide settings under which workers start; all are put back.

    - `__main__` is hidden: multiprocessing would import the user's script again in every worker.
    - Numerical libraries read their number of threads while they are loaded.
    - SIGINT is blocked, and workers inherit that until they ignore it: Ctrl-C never meets a half-started worker.
    - The fork server, where this starts it, loads what workers need, so that each worker starts in milliseconds.
    """
    with _starting, clear_mpi_env_vars():
        if context.get_start_method() == "fork":
            _warn_of_threads()
        elif getattr(forkserver._forkserver, "_preload_modules", None) == ["__main__"]:
            context.set_forkserver_preload([vec_worker.__name__])
        environ = {name: os.environ.get(name) for name in _ONE_THREAD}
        os.environ.update(_ONE_THREAD)
        main = sys.modules["__main__"]
        sys.modules["__main__"] = types.ModuleType("__main__")
        can_block = hasattr(signal, "pthread_sigmask")
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}) if can_block else set()
        try:
            yield
        finally:
            sys.modules["__main__"] = main
            for name, value in environ.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value
            if can_block:
                signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def _warn_of_threads() -> None:
    """Warns where forking may copy a lock that a thread holds, which then nobody ever releases."""
    torch = sys.modules.get("torch")
    if threading.active_count() > 1 or (torch is not None and torch.get_num_threads() > 1):
        warnings.warn(
            "start_method='fork' copies this process while other threads run; a lock that one of them holds stays "
            "locked in the workers, which may then hang. Prefer start_method='forkserver'.",
            RuntimeWarning,
            stacklevel=2,
        )

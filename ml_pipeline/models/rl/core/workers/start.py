"""Starts worker processes, with the same behaviour for every start method."""

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import types
import warnings
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing import resource_tracker, util
from multiprocessing.context import BaseContext

import cloudpickle
import gymnasium
from gymnasium.vector.utils import clear_mpi_env_vars

from ml_pipeline.config.errors import UserError, excerpt
from ml_pipeline.models.rl.core.stepping import by_value
from ml_pipeline.models.rl.core.stepping.batch import Batch, BatchLayout, allocate
from ml_pipeline.models.rl.core.stepping.env_block import EnvBlock, EnvFactory
from ml_pipeline.models.rl.core.stepping.errors import FactoryNotPicklableError, span
from ml_pipeline.models.rl.core.stepping.protocol import ResetOrder
from ml_pipeline.models.rl.core.workers import fork_server
from ml_pipeline.models.rl.core.workers.main import BLOCKED_AT_START, WorkerSetup, run_worker
from ml_pipeline.models.rl.core.workers.pipes import WorkerLink
from ml_pipeline.models.rl.core.workers.process import ProcessWorker, end_all
from ml_pipeline.models.rl.core.workers.worker import LocalWorker
from ml_pipeline.runtime.env_limit import ENV_POOL_VARIABLE

ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"), "1"
)
"""Variables of workers: numerical libraries read them while they are loaded."""

_FILES_EACH, _FILES_SPARE = 8, 32  # per worker: 4 while it runs, 8 while it starts; and for the rest
_starting = util.ForkAwareThreadLock()  # process-wide settings are changed while workers start


class WorkerStarter:
    """Makes the workers of one batch, and replacements of those in other processes; owns the batch's memory.

    start_method: None if all are in this process. spin_s: how long a wait, at either end of a link, spins before it
    sleeps.
    Raises UserError if there is too little memory. `start` raises FactoryNotPicklableError if a factory cannot be sent
    to a worker.
    """

    batch: Batch

    def __init__(
        self,
        env_fns: Sequence[EnvFactory],
        layout: BatchLayout,
        start_method: str | None,
        spin_s: float = 0.0,
    ) -> None:
        self._env_fns = env_fns
        self.layout = layout
        self.spin_s = spin_s
        if start_method is None:
            self.batch = layout.place()
            return
        _send_script_by_value()
        self._registered = _registered_here()
        self._context = multiprocessing.get_context(start_method)
        self._memory = allocate(layout.nbytes(), num_envs=layout.num_envs)
        self.batch = layout.place_in(self._memory)

    def here(self, number: int, block: range) -> LocalWorker:
        """A worker with this number in this process."""
        mine = EnvBlock(
            self._env_fns[block.start : block.stop], block.start, self.layout.num_envs, self.layout.autoreset_mode
        )
        return LocalWorker(mine, self.batch, number)

    def start(
        self, blocks: Mapping[int, range], first_reset: Sequence[ResetOrder] | None = None
    ) -> list[ProcessWorker]:
        """Starts workers with these numbers for these blocks; sends each its setup, which is its command 0.

        first_reset: the first resets of the environments, for a single block; None to wait for a command.
        """
        _make_room_for(len(blocks))
        pickled: dict[tuple[int, ...], bytes] = {}
        setups = [self._setup(number, block, first_reset, pickled) for number, block in blocks.items()]
        started: list[ProcessWorker] = []
        try:
            with _quiet_start(self._context):
                for number, block in blocks.items():
                    started.append(self._start(number, block))
            for worker, setup in zip(started, setups, strict=True):
                with contextlib.suppress(BrokenPipeError):  # reading its reply will report that it died
                    worker.link.send(setup)
        except BaseException:
            end_all(started)
            raise
        return started

    def _setup(
        self,
        number: int,
        block: range,
        first_reset: Sequence[ResetOrder] | None,
        pickled: dict[tuple[int, ...], bytes],
    ) -> bytes:
        """pickled: cache of pickled factories by their ids, since most environments have the same factory."""
        mine = [self._env_fns[index] for index in block]
        same = tuple(map(id, mine))
        try:
            factories = pickled[same] = pickled.get(same) or by_value.dumps(mine)
        except Exception as error:  # foreign __getstate__ and __reduce__ may raise anything
            raise FactoryNotPicklableError(
                f"A factory of {span(block)} cannot be sent to a worker: "
                f"{type(error).__name__}: {excerpt(str(error))}. "
                "Create such objects inside the factory, or pass num_workers=0."
            ) from error
        environ = {**os.environ, **ONE_THREAD}
        environ.pop(ENV_POOL_VARIABLE, None)  # processes of its environments must not wait for the same pool
        setup = WorkerSetup(
            number, block.start, self.layout, environ, self.spin_s, self._registered, factories, first_reset
        )
        return by_value.dumps(setup)

    def _start(self, number: int, block: range) -> ProcessWorker:
        worker_inbox, outbox = self._context.Pipe(duplex=False)
        inbox, worker_outbox = self._context.Pipe(duplex=False)
        stacks, worker_stacks = self._context.Pipe(duplex=False)
        ours, theirs = (inbox, outbox, stacks), (worker_inbox, worker_outbox, worker_stacks)
        process = self._context.Process(  # type: ignore[attr-defined]
            target=run_worker, args=(*theirs, self._memory, os.getpid()), name=f"env-worker-{number}", daemon=True
        )
        try:
            # A daemon, such as a process of a multiprocessing.Pool, may not start processes. Workers end anyway.
            multiprocessing.current_process().daemon = False
            process.start()
        except BaseException:
            for end in ours:
                end.close()
            raise
        finally:
            for end in theirs:
                end.close()
        link = WorkerLink(inbox, outbox, worker_runs=process.is_alive)
        return ProcessWorker(
            number, block, process=process, link=link, stacks=stacks, current_env=self.batch.current_env
        )


def _send_script_by_value() -> None:
    """Makes cloudpickle send the classes and functions of the user's script by value; no worker imports the script.

    This is cloudpickle's default, unless multiprocessing started this process and named the script `__mp_main__`.
    """
    script = sys.modules["__main__"]
    if script.__name__ == "__mp_main__":
        cloudpickle.register_pickle_by_value(script)


def _registered_here() -> list[bytes]:
    """The registered environments except Gymnasium's, each pickled, since workers do not run the user's script."""
    registered = []
    for spec in gymnasium.registry.values():
        module = getattr(spec.entry_point, "__module__", spec.entry_point)
        if not str(module).startswith("gymnasium."):
            with contextlib.suppress(Exception):  # those that cannot be pickled can still be made in this process
                registered.append(by_value.dumps(spec))
    return registered


def _make_room_for(n_workers: int) -> None:
    """Raises this process's limit on open files if these workers need it. Raises UserError if the system forbids it."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    open_now = len(os.listdir("/dev/fd")) if os.path.isdir("/dev/fd") else 0
    needed = open_now + n_workers * _FILES_EACH + _FILES_SPARE
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise UserError(
            f"{n_workers} workers need {needed} open files in this process, but the limit is {hard}; pass fewer, "
            "or raise the hard limit (ulimit -Hn)."
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


@contextlib.contextmanager
def _quiet_start(context: BaseContext) -> Iterator[None]:
    """Process-wide settings while workers start; all are restored afterwards.

    - `__main__` is hidden: multiprocessing would import the user's script again in every worker.
    - Numerical libraries get one thread; they read this number while they are loaded.
    - SIGINT, SIGHUP and SIGTERM are blocked, and workers inherit that until they ignore them: no signal hits a
      half-started worker.
    - The tracker of the environments' shared memory belongs to this process, and outlives a worker's group.
    - The fork server, if it is started here, imports the workers' modules, so that workers start in milliseconds.
    """
    with _starting, clear_mpi_env_vars():
        if context.get_start_method() == "fork":
            _warn_of_threads()
        if os.name == "posix":
            resource_tracker.ensure_running()  # its start unblocks signals
        environ = {name: os.environ.get(name) for name in ONE_THREAD}
        os.environ.update(ONE_THREAD)
        main = sys.modules["__main__"]
        sys.modules["__main__"] = types.ModuleType("__main__")
        can_block = hasattr(signal, "pthread_sigmask")
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED_AT_START) if can_block else set()
        try:
            if context.get_start_method() == "forkserver":
                fork_server.ensure_running()
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
    """Warns if forking may copy a lock that a thread holds; in the copy, it would never be released."""
    torch = sys.modules.get("torch")
    if threading.active_count() > 1 or (torch is not None and torch.get_num_threads() > 1):
        warnings.warn(
            "start_method='fork' copies this process while other threads run; a lock that one of them holds stays "
            "locked in the workers, which may then hang. Prefer start_method='forkserver'.",
            RuntimeWarning,
            stacklevel=2,
        )

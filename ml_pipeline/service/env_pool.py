"""`EnvPool`: worker processes that are kept warm, and lent to runs and trials."""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import gymnasium

from ml_pipeline.config.errors import UserError
from ml_pipeline.models.rl.core.vec_env import ParallelEnv
from ml_pipeline.models.rl.core.workers.start import ONE_THREAD
from ml_pipeline.models.rl.core.workers.warm import messages
from ml_pipeline.models.rl.core.workers.warm.lender import DEFAULT_WAIT_S, Lender, lending

_BROKER = "from ml_pipeline.models.rl.core.workers.warm.pool_process import main; main({owner}, {listener})"
_ANSWER_S = 10.0
_CLOSE_S = 5.0
_MANY_ENVS = 1024
"""Environments that are lent to runs where nobody limits them."""


@dataclass(frozen=True, slots=True)
class EnvPoolState:
    """What a pool does at a moment.

    n_envs: environments that are lent. n_workers: processes, of which n_idle wait to be lent. n_waiting: leases that
    wait for room. held: how many environments and workers each holder has: {"process 4711": (8, 2)}. pids: of the
    processes.
    """

    n_envs: int
    n_workers: int
    n_idle: int
    n_waiting: int
    held: dict[str, tuple[int, int]]
    pids: tuple[int, ...]


class EnvPool:
    """Lends warm worker processes, on this machine and to this user's processes.

    max_concurrent_envs: how many environments may be lent at once, all in all. max_workers: how many processes there
    may be; default: as many. idle_s: how long a process waits to be lent until it ends. preload: installed packages
    that every worker has imported from the beginning.

    A process whose environment variable ML_PIPELINE_ENV_POOL holds `address` leases its workers here. A lease that does
    not fit waits, in the order of asking. A worker that comes back closes its environments, is put back as it was, and
    keeps the modules of installed packages; where it cannot be put back, or has failed, another one takes its place.
    Workers that are lent outlive the pool until they are returned, also if this process is killed.

    Raises UserError where the system cannot do this, and for what cannot be preloaded.

    >>> import gymnasium
    >>> with EnvPool(max_concurrent_envs=4) as pool:
    ...     with pool.lease([lambda: gymnasium.make("CartPole-v1")] * 4, num_workers=2) as envs:
    ...         observations, infos = envs.reset(seed=0)
    ...         pool.state().n_envs
    4
    """

    def __init__(
        self,
        max_concurrent_envs: int = 8,
        *,
        max_workers: int | None = None,
        idle_s: float = 300.0,
        preload: Sequence[str] = (),
    ) -> None:
        if (sentence := messages.why_unavailable()) is not None:
            raise UserError(sentence)
        max_workers = max_concurrent_envs if max_workers is None else max_workers
        if max_concurrent_envs < 1 or max_workers < 1 or not idle_s >= 0:
            raise UserError(
                "max_concurrent_envs and max_workers must be at least 1 and idle_s at least 0, but got "
                f"{max_concurrent_envs}, {max_workers} and {idle_s}."
            )
        settings = {
            "max_envs": max_concurrent_envs,
            "max_workers": max_workers,
            "idle_s": idle_s,
            "preload": list(preload),
        }
        self._made_by = os.getpid()
        listener, self.address = messages.listen()
        self._owner, theirs = messages.pair()
        messages.close_in_forks(self._owner)
        try:
            with listener, theirs:
                self._process = _start(theirs, listener)
            messages.send(self._owner, settings)
            answer, _ = messages.receive(self._owner)
        except (OSError, EOFError) as error:
            self.close()
            raise UserError("The process of the pool of warm workers ended while it started.") from error
        if "failed" in answer:
            self.close()
            raise UserError(answer["failed"])

    def lease(
        self,
        env_fns: Sequence[Callable[[], gymnasium.Env]],
        *,
        num_workers: int,
        wait_s: float = DEFAULT_WAIT_S,
        **options: Any,
    ) -> ParallelEnv:
        """A `ParallelEnv` in workers of this pool; closing it returns them. options: as of ParallelEnv.

        Raises LeaseRefused, a UserError, where there is no room within `wait_s`; says who holds how many.
        """
        with lending(Lender(self.address, wait_s=wait_s, is_required=True)):
            return ParallelEnv(env_fns, num_workers=num_workers, **options)

    def state(self) -> EnvPoolState:
        """What it does now. Raises UserError where it is closed or was killed."""
        try:
            with messages.connect(self.address, timeout_s=_ANSWER_S) as connection:
                messages.send(connection, {"tell": True})
                answer, _ = messages.receive(connection)
        except (OSError, EOFError) as error:
            raise UserError(f"The pool of warm workers {self.address} is closed.") from error
        held = {holder: (n_envs, n_workers) for holder, n_envs, n_workers in answer.pop("held")}
        return EnvPoolState(**{**answer, "held": held, "pids": tuple(answer["pids"])})

    def close(self) -> None:
        """Ends the idle workers; lent ones end once they are returned. May be called twice."""
        if self._made_by != os.getpid():
            return
        self._owner.close()
        if hasattr(self, "_process"):
            try:
                self._process.wait(_CLOSE_S)
            except subprocess.TimeoutExpired:  # it waits for what is lent
                threading.Thread(target=self._process.wait, name="end-of-env-pool", daemon=True).start()

    def __enter__(self) -> "EnvPool":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _start(owner: socket.socket, listener: socket.socket) -> "subprocess.Popen[bytes]":
    """Starts the broker, with this process's module path and a session of its own."""
    paths = [os.path.abspath(path) for path in sys.path]
    call = _BROKER.format(owner=owner.fileno(), listener=listener.fileno())
    command = [sys.executable, *_flags(), "-c", f"import sys; sys.path[:] = {paths!r}; {call}"]
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        pass_fds=[owner.fileno(), listener.fileno()],
        start_new_session=True,
        env={**os.environ, **ONE_THREAD},
        cwd="/",
    )


def _flags() -> list[str]:
    """The interpreter's flags, as multiprocessing passes them on."""
    return list(subprocess._args_from_interpreter_flags())  # type: ignore[attr-defined]


def pool_for_runs(max_concurrent_envs: int | None, say: Callable[[str], None]) -> EnvPool | None:
    """The pool that several runs share; None, and a sentence, where the system cannot keep one.

    max_concurrent_envs: None where nobody limits them.
    """
    try:
        return EnvPool(max_concurrent_envs=max_concurrent_envs or _MANY_ENVS)
    except UserError as error:
        say(f"There are no warm workers: {error} Runs start their own.")
        return None

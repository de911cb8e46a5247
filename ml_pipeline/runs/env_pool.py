"""`EnvPool`: a limit on the concurrent environments of runs and trials."""

import os
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

import gymnasium

from ml_pipeline.config.errors import UserError
from ml_pipeline.models.rl.core.vec_env import ParallelEnv
from ml_pipeline.runtime.env_limit import (
    DEFAULT_WAIT_S,
    EnvLeases,
    EnvPoolState,
    LeaseRefused,
    end_limit,
    leasing,
    limit_state,
    new_limit,
)

_MANY_ENVS = 1_000_000
"""The limit for runs without one."""


class EnvPool:
    """A limit on environments, shared by processes of this machine.

    max_concurrent_envs: how many environments may be leased at once, in total.

    A process whose environment variable ML_PIPELINE_ENV_POOL holds `address` counts the environments of its worker
    processes here. A lease that does not fit waits, first come, first served. The leases of a killed process are
    released. The limit ends with this object or this process; leased environments keep running.

    >>> import gymnasium
    >>> with EnvPool(max_concurrent_envs=4) as pool:
    ...     with pool.lease([lambda: gymnasium.make("CartPole-v1")] * 4, num_workers=2) as envs:
    ...         observations, infos = envs.reset(seed=0)
    ...         pool.state().n_envs
    4
    """

    def __init__(self, max_concurrent_envs: int = 8) -> None:
        """Raises UserError if its file cannot be written."""
        if max_concurrent_envs < 1:
            raise UserError(f"max_concurrent_envs must be at least 1, but got {max_concurrent_envs}.")
        self._made_by = os.getpid()
        try:
            self.address = new_limit(max_concurrent_envs)
        except OSError as error:
            raise UserError(f"The file of the pool of environments cannot be written: {error}.") from error

    def lease(
        self,
        env_fns: Sequence[Callable[[], gymnasium.Env]],
        *,
        num_workers: int,
        wait_s: float = DEFAULT_WAIT_S,
        **options: Any,
    ) -> ParallelEnv:
        """A `ParallelEnv` that counts here until it is closed. options: passed to ParallelEnv.

        Raises LeaseRefused, a UserError, if there is no room within `wait_s`; it lists the holders.
        """
        with leasing(EnvLeases(self.address, wait_s=wait_s, is_required=True)):
            return ParallelEnv(env_fns, num_workers=num_workers, **options)

    def state(self) -> EnvPoolState:
        """Its current state. Raises UserError if it is closed."""
        try:
            return limit_state(self.address)
        except LeaseRefused as error:
            raise UserError(f"The pool of environments {self.address} is closed.") from error

    def close(self) -> None:
        """End the limit; leased environments keep running. May be called twice."""
        if self._made_by == os.getpid():
            end_limit(self.address)

    def __enter__(self) -> "EnvPool":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def pool_for_runs(max_concurrent_envs: int | None, say: Callable[[str], None]) -> EnvPool | None:
    """The pool that several runs share; if it cannot be made, says so and returns None.

    max_concurrent_envs: None for no limit.
    """
    try:
        return EnvPool(max_concurrent_envs=max_concurrent_envs or _MANY_ENVS)
    except UserError as error:
        say(f"Runs share no limit on environments: {error}")
        return None

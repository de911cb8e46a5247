"""Steps a batch by two crews at once: a share in the trainer's own process, while workers step the rest."""

from collections.abc import Sequence
from typing import Any

from ml_pipeline.models.rl.core.env_block import Answer, Command
from ml_pipeline.models.rl.core.local_crew import LocalCrew
from ml_pipeline.models.rl.core.worker_pool import WorkerPool


class SharedCrew:
    """`here` has the first environments of a batch, `pool` all others. It owns both."""

    def __init__(self, here: LocalCrew, pool: WorkerPool) -> None:
        self._here, self._pool = here, pool
        self._n_here = len(here.envs)
        self.batch = pool.batch
        self.misfits = here.misfits + pool.misfits

    @property
    def closed(self) -> bool:
        """Also after a worker failed."""
        return self._pool.closed

    def settle(self) -> None:
        """Waits for answers of workers that were given up, and drops them."""
        self._pool.settle()

    def post(self, command: Command, common: Any = None, per_env: Sequence[Any] | None = None) -> None:
        """Sends the workers off, and keeps the command for `collect`."""
        self._pool.post(command, common, per_env)
        self._here.post(command, common, None if per_env is None else per_env[: self._n_here])

    def collect(self, timeout_s: float | None = None) -> Answer:
        """Steps the share of this process, then waits for the workers, at most for `timeout_s`.

        What fails here leaves the workers' answers owed; the next command waits for them and drops them.
        """
        try:
            own = self._here.collect()
            others = self._pool.collect(timeout_s)
        finally:
            if self._pool.closed:
                self._here.close()
        return others if own.is_plain() and not own.finished else own.followed_by(others)

    def close(self, *, timeout_s: float | None = None, terminate: bool = False) -> None:
        """Ends the workers, then closes the environments of this process. May be called twice."""
        try:
            self._pool.close(timeout_s=timeout_s, terminate=terminate)
        finally:
            self._here.close()

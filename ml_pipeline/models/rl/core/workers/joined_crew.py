"""Several crews over consecutive parts of one batch, as one crew: this process and workers, or groups of workers."""

import contextlib
from collections.abc import Sequence
from typing import Any

from ml_pipeline.models.rl.core.stepping.protocol import Answer, Command
from ml_pipeline.models.rl.core.workers.local_crew import LocalCrew
from ml_pipeline.models.rl.core.workers.pool import NOTHING, WorkerPool, wait_for_any


class JoinedCrew:
    """`crews` have the environments of a batch in order, and are owned: where one of them closes, all do."""

    def __init__(self, crews: Sequence[LocalCrew | WorkerPool]) -> None:
        self.crews = crews
        self._by_haste = crews[::-1]  # this process's share is first, and begins when the workers are at theirs
        self.batch = crews[0].batch
        self.misfits = [misfit for crew in crews for misfit in crew.misfits]

    @property
    def closed(self) -> bool:
        """Also after a worker failed."""
        return any(crew.closed for crew in self.crews)

    def settle(self) -> None:
        """Waits for answers of workers that were given up, and drops them."""
        for crew in self.crews:
            crew.settle()

    def post(self, command: Command, common: Any = None, per_env: Sequence[Any] | None = None) -> None:
        """Sends workers off; what this process does itself, it does in `collect`."""
        try:
            for crew in self._by_haste:
                crew.post(command, common, per_env)
        except BaseException:
            self._close_together()
            raise

    def collect(self, timeout_s: float | None = None) -> Answer:
        """Collects from each, waiting for workers at most `timeout_s` each.

        What fails leaves others' answers owed; the next command waits for them and drops them.
        """
        joined = NOTHING
        try:
            for crew in self.crews:
                answer = crew.collect(timeout_s)
                if answer is not NOTHING and (answer.finished or not answer.is_plain()):
                    joined = answer if joined is NOTHING else joined.followed_by(answer)
        except BaseException:
            self._close_together()
            raise
        return joined

    def post_to(self, number: int, command: Command, per_env: Sequence[Any] | None = None) -> None:
        """Sends one crew off, while others may be under way."""
        try:
            self.crews[number].post(command, None, per_env)
        except BaseException:
            self._close_together()
            raise

    def collect_from(self, number: int) -> Answer:
        """Waits for one crew."""
        try:
            return self.crews[number].collect()
        except BaseException:
            self._close_together()
            raise

    def wait_for_any(self, numbers: Sequence[int]) -> list[int]:
        """Waits until one of these crews, all of them under way, can be collected from at once; which can."""
        crews = [self.crews[number] for number in numbers]
        while not (ready := [number for number, crew in zip(numbers, crews, strict=True) if crew.is_ready()]):
            wait_for_any([crew for crew in crews if isinstance(crew, WorkerPool)])
        return ready

    def close(self, *, timeout_s: float | None = None, terminate: bool = False) -> None:
        """Ends workers, and closes the environments of this process. May be called twice."""
        errors: list[Exception] = []
        for crew in self._by_haste:
            try:
                crew.close(timeout_s=timeout_s, terminate=terminate)
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def _close_together(self) -> None:
        if self.closed:
            with contextlib.suppress(Exception):  # why it has to close is what is told
                self.close(terminate=True)

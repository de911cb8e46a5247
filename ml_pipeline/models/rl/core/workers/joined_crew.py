"""Several crews over consecutive parts of one batch, as one crew: this process and workers, or groups of workers."""

import contextlib
from collections.abc import Sequence
from typing import Any

from ml_pipeline.models.rl.core.stepping.protocol import Command, Reply
from ml_pipeline.models.rl.core.workers.local_crew import LocalCrew
from ml_pipeline.models.rl.core.workers.pool import NOTHING, WorkerPool, wait_for_any


class JoinedCrew:
    """`crews` have the environments of a batch in order, and are owned: where one of them closes, all do."""

    def __init__(self, crews: Sequence[LocalCrew | WorkerPool]) -> None:
        self.crews = crews
        self._remote_first = crews[::-1]  # this process's share is first, and begins when the workers are at theirs
        self.batch = crews[0].batch
        self.space_mismatches = [mismatch for crew in crews for mismatch in crew.space_mismatches]

    @property
    def closed(self) -> bool:
        """Also after a worker failed."""
        return any(crew.closed for crew in self.crews)

    def drain_replies(self) -> None:
        """Waits for replies of workers that were given up, and drops them."""
        for crew in self.crews:
            crew.drain_replies()

    def post(self, command: Command, common: Any = None, per_env: Sequence[Any] | None = None) -> None:
        """Sends workers off; what this process does itself, it does in `collect`."""
        try:
            for crew in self._remote_first:
                crew.post(command, common, per_env)
        except BaseException:
            self._close_together()
            raise

    def collect(self, timeout_s: float | None = None) -> Reply:
        """Collects from each, waiting for workers at most `timeout_s` each.

        What fails leaves others' replies owed; the next command waits for them and drops them.
        """
        joined = NOTHING
        try:
            for crew in self.crews:
                reply = crew.collect(timeout_s)
                if reply is not NOTHING and (reply.finished or not reply.is_plain()):
                    joined = reply if joined is NOTHING else joined.followed_by(reply)
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

    def collect_from(self, number: int) -> Reply:
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
        for crew in self._remote_first:
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

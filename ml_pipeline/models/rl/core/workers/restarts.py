"""The episodes of a lost worker: they are truncated at their last observation, and new ones begin."""

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from ml_pipeline.models.rl.core.stepping.batch import Batch, copy_of, copy_rows
from ml_pipeline.models.rl.core.stepping.errors import VectorEnvError
from ml_pipeline.models.rl.core.stepping.protocol import STEP, Command, Reply, ResetOrder
from ml_pipeline.models.rl.core.stepping.results import ObservationRows, observation_rows
from ml_pipeline.models.rl.core.workers.worker import Worker

_KEPT_FAILURES = 100  # the last ones are kept until they are read
_FAILURES_IN_A_ROW = 3  # of one worker without a step in between; after these, it is not restarted


class Restarts:
    """Records replaced workers, and how the next step reports the lost episodes.

    It keeps the last seeds and observations of every environment, since a worker may die while it overwrites them. The
    rewards of a lost step are 0, and the info "worker_restarted" is True. New seeds depend only on the old seed and the
    number of losses of the environment, so they are the same in every run.

    failures: the failures that restarts handled, until they are read. unreported: by the number of a replaced worker,
    the reply to its first reset; the next step reports the loss.
    """

    def __init__(self, batch: Batch) -> None:
        self.total = 0
        self.failures: deque[VectorEnvError] = deque(maxlen=_KEPT_FAILURES)
        self.unreported: dict[int, Reply] = {}
        self.in_a_row: Counter[int] = Counter()  # by worker: its failures since its last step
        self._losses: Counter[int] = Counter()  # of each environment
        self._command: Command = STEP  # the last one
        self._wanted = [True] * batch.layout.num_envs  # which environments the last reset was for
        self._batch = batch
        self._same_step = batch.layout.autoreset_mode == AutoresetMode.SAME_STEP
        n = batch.layout.num_envs
        self._last: Any = [None] * n if batch.observations is None else copy_of(batch.observations)
        self._seeds: list[int | None] = [None] * n

    def is_remedy(self, worker: int) -> bool:
        """Whether to replace worker number `worker`, which has just failed; not if it keeps failing."""
        self.in_a_row[worker] += 1
        return self.in_a_row[worker] <= _FAILURES_IN_A_ROW

    def move_to(self, batch: Batch) -> None:
        """Continues with other workers, which step the same environments in another batch; nothing is unreported."""
        assert not self.unreported
        self._batch = batch
        self.in_a_row.clear()

    def add(self, environments: range, failure: VectorEnvError) -> None:
        """Counts the replacement of the worker of these environments. failure: the error of the old worker."""
        self._losses.update(environments)
        self.failures.append(failure.with_traceback(None))
        self.total += 1

    def new_episodes(self, environments: range) -> list[ResetOrder]:
        """The first resets of the replacement's environments."""
        seeds = [_successor_seed(self._seeds[index], self._losses[index] + 1) for index in environments]
        return [ResetOrder(seed, wanted=True, expired=not self._same_step) for seed in seeds]

    def begin(self, workers: list[Worker], command: Command, per_env: Sequence[Any] | None) -> list[Worker]:
        """Records a command, and the seeds of a reset; returns the workers to send it to.

        A worker that reports a loss in this step does not step.
        """
        self._command = command
        if command is STEP:
            return [worker for worker in workers if worker.number not in self.unreported]
        if command == Command.RESET and per_env is not None:
            self._wanted = [order.wanted for order in per_env]
            new = (order.seed for order in per_env)
            self._seeds = [old if seed is None else seed for seed, old in zip(new, self._seeds, strict=True)]
        return workers

    def account(self, workers: Iterable[Worker]) -> None:
        """Reports losses after these workers have replied: in a step, or not at all if all their episodes are reset.

        Then it stores the observations of the replies.
        """
        command = self._command
        for worker in workers:
            number, environments = worker.number, worker.environments
            if command is STEP:
                if number in self.unreported:
                    worker.reply = self._truncated(environments, self.unreported.pop(number))
                else:
                    self.in_a_row[number] = 0
            elif command == Command.SET_STATES or (
                command == Command.RESET and all(self._wanted[index] for index in environments)
            ):
                self.unreported.pop(number, None)
            if command in (STEP, Command.RESET) and worker.reply.failure is None:
                self._remember(environments, worker.reply)

    def _remember(self, environments: range, reply: Reply) -> None:
        start, stop = environments.start, environments.stop
        if self._batch.observations is None:
            self._last[start:stop] = reply.values
        else:
            copy_rows(self._batch.observations, self._last, start, stop)

    def _truncated(self, block: range, reset: Reply) -> Reply:
        """The reply to a step in which `block` was lost. reset: the first reply of its replacement."""
        batch, reply = self._batch, Reply(finished=True, values=reset.values)
        batch.rewards[block.start : block.stop] = 0.0
        batch.terminated[block.start : block.stop] = False
        batch.truncated[block.start : block.stop] = True
        reset_infos = dict(reset.infos) if self._same_step else {}
        reply.infos = [(index, {**reset_infos.get(index, {}), "worker_restarted": True}) for index in block]
        if batch.observations is None:
            last = self._last[block.start : block.stop]
            if self._same_step:
                reply.finals = [(index, seen, {}) for index, seen in zip(block, last, strict=True)]
            else:
                reply.values = last
        else:
            target = self._rows(batch.final_obs if self._same_step else batch.observations)
            rows = self._rows(self._last)
            for index in block:
                target.write(index, rows.read(index))
        return reply

    def _rows(self, arrays: Any) -> ObservationRows:
        return observation_rows(self._batch.layout.observation_space, arrays)


def _successor_seed(seed: int | None, n_losses: int) -> int | None:
    return None if seed is None else int(np.random.SeedSequence([seed, n_losses]).generate_state(1)[0])

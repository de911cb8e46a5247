"""Divides a batch among this process and workers, and makes the crew that steps it."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ml_pipeline.models.rl.core.stepping.batch import Batch, BatchLayout
from ml_pipeline.models.rl.core.stepping.env_block import EnvBlock, EnvFactory
from ml_pipeline.models.rl.core.workers.choice import Division
from ml_pipeline.models.rl.core.workers.joined_crew import JoinedCrew
from ml_pipeline.models.rl.core.workers.local_crew import LocalCrew
from ml_pipeline.models.rl.core.workers.pool import WorkerPool
from ml_pipeline.models.rl.core.workers.start import WorkerStarter


@dataclass(frozen=True, slots=True)
class Part:
    """Consecutive environments, stepped by so many workers; by this process where there are none."""

    environments: range
    n_workers: int

    @property
    def n_blocks(self) -> int:
        """How many blocks they form: one a process."""
        return max(1, self.n_workers)


def split(whole: range, n_parts: int) -> list[range]:
    """Contiguous parts, the first ones larger by one where it does not divide.

    >>> split(range(7), 3)
    [range(0, 3), range(3, 5), range(5, 7)]
    """
    small, n_large = divmod(len(whole), n_parts)
    starts = [whole.start + part * small + min(part, n_large) for part in range(n_parts + 1)]
    return [range(start, stop) for start, stop in itertools.pairwise(starts)]


def divide(num_envs: int, num_groups: int, division: Division) -> list[Part]:
    """The parts of a batch: the groups, or this process's share and the workers' where there is one group.

    >>> [(part.environments, part.n_workers) for part in divide(5, 1, Division(n_workers=1, steps_here=True))]
    [(range(0, 3), 0), (range(3, 5), 1)]
    >>> [(part.environments, part.n_workers) for part in divide(4, 2, Division(n_workers=3, steps_here=False))]
    [(range(0, 2), 2), (range(2, 4), 1)]
    """
    everything = range(num_envs)
    if division.n_workers and division.steps_here:
        here = split(everything, division.n_workers + 1)[0]
        return [Part(here, 0), Part(everything[len(here) :], division.n_workers)]
    groups = split(everything, num_groups)
    workers = split(range(division.n_workers), num_groups)
    return [Part(group, min(len(group), len(share))) for group, share in zip(groups, workers, strict=True)]


@dataclass(slots=True)
class CrewMaker:
    """Makes crews over one batch. See `ParallelEnv` for what the fields mean; the starter has none without workers."""

    env_fns: Sequence[EnvFactory]
    layout: BatchLayout
    starter: WorkerStarter | None
    step_timeout_s: float | None
    on_failure: Literal["raise", "restart"]

    def make(self, parts: Sequence[Part]) -> tuple[LocalCrew | WorkerPool | JoinedCrew, list[WorkerPool]]:
        """The crew of all parts, and the pools in it. Workers start side by side, this process's environments last."""
        batch = self.layout.place() if self.starter is None else self.starter.batch
        crews: list[LocalCrew | WorkerPool | None] = [None] * len(parts)
        pools: list[WorkerPool] = []
        number = 0
        try:
            for position, part in enumerate(parts):
                if part.n_workers:
                    crews[position] = pool = self._pool(part, number)
                    pools.append(pool)
                    number += part.n_workers
            for pool in pools:
                pool.finish_start()
            for position, part in enumerate(parts):
                if not part.n_workers:
                    crews[position] = self._here(part, number, batch)
                    number += 1
        except BaseException:
            for crew in crews:
                if crew is not None:
                    crew.close(terminate=True)
            raise
        made = [crew for crew in crews if crew is not None]
        return (made[0] if len(made) == 1 else JoinedCrew(made)), pools

    def _pool(self, part: Part, first_number: int) -> WorkerPool:
        assert self.starter is not None
        blocks = dict(enumerate(split(part.environments, part.n_workers), start=first_number))
        return WorkerPool(self.starter, blocks, step_timeout_s=self.step_timeout_s, on_failure=self.on_failure)

    def _here(self, part: Part, number: int, batch: Batch) -> LocalCrew:
        environments = part.environments
        env_fns = self.env_fns[environments.start : environments.stop]
        block = EnvBlock(env_fns, environments.start, self.layout.num_envs, self.layout.autoreset_mode)
        return LocalCrew(block, self.layout, batch, number)

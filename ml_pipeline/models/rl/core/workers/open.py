"""Opens the pool of workers of a batch, for any division of the environments."""

import contextlib
import functools
import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import gymnasium
from gymnasium import Space
from gymnasium.vector import AutoresetMode

from ml_pipeline.models.rl.core.stepping.batch import BatchLayout
from ml_pipeline.models.rl.core.stepping.env_block import EnvBlock, EnvFactory
from ml_pipeline.models.rl.core.workers.choice import HERE, Division
from ml_pipeline.models.rl.core.workers.pool import WorkerPool
from ml_pipeline.models.rl.core.workers.process import ProcessWorker, end_all
from ml_pipeline.models.rl.core.workers.start import WorkerStarter
from ml_pipeline.models.rl.core.workers.worker import LocalWorker, local_worker
from ml_pipeline.runtime.cores import usable_cores
from ml_pipeline.runtime.env_limit import EnvLeases, current_leases

_SPIN_S = 2e-4  # long enough for a small policy to answer; workers sleep through updates and other long waits


@dataclass(frozen=True, kw_only=True)
class PoolOpener:
    """Opens pools over the same environments; the settings are those of `ParallelEnv`."""

    env_fns: Sequence[EnvFactory]
    autoreset_mode: AutoresetMode
    start_method: str
    num_groups: int = 1
    step_timeout_s: float | None = None
    leases: EnvLeases | None = field(default_factory=current_leases)
    """The limit on environments, if any; shared by all pools, so that environments that move are counted once."""

    def open(
        self,
        division: Division,
        spaces: tuple[Space, Space] | None,
        *,
        on_failure: Literal["raise", "restart"] = "raise",
        not_these: Sequence[gymnasium.Env] = (),
    ) -> WorkerPool:
        """A pool with this division.

        spaces: of an observation and an action; None takes those of the first environment, which this process then
        steps. not_these: environments that are still in use; a factory that returns one of them again fails.
        """
        lease = None
        if self.leases is not None:
            lease = self.leases.take(len(self.env_fns), in_processes=division.n_workers > 0)
        try:
            pool = self._open(division, spaces, on_failure, not_these)
        except BaseException:
            if lease is not None:
                lease.give_back()
            raise
        pool.lease = lease
        return pool

    def _open(
        self,
        division: Division,
        spaces: tuple[Space, Space] | None,
        on_failure: Literal["raise", "restart"],
        not_these: Sequence[gymnasium.Env],
    ) -> WorkerPool:
        env_fns = self._fresh_env_fns(not_these) if division.steps_here else self.env_fns
        if division == HERE and self.num_groups == 1:
            return open_here(env_fns, self.autoreset_mode, spaces)
        assert spaces is not None
        groups = divide(len(env_fns), self.num_groups, division)
        layout = BatchLayout(len(env_fns), *spaces, self.autoreset_mode, sum(map(len, groups)))
        spin_s = _SPIN_S if division.n_workers + 1 <= usable_cores() else 0.0
        start_method = self.start_method if division.n_workers else None
        starter = WorkerStarter(env_fns, layout, start_method, spin_s)
        return open_pool(starter, division, groups, step_timeout_s=self.step_timeout_s, on_failure=on_failure)

    def scratch(self, not_these: Sequence[gymnasium.Env] = ()) -> EnvBlock:
        """Another copy of the first environment, for a trial; close it afterwards."""
        return EnvBlock(self._fresh_env_fns(not_these)[:1], 0, len(self.env_fns), self.autoreset_mode)

    def _fresh_env_fns(self, not_these: Sequence[gymnasium.Env]) -> Sequence[EnvFactory]:
        """The factories, which fail if they return one of these environments again."""
        if not not_these:
            return self.env_fns
        in_use = frozenset(id(env.unwrapped) for env in not_these)
        return [functools.partial(_fresh, env_fn, in_use, os.getpid()) for env_fn in self.env_fns]


def _fresh(env_fn: EnvFactory, in_use: frozenset[int], process: int) -> gymnasium.Env:
    env = env_fn()
    if os.getpid() == process and id(getattr(env, "unwrapped", None)) in in_use:
        raise ValueError("the factory returned an environment that is in use; make it inside the factory, not before")
    return env


def open_here(
    env_fns: Sequence[EnvFactory], autoreset_mode: AutoresetMode, spaces: tuple[Space, Space] | None = None
) -> WorkerPool:
    """A pool of one worker, which steps every environment in this process.

    spaces: of the batch, for an observation and an action; None takes those of the first environment.
    """
    worker, batch = local_worker(env_fns, autoreset_mode, spaces)
    return WorkerPool([worker], batch)


def open_pool(
    starter: WorkerStarter,
    division: Division,
    groups: Sequence[Sequence[range]],
    *,
    step_timeout_s: float | None = None,
    on_failure: Literal["raise", "restart"] = "raise",
) -> WorkerPool:
    """A pool of one worker per block of `groups`, which `divide` made for the same division.

    Processes start in parallel, while this process makes its own environments.
    """
    blocks = [block for group in groups for block in group]
    n_here = int(division.steps_here) if division.n_workers else len(blocks)
    here: list[LocalWorker] = []
    processes: list[ProcessWorker] = []
    if division.n_workers:
        processes = starter.start(dict(enumerate(blocks[n_here:])))
    try:
        for number, block in enumerate(blocks[:n_here], start=len(processes)):
            here.append(starter.here(number, block))
    except BaseException:
        end_all(processes)
        for worker in here:
            with contextlib.suppress(Exception):
                worker.close()
        raise
    return WorkerPool(
        [*here, *processes],
        starter.batch,
        group_sizes=[len(group) for group in groups],
        starter=starter,
        step_timeout_s=step_timeout_s,
        on_failure=on_failure,
    )


def split(whole: range, n_parts: int) -> list[range]:
    """Contiguous parts; the first ones are larger by one if the length is not a multiple of n_parts.

    >>> split(range(7), 3)
    [range(0, 3), range(3, 5), range(5, 7)]
    """
    small, n_large = divmod(len(whole), n_parts)
    starts = [whole.start + part * small + min(part, n_large) for part in range(n_parts + 1)]
    return [range(start, stop) for start, stop in itertools.pairwise(starts)]


def divide(num_envs: int, num_groups: int, division: Division) -> list[list[range]]:
    """The blocks of environments of each group: one per worker; the first is for this process if it steps a share.

    Without workers, this process steps one block per group.

    >>> divide(5, 1, Division(n_workers=1, steps_here=True))
    [[range(0, 3), range(3, 5)]]
    >>> divide(4, 2, Division(n_workers=3, steps_here=False))
    [[range(0, 1), range(1, 2)], [range(2, 4)]]
    """
    n_workers = division.n_workers
    if not n_workers:
        return [[group] for group in split(range(num_envs), num_groups)]
    sizes = [len(share) for share in split(range(n_workers + division.steps_here), num_groups)]
    groups = zip(split(range(num_envs), num_groups), sizes, strict=True)
    return [split(group, min(len(group), size)) for group, size in groups]  # no more workers than environments

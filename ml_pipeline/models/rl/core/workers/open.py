"""Opens the pool of workers of a batch."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from gymnasium.vector import AutoresetMode

from ml_pipeline.models.rl.core.stepping.batch import BatchLayout
from ml_pipeline.models.rl.core.stepping.env_block import EnvBlock, EnvFactory
from ml_pipeline.models.rl.core.workers.groups import Partition
from ml_pipeline.models.rl.core.workers.pool import WorkerPool
from ml_pipeline.models.rl.core.workers.process import ProcessWorker, end_all
from ml_pipeline.models.rl.core.workers.start import WorkerStarter
from ml_pipeline.models.rl.core.workers.worker import LocalWorker, local_worker
from ml_pipeline.runtime.cores import usable_cores

_SPIN_S = 2e-4  # long enough for a small policy to answer; the update and all else that is longer is slept through


@dataclass(frozen=True, slots=True)
class ProcessOptions:
    """How worker processes start, how long a step may take them, and what to do where one fails; see `ParallelEnv`."""

    start_method: str
    step_timeout_s: float | None = None
    on_failure: Literal["raise", "restart"] = "raise"

    @property
    def expect_failures(self) -> bool:
        """Whether steps are expected to hang or to kill their process: only a process can be stopped and started."""
        return self.step_timeout_s is not None or self.on_failure == "restart"


def open_here(env_fns: Sequence[EnvFactory], autoreset_mode: AutoresetMode) -> WorkerPool:
    """A pool of one worker, which steps every environment in this process."""
    worker, batch = local_worker(env_fns, autoreset_mode)
    return WorkerPool([worker], batch)


def open_pool(
    env_fns: Sequence[EnvFactory], layout: BatchLayout, partition: Partition, options: ProcessOptions
) -> WorkerPool:
    """A pool of the workers of `partition`, of which `layout` has as many blocks.

    Processes start side by side, while this process makes its own environments.
    """
    blocks = partition.blocks[partition.n_here :]
    starter: WorkerStarter | None = None
    processes: list[ProcessWorker] = []
    here: list[LocalWorker] = []
    if blocks:
        spin_s = _SPIN_S if len(blocks) + 1 <= usable_cores() else 0.0
        starter = WorkerStarter(env_fns, layout, options.start_method, spin_s)
        processes = starter.start(dict(enumerate(blocks)))
    batch = layout.place() if starter is None else starter.batch
    try:
        for number, block in enumerate(partition.blocks[: partition.n_here], start=len(processes)):
            mine = EnvBlock(env_fns[block.start : block.stop], block.start, layout.num_envs, layout.autoreset_mode)
            here.append(LocalWorker(mine, batch, number))
    except BaseException:
        end_all(processes)
        for worker in here:
            with contextlib.suppress(Exception):
                worker.close()
        raise
    return WorkerPool(
        [*here, *processes],
        batch,
        groups=partition.groups,
        starter=starter,
        step_timeout_s=options.step_timeout_s,
        on_failure=options.on_failure,
    )

"""Opens the pool of workers of a batch."""

import contextlib
from collections.abc import Sequence
from typing import Literal

from gymnasium.vector import AutoresetMode

from ml_pipeline.models.rl.core.stepping.env_block import EnvFactory
from ml_pipeline.models.rl.core.workers.choice import Division
from ml_pipeline.models.rl.core.workers.pool import WorkerPool
from ml_pipeline.models.rl.core.workers.process import ProcessWorker, end_all
from ml_pipeline.models.rl.core.workers.start import WorkerStarter
from ml_pipeline.models.rl.core.workers.worker import LocalWorker, local_worker


def open_here(env_fns: Sequence[EnvFactory], autoreset_mode: AutoresetMode) -> WorkerPool:
    """A pool of one worker, which steps every environment in this process."""
    worker, batch = local_worker(env_fns, autoreset_mode)
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

    Processes start side by side, while this process makes its own environments.
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

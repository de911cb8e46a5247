"""The process of one rank of a worker's trials (the worker is rank 0), which joins one run after another.

It reports to the worker that it is ready to join the others, or why its part of a run has failed: {"ready": true}
{"failed": "..."}. The worker stops all ranks together, so this process ignores signals; it always ends with the worker.
"""

import traceback
from pathlib import Path

from ml_pipeline.config.errors import UserError, excerpt
from ml_pipeline.config.files import convert_settings
from ml_pipeline.jobs.child import Message, Parent, serve
from ml_pipeline.runs.ranks.launcher import FAILED, RANK_LOST
from ml_pipeline.runs.train_config import TrainConfig, train_config
from ml_pipeline.runtime.interrupts import ignoring_signals

_LONGEST_REASON = 2_000


def take_part(worker: Parent) -> int:
    """Follow orders until a run ends in an error, which also ends this process; return its exit code.

    An order has the rank, the size of the group, its port, and all settings of the run.
    """
    from ml_pipeline.models.rl.core.arguments import measuring_once
    from ml_pipeline.models.rl.distributed.rank_group import RankGroup
    from ml_pipeline.models.rl.ranks import RankLost
    from ml_pipeline.runs.ranks.context import SharedError
    from ml_pipeline.runs.ranks.start import consistent
    from ml_pipeline.runs.run import Run
    from ml_pipeline.tuning.trials.trial_task import TaskSource, TrialTask

    tasks = TaskSource()
    while True:
        order = worker.next_order()
        checkpoint = None if order["checkpoint"] is None else Path(order["checkpoint"])
        try:
            config = config_in(order)
            task = tasks.task(config)
            worker.tell(ready=True)
            with (
                RankGroup.follow(order["port"], order["rank"], order["size"], timeout_s=order["timeout_s"]) as group,
                measuring_once(tasks.step_cost(config)),
            ):
                trial_task = TrialTask(task, is_resumed=checkpoint is not None)
                Run(config, trial_task, checkpoint=checkpoint, ranks=consistent(group, task)).train()
        except (RankLost, SharedError):  # the worker reports it
            return RANK_LOST
        except Exception as error:
            traceback.print_exc()
            reason = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
            worker.tell(failed=excerpt(reason, _LONGEST_REASON))
            return FAILED


def config_in(order: Message) -> TrainConfig:
    """The configuration of the run."""
    return train_config(convert_settings(order["settings"], TrainConfig, source=Path("the order")))


def main(worker: Parent) -> int:
    """Return the exit code."""
    with ignoring_signals():
        return take_part(worker)


if __name__ == "__main__":
    serve(main)

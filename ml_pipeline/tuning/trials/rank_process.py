"""The process of one rank of a worker's trials, rank 0 being the worker: it takes part in one run after another.

It reads orders from stdin, and tells on stdout, a JSON object per line, that it is ready to meet the others, or why its
part of a run has failed: {"ready": true}  {"failed": "..."}. The worker stops all ranks together, so this process heeds
no signals; it ends with the worker, when stdin ends, however that ended.

python -m ml_pipeline.tuning.trials.rank_process
"""

import os
import queue
import sys
import threading
import traceback
from pathlib import Path

from ml_pipeline.config.errors import UserError, excerpt
from ml_pipeline.config.files import convert_settings
from ml_pipeline.runs.ranks.launcher import FAILED, RANK_LOST
from ml_pipeline.runs.train_config import TrainConfig, train_config
from ml_pipeline.runtime.interrupts import ignoring_signals
from ml_pipeline.tuning.event_channel import EventChannel
from ml_pipeline.tuning.trials.rank_order import RankOrder, order_in

_LONGEST_REASON = 2_000

Orders = queue.SimpleQueue[RankOrder]


def take_part(orders: Orders, channel: EventChannel) -> int:
    """Follow orders until a run ends in an error, after which this process is not used again; return its exit code."""
    from ml_pipeline.models.rl.core.arguments import measuring_once
    from ml_pipeline.models.rl.distributed.rank_group import RankGroup
    from ml_pipeline.models.rl.distributed.ranks import RankLost
    from ml_pipeline.runs.ranks.context import SharedError
    from ml_pipeline.runs.ranks.start import consistent
    from ml_pipeline.runs.run import Run
    from ml_pipeline.tuning.trials.task_source import TaskSource
    from ml_pipeline.tuning.trials.trial_task import TrialTask

    tasks = TaskSource()
    while True:
        order = orders.get()
        sys.path += [path for path in order.sys_path if path not in sys.path]
        checkpoint = None if order.checkpoint is None else Path(order.checkpoint)
        try:
            config = train_config(convert_settings(order.settings, TrainConfig, source=Path("the order")))
            task = tasks.task(config)
            channel.tell(ready=True)
            with (
                RankGroup.follow(order.port, order.rank, order.size, timeout_s=order.timeout_s) as group,
                measuring_once(tasks.step_cost(config)),
            ):
                trial_task = TrialTask(task, is_resumed=checkpoint is not None)
                Run(config, trial_task, checkpoint=checkpoint, ranks=consistent(group, task)).train()
        except (RankLost, SharedError):  # the worker tells of it
            return RANK_LOST
        except Exception as error:
            traceback.print_exc()
            reason = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
            channel.tell(failed=excerpt(reason, _LONGEST_REASON))
            return FAILED


def _read_orders(orders: Orders) -> None:
    with os.fdopen(os.dup(0), "rb") as stdin:
        for line in stdin:
            orders.put(order_in(line))
    os._exit(RANK_LOST)  # the worker is gone, or wants no more of this process


def main() -> int:
    """Return the exit code."""
    channel = EventChannel()
    orders: Orders = queue.SimpleQueue()
    with ignoring_signals():
        threading.Thread(target=_read_orders, args=(orders,), name="orders", daemon=True).start()
        return take_part(orders, channel)


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)  # torch takes a second to end, and threads of libraries need not end first

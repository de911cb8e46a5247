"""The processes that train a worker's trials together with it: `TrialRanks`."""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.settings import flatten
from ml_pipeline.jobs.child import Child
from ml_pipeline.models.rl.distributed.rank_group import RankGroup
from ml_pipeline.models.rl.ranks import RankLost
from ml_pipeline.runs.ranks.context import RankContext
from ml_pipeline.runs.ranks.launcher import FAILED, RANK_LOST, lost_ranks
from ml_pipeline.runs.ranks.start import consistent
from ml_pipeline.runs.tasks import Task
from ml_pipeline.runs.train_config import TrainConfig
from ml_pipeline.runtime.rank_variables import variables_of_rank

_RANK = "ml_pipeline.tuning.trials.rank_process"
_GRACE_S = 5.0  # from the loss of a rank to the end of those that notice it by themselves


class RankFailed(UserError):
    """A rank failed by itself, for example because its environments raise: the run would fail again."""


class TrialRanks:
    """Starts ranks when a run needs them, and keeps them for the next run: importing torch takes seconds.

    If the worker is killed by any signal, their stdin closes, which ends them.
    """

    def __init__(self) -> None:
        self._processes: list[Child] = []

    def start(self, size: int) -> None:
        """Start size - 1 processes, which import torch in the background. Raises UserError if one cannot be started."""
        if len(self._processes) != size - 1 or any(each.exit_code is not None for each in self._processes):
            self.close()
        # Otherwise torch logs a page of calls if a rank is lost.
        quiet = {"TORCH_CPP_LOG_LEVEL": os.environ.get("TORCH_CPP_LOG_LEVEL", "ERROR")}
        for rank in range(len(self._processes) + 1, size):
            environment = {**quiet, **variables_of_rank(rank, size)}
            try:
                self._processes.append(Child(_RANK, purpose="a rank", environment=environment))
            except UserError:
                self.close()
                raise

    @contextlib.contextmanager
    def training(self, config: TrainConfig, task: Task, checkpoint: Path | None) -> Iterator[RankContext | None]:
        """Within the block, all ranks join a `Run` with these arguments; None if config.run.n_processes is 1.

        Raises RankLost, with the way the rank ended, if one was killed or does not answer, and RankFailed if one
        failed. After any error, the next run starts new processes.
        """
        size, timeout_s = config.run.n_processes, config.run.rank_timeout_s
        if size == 1:
            yield None
            return
        self.start(size)
        try:
            with RankGroup.lead(
                size, tell_port=lambda port: self._order(config, checkpoint, port), timeout_s=timeout_s
            ) as group:
                yield consistent(group, task)
        except RankLost as lost:
            raise self._why_lost(lost) from lost
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the processes. May be called twice."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.close()
        self._processes = []

    def _order(self, config: TrainConfig, checkpoint: Path | None, port: int) -> None:
        """Send the run to all ranks, and wait until they are about to join, to notice if one is lost before that."""
        for rank, process in enumerate(self._processes, start=1):
            process.send(
                {
                    "rank": rank,
                    "size": config.run.n_processes,
                    "port": port,
                    "timeout_s": config.run.rank_timeout_s,
                    "settings": flatten(config),
                    "checkpoint": checkpoint,
                }
            )
        for process in self._processes:
            event = process.next_event()
            if event is None or "ready" not in event.message:
                raise RankLost("A rank ended before it joined the others.")

    def _why_lost(self, lost: RankLost) -> UserError:
        """The error to raise in place of `lost`, with the way the processes ended. Ends them."""
        deadline = time.monotonic() + _GRACE_S
        ended = [process.wait(max(0.0, deadline - time.monotonic())) for process in self._processes]
        codes = [RANK_LOST, *(RANK_LOST if code is None else code for code in ended)]
        if FAILED in codes:
            rank = codes.index(FAILED)
            told = (message["failed"] for message in self._processes[rank - 1].events() if "failed" in message)
            failed = RankFailed(next(told, f"Rank {rank} failed."))
            self.close()
            return failed
        self.close()
        return lost if all(code == RANK_LOST for code in codes) else RankLost(f"{lost_ranks(codes)}.")

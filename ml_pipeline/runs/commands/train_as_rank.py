"""The command `train` in a process that is one of several ranks."""

import os
import sys
from contextlib import suppress

from ml_pipeline.config.run import RunConfig
from ml_pipeline.monitoring.console import outlive_readers
from ml_pipeline.runs.commands.train_run import train_run
from ml_pipeline.runs.commands.typed_command import TypedCommand, words_of_ranks
from ml_pipeline.runs.ranks.exit_codes import FAILED, RANK_LOST, STOPPED
from ml_pipeline.runs.ranks.rank_info import RankInfo, end_with_launcher
from ml_pipeline.runs.train_command_line import TrainFlags
from ml_pipeline.runtime.garbage import keeping_imports
from ml_pipeline.runtime.interrupts import Interrupted, exiting_at_once


def train_as_rank(place: RankInfo, flags: TrainFlags, *, prog: str, told_by: str) -> int:
    """Train together with the other ranks; the first one alone prints, but for errors that the others do not know.

    prog: how the command calls itself; told_by: what errors of this rank begin with. Returns the exit code.
    """
    with exiting_at_once(), keeping_imports():
        settings = {**vars(RunConfig()), **flags.given}
        # Where another rank ends, torch's C++ logs a page of calls; the error that follows says it in a sentence.
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

        from ml_pipeline.models.rl.distributed.rank_group import RankGroup
        from ml_pipeline.models.rl.distributed.ranks import RankLost
        from ml_pipeline.runs.ranks.context import RankContext, SharedError
        from ml_pipeline.runs.ranks.start import start_of_ranks

    outlive_readers()
    end_with_launcher()
    command = TypedCommand(told_by, words_of_ranks(place, prog, settings))
    try:
        with RankGroup.join(timeout_s=settings["rank_timeout_s"]) as group:
            ranks = RankContext(group, launch=place.launch)
            start, task = start_of_ranks(flags, ranks, place)
            code = train_run(start, task, command, ranks, place=place)
            if code == FAILED:  # of which this rank has told the reason, and the others know nothing
                group.close("its training failed")
            elif not ranks.is_first:
                with suppress(Interrupted):  # by a crash at its own end it would take the first one's report along
                    group.channel.wait_for_end_of(0)
    except RankLost as error:
        print(f"{told_by}: {error}", file=sys.stderr)
        return RANK_LOST
    except SharedError:
        if place.rank == 0:
            raise
        return 2
    # torchrun takes any other code for a failure, and would start again what was asked to stop.
    return 0 if place.started_by_torchrun and code in STOPPED else code

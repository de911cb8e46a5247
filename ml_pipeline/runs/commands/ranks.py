"""The command `train` in several processes: it starts the ranks and waits for their end, or is one of them."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any

from ml_pipeline.config.run import RunConfig
from ml_pipeline.models.rl.algorithms.interruption import stop_on_signals
from ml_pipeline.monitoring.console import outlive_readers
from ml_pipeline.runs.commands.train_run import MODULE, TypedCommand, train_run, words_of_ranks
from ml_pipeline.runs.ranks.launcher import FAILED, RANK_LOST, STOPPED
from ml_pipeline.runs.ranks.rank_info import RankInfo, end_with_launcher
from ml_pipeline.runs.train_command_line import TrainFlags, train_start
from ml_pipeline.runtime.interrupts import Interrupted, exiting_at_once, keeping_imports

if TYPE_CHECKING:
    from ml_pipeline.runs.ranks.launcher import Launcher


def launch_ranks(flags: TrainFlags, argv: Sequence[str], *, prog: str) -> int:
    """Start the ranks, each with these arguments; return the exit code. prog: what sentences begin with.

    Raises UserError about whatever cannot be used, before any rank starts.
    """
    if not flags.resume:
        train_start(flags)  # what is wrong with the settings is told once
    settings = {**vars(RunConfig()), **flags.given}
    outlive_readers()

    def say(sentence: str) -> None:
        print(f"{prog}: {sentence}", file=sys.stderr, flush=True)

    with ExitStack() as until_the_end:
        launcher = until_the_end.enter_context(_launcher(settings, argv, say, until_the_end))
        until_the_end.enter_context(stop_on_signals(launcher.pass_on))
        try:
            return launcher.run()
        except Interrupted as stop:  # the second signal
            launcher.insist()
            code = launcher.wait_for_end()
            return stop.exit_code if code is None or code in STOPPED else code


def _launcher(
    settings: Mapping[str, Any], argv: Sequence[str], say: Callable[[str], None], until_the_end: ExitStack
) -> "Launcher":
    """What starts the ranks. What it needs besides is closed with `until_the_end`."""
    arguments = ["-m", MODULE, *argv]
    size, max_restarts = settings["n_processes"], settings["max_restarts"]
    if settings["launcher"] == "local":
        from ml_pipeline.runs.ranks.launcher import LocalLauncher

        return LocalLauncher([sys.executable, *arguments], size=size, max_restarts=max_restarts, say=say)
    from ml_pipeline.runs.ranks.ray_launcher import RayLauncher, ray_cluster

    with exiting_at_once():  # puts back the handlers that Ray replaces
        ray = until_the_end.enter_context(ray_cluster())
    return RayLauncher(
        arguments,
        size=size,
        max_restarts=max_restarts,
        say=say,
        write=_write_lines,
        ray=ray,
        with_gpu=settings["device"] == "cuda",
    )


def _write_lines(stream: str, lines: bytes) -> None:
    """Lines that a rank on another machine wrote to its "stdout" or "stderr"."""
    print(lines.decode(errors="replace"), end="", file=getattr(sys, stream), flush=True)


def train_as_rank(place: RankInfo, flags: TrainFlags, *, prog: str, told_by: str) -> int:
    """Train together with the other ranks; the first one alone prints, but for errors that the others do not know.

    prog: how the command calls itself; told_by: what errors of this rank begin with. Returns the exit code.
    """
    with exiting_at_once(), keeping_imports():
        settings = {**vars(RunConfig()), **flags.given}
        # Where another rank ends, torch's C++ logs a page of calls; the error that follows says it in a sentence.
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

        from ml_pipeline.models.rl.distributed.rank_group import RankGroup
        from ml_pipeline.models.rl.ranks import RankLost
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

"""The command `train` in several processes: starts the ranks and waits for their end, or runs as one of them."""

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
    """Start the ranks, each with these arguments; return the exit code. prog: prefix of messages.

    Raises UserError if a setting is invalid, before any rank starts.
    """
    if not flags.resume:
        train_start(flags)  # report invalid settings only once
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
    """The launcher of the ranks. `until_the_end` closes its other resources."""
    arguments = ["-m", MODULE, *argv]
    size, max_restarts = settings["n_processes"], settings["max_restarts"]
    if settings["launcher"] == "local":
        from ml_pipeline.runs.ranks.launcher import LocalLauncher

        return LocalLauncher([sys.executable, *arguments], size=size, max_restarts=max_restarts, say=say)
    from ml_pipeline.runs.ranks.ray_launcher import RayLauncher, ray_cluster

    with exiting_at_once():  # restores the handlers that Ray replaces
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
    """Print lines that a remote rank wrote to its "stdout" or "stderr"."""
    print(lines.decode(errors="replace"), end="", file=getattr(sys, stream), flush=True)


def train_as_rank(place: RankInfo, flags: TrainFlags, *, prog: str, told_by: str) -> int:
    """Train together with the other ranks; only the first prints, except for errors of a single rank.

    prog: the command's name; told_by: prefix of this rank's errors. Returns the exit code.
    """
    with exiting_at_once(), keeping_imports():
        settings = {**vars(RunConfig()), **flags.given}
        # If another rank ends, torch's C++ logs a page of calls; the error that follows needs one sentence.
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
            if code == FAILED:  # this rank has printed the reason, which the others lack
                group.close("its training failed")
            elif not ranks.is_first:
                with suppress(Interrupted):  # a crash at its own end would cost the first one's report
                    group.channel.wait_for_end_of(0)
    except RankLost as error:
        print(f"{told_by}: {error}", file=sys.stderr)
        return RANK_LOST
    except SharedError:
        if place.rank == 0:
            raise
        return 2
    # torchrun takes any other code for a failure, and would restart ranks after a stop.
    return 0 if place.started_by_torchrun and code in STOPPED else code

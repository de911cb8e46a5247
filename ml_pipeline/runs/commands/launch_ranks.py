"""The command `train` with --n-processes: it starts the ranks where --launcher says, and waits for their end."""

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from ml_pipeline.config.run import RunConfig
from ml_pipeline.models.rl.algorithms.interruption import stop_on_signals
from ml_pipeline.monitoring.console import outlive_readers
from ml_pipeline.runs.commands.typed_command import MODULE
from ml_pipeline.runs.ranks.exit_codes import STOPPED
from ml_pipeline.runs.train_command_line import TrainFlags, train_start
from ml_pipeline.runtime.interrupts import Interrupted, exiting_at_once

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
        from ml_pipeline.runs.ranks.local_launcher import LocalLauncher

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

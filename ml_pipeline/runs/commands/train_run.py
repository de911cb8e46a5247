"""One run of the command `train`: what it prints, and its exit code."""

import sys
from contextlib import closing
from typing import TYPE_CHECKING

from ml_pipeline.config.wording import shown_path
from ml_pipeline.runs.commands.terminal import StoppedBySignals, Terminal
from ml_pipeline.runs.commands.typed_command import TypedCommand
from ml_pipeline.runs.folder import LATEST_CHECKPOINT
from ml_pipeline.runs.ranks.rank_info import RankInfo
from ml_pipeline.runs.train_command_line import TrainStart
from ml_pipeline.runtime.garbage import keeping_imports
from ml_pipeline.runtime.interrupts import Interrupted, exiting_at_once

if TYPE_CHECKING:
    from ml_pipeline.runs.ranks.context import RankContext
    from ml_pipeline.runs.tasks import Task


def train_run(
    start: TrainStart,
    task: "Task",
    command: TypedCommand,
    ranks: "RankContext | None" = None,
    *,
    place: RankInfo | None = None,
) -> int:
    """Train, and return the exit code. ranks: those that train together, of which the first alone prints.

    place: of a rank. Raises UserError if a setting is invalid.
    """
    with exiting_at_once(), keeping_imports():  # torch, which takes seconds
        from ml_pipeline.models.rl.core.stepping.errors import VectorEnvError
        from ml_pipeline.models.rl.update.ppo_update import TrainingFailed
        from ml_pipeline.runs.run import Run

    is_first = place is None or place.rank == 0
    if is_first:
        print(*task.notices, sep="\n", end="\n" if task.notices else "")
    terminal = Terminal(place, notice=start.notice) if is_first else StoppedBySignals(place)
    run = Run(
        start.config,
        task,
        checkpoint=start.checkpoint,
        trust_checkpoint=start.trust_checkpoint,
        sinks=[terminal] if isinstance(terminal, Terminal) else [],
        listener=terminal,
        stop=terminal.stop,
        ranks=ranks,
        started_with=start.started_with,
    )
    try:
        with closing(terminal):
            result = run.train()
    except (VectorEnvError, TrainingFailed) as error:
        hint = [f"  {command.resume(run.result.folder)}"] if run.result and run.result.global_step else []
        print(f"{command.prog}: {error}", *getattr(error, "__notes__", ()), *hint, sep="\n", file=sys.stderr)
        return 1
    except Interrupted as stop:
        if run.result is None:
            raise
        print(f"{command.prog}: {run.result.reason or f'{stop} The run had finished.'}", file=sys.stderr)
        if (run.result.folder / LATEST_CHECKPOINT).exists():
            print(f"Go on with:\n  {command.resume(run.result.folder)}", file=sys.stderr)
        return stop.exit_code
    if result.status == "stopped":
        assert terminal.stop.signal is not None  # nothing else requests a stop
        if is_first:
            print(
                f"Saved {shown_path(result.folder / LATEST_CHECKPOINT)} at step {result.global_step:,}; go on with:\n"
                f"  {command.resume(result.folder)}"
            )
        return 128 + terminal.stop.signal
    if is_first:
        print(f"{result.report}\n\nWritten to {shown_path(result.folder)}", flush=True)
    return 0

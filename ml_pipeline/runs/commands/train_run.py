"""One run of the command `train`: its output, its stop by signals, the hint on resuming, and its exit code."""

import os
import shlex
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ml_pipeline.config.wording import shown_path
from ml_pipeline.models.rl.algorithms.interruption import stop_on_signals
from ml_pipeline.monitoring.listener import RunListener, RunStart
from ml_pipeline.monitoring.progress import RunConsole
from ml_pipeline.runs.folder import LATEST_CHECKPOINT
from ml_pipeline.runs.ranks.rank_info import RankInfo
from ml_pipeline.runs.stop import StopRequest
from ml_pipeline.runs.train_command_line import TrainStart
from ml_pipeline.runtime.interrupts import Interrupted, ending_signals, exiting_at_once, ignore, keeping_imports

if TYPE_CHECKING:
    from ml_pipeline.runs.ranks.context import RankContext
    from ml_pipeline.runs.tasks import Task


PROG = "train_ppo.py"
MODULE = "ml_pipeline.train_ppo"


class TypedCommand(NamedTuple):
    """prog: prefix of its errors. words: the command that starts it again, without arguments."""

    prog: str
    words: list[str]

    def resume(self, folder: Path) -> str:
        """The command that continues the run in a folder."""
        shown = str(shown_path(folder))
        words = [*self.words, "--resume", f"./{shown}" if shown.startswith("-") else shown]
        return subprocess.list2cmdline(words) if os.name == "nt" else shlex.join(words)


def usual_words(prog: str) -> list[str]:
    """The words that start the command named `prog`.

    >>> usual_words("ml-pipeline train"), usual_words(PROG)
    (['ml-pipeline', 'train'], ['python', '-m', 'ml_pipeline.train_ppo'])
    """
    return prog.split() if prog != PROG else ["python", "-m", MODULE]


def words_of_ranks(place: RankInfo, prog: str, settings: Mapping[str, Any]) -> list[str]:
    """The words that start these ranks again; with torchrun, as on one machine."""
    if place.started_by_us:
        launcher = [] if settings["launcher"] == "local" else ["--launcher", settings["launcher"]]
        return [*usual_words(prog), *launcher, "--n-processes", str(settings["n_processes"])]
    return ["torchrun", "--nproc-per-node", str(place.local_size), "-m", MODULE]


class StoppedBySignals(RunListener):
    """During training, Ctrl-C, SIGTERM and SIGHUP request a stop. Prints nothing, for ranks other than the first."""

    def __init__(self, place: RankInfo | None = None) -> None:
        """place: of a rank. One signal may reach it twice, since a cluster or systemd signals all processes and
        their launcher forwards it; the copy does not end the run without saving."""
        super().__init__()
        self.stop = StopRequest()
        self._place = place
        self._ignored: Sequence[int] = ()
        self._listening = ExitStack()

    def started(self, start: RunStart) -> None:
        self._listening.enter_context(stop_on_signals(self.request_stop))
        super().started(start)

    def trained(self) -> None:
        self.close()

    def close(self) -> None:
        self._listening.close()
        ignore(self._ignored)  # a copy may be late

    def request_stop(self, number: int) -> None:
        """Stop the run after its step because of this signal."""
        self._ignored = _copies_of(number, self._place)
        ignore(self._ignored)
        self.stop.request(str(Interrupted(number)), signal=number)


class Terminal(StoppedBySignals, RunConsole):
    """The run on the terminal."""

    def __init__(self, place: RankInfo | None = None, *, notice: str | None = None) -> None:
        """notice: printed first, after all settings are accepted."""
        super().__init__(place)
        self._notice = notice

    def started(self, start: RunStart) -> None:
        if self._notice is not None:
            self.say(self._notice)
        super().started(start)

    def close(self) -> None:
        StoppedBySignals.close(self)
        RunConsole.close(self)

    def request_stop(self, number: int) -> None:
        super().request_stop(number)
        with suppress(RuntimeError):  # the signal interrupted the main thread's own write to the terminal
            again = "" if set(self._ignored) == set(ending_signals()) else "; interrupt again to stop without saving"
            self.say(f"Stopping after this step and saving{again}.")


def _copies_of(number: int, place: RankInfo | None) -> Sequence[int]:
    """Signals that may be copies of one that a rank received: torchrun forwards others as SIGTERM, our launchers
    the same one; they forward a user's second signal as a different one."""
    if place is None or place.launch is None:
        return ()
    return [number] if place.started_by_us else ending_signals()


def train_run(
    start: TrainStart,
    task: "Task",
    command: TypedCommand,
    ranks: "RankContext | None" = None,
    *,
    place: RankInfo | None = None,
) -> int:
    """Train, and return the exit code. ranks: train together; only the first prints.

    place: of a rank. Raises UserError if a setting is invalid.
    """
    with exiting_at_once(), keeping_imports():  # torch, which takes seconds
        from ml_pipeline.models.rl.algorithms.callbacks import CallbackFailed
        from ml_pipeline.models.rl.core.stepping.errors import VectorEnvError
        from ml_pipeline.models.rl.transitions import TrainingFailed
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
        if isinstance(error, CallbackFailed) and error.__cause__ is not None:
            traceback.print_exception(error.__cause__)
        hint = [f"  {command.resume(run.result.folder)}"] if run.result and run.result.global_step else []
        print(f"{command.prog}: {error}", *getattr(error, "__notes__", ()), *hint, sep="\n", file=sys.stderr)
        return 1
    except Interrupted as stop:
        if run.result is None:
            raise
        print(f"{command.prog}: {run.result.reason or f'{stop} The run had finished.'}", file=sys.stderr)
        if (run.result.folder / LATEST_CHECKPOINT).exists():
            print(f"Resume with:\n  {command.resume(run.result.folder)}", file=sys.stderr)
        return stop.exit_code
    if result.status == "stopped":
        assert terminal.stop.signal is not None  # nothing else requests a stop
        if is_first:
            print(
                f"Saved {shown_path(result.folder / LATEST_CHECKPOINT)} at step {result.global_step:,}; resume with:\n"
                f"  {command.resume(result.folder)}"
            )
        return 128 + terminal.stop.signal
    if is_first:
        print(f"{result.report}\n\nWritten to {shown_path(result.folder)}", flush=True)
    return 0

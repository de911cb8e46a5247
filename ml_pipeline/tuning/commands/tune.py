"""Command: search the settings of `train` by trials, several at once; the same command again goes on.

ml-pipeline tune --study-name first --env-id CartPole-v1 --total-timesteps 20000 --n-trials 20
ml-pipeline tune --study-name eurusd_5m --data-dir data/5m --timeframe 5m --n-envs 12 --n-trials 500 --n-jobs auto
"""

import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ml_pipeline.commands import COMMANDS
from ml_pipeline.config.errors import CheckFailed
from ml_pipeline.config.wording import counted, shown_path
from ml_pipeline.monitoring.console import entry, outlive_readers
from ml_pipeline.runs.stop import StopRequest
from ml_pipeline.runtime.interrupts import Interrupted, exiting_at_once
from ml_pipeline.tuning.config import TuneOrder, parse_tune
from ml_pipeline.tuning.optuna_extra import require_optuna
from ml_pipeline.tuning.study_files import feature_warnings, warnings_in_words
from ml_pipeline.tuning.workers.trial_lines import TrialLines, closing_lines, finished

if TYPE_CHECKING:
    from ml_pipeline.tuning.workers.run_study import StudyRun

PROG = "tune"


def main(argv: list[str], *, prog: str = PROG) -> int:
    """Run the study until it has its trials: 0; 128 + the signal that stopped it; 1 where trials keep failing; 2, after
    one sentence, where something given cannot be used or nothing can be saved."""
    with entry(prog):
        with exiting_at_once():
            order = parse_tune(argv, prog=prog, description=COMMANDS["tune"].sentence)
            require_optuna()

            from ml_pipeline.models.rl.algorithms.interruption import stop_on_signals
            from ml_pipeline.tuning.workers.run_study import StudyRun

        outlive_readers()
        terminal = _Terminal(order)
        with stop_on_signals(terminal.request_stop):
            run = terminal.run = StudyRun(order, listener=terminal, stop=terminal.stop)
            folder = run.folder
            _say(_opening(order, run, folder))
            for sentence in warnings_in_words(feature_warnings(run.study)):
                _say(sentence)
            try:
                has_ended = run.run()
            except (CheckFailed, Interrupted):
                _tell_end(run, order, folder)
                raise
            _tell_end(run, order, folder)
        if not has_ended:
            _say(f"Go on with:\n  {shlex.join([*prog.split(), *argv])}")
            number = terminal.stopped_by or terminal.stop.signal  # the latter of `ml-pipeline stop STUDY`
            assert number is not None
            return 128 + number
        _say("Next:\n" + "\n".join(f"  {command}" for command in _next_commands(order)))
    return 0


class _Terminal:
    """The study on the terminal. The first signal requests a stop, and a second one ends the command at once."""

    def __init__(self, order: TuneOrder) -> None:
        self.stop = StopRequest()
        self.stopped_by: int | None = None
        self.run: StudyRun | None = None
        self._lines = TrialLines(order.tune.n_trials if order.tune.continue_trial is None else None)

    def request_stop(self, number: int) -> None:
        if self.stopped_by is None:
            self.stopped_by = number
        self.stop.request(str(Interrupted(self.stopped_by)))
        with suppress(RuntimeError):  # the signal met the main thread while it was writing to the terminal
            self.say("Stopping: each trial saves after its step, and goes on next time. Once more to end at once.")

    def trial_ended(self, end: Mapping[str, Any]) -> None:
        assert self.run is not None
        if (line := self._lines.line(end, self.run.trials())) is not None:
            _say(line)

    def say(self, sentence: str) -> None:
        _say(sentence)


def _opening(order: TuneOrder, run: "StudyRun", folder: Path) -> str:
    where = f"in {shown_path(folder)}"
    if order.tune.continue_trial is not None:
        return f"Study {order.study_name}: continues trial {order.tune.continue_trial}, {where}"
    done = finished(run.trials())
    at_once = f"{counted(run.n_jobs, 'trial')} at once"
    return f"Study {order.study_name}: {done} of {counted(order.tune.n_trials, 'trial')} finished; {at_once}, {where}"


def _tell_end(run: "StudyRun", order: TuneOrder, folder: Path) -> None:
    for line in closing_lines(order.study_name, run.trials(), folder=folder):
        _say(line)
    for sentence in run.remarks():
        _say(sentence)


def _next_commands(order: TuneOrder) -> Sequence[str]:
    root = [] if order.tune.root is None else ["--root", str(order.tune.root)]
    return [shlex.join(["ml-pipeline", name, order.study_name, *root]) for name in ("report", "promote")]


def _say(sentence: str) -> None:
    print(sentence, flush=True)

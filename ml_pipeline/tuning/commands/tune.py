"""Command: search the settings of `train` with trials, several at once; the same command again continues the study.

ml-pipeline tune --study-name first --env-id CartPole-v1 --total-timesteps 20000 --n-trials 20
ml-pipeline tune --study-name eurusd_5m --data-dir data/5m --timeframe 5m --n-envs 12 --n-trials 500 --n-jobs auto
"""

import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ml_pipeline.commands import COMMANDS
from ml_pipeline.config.errors import CheckFailed
from ml_pipeline.config.wording import counted, shown_path, without_traceback, written
from ml_pipeline.monitoring.console import entry, outlive_readers
from ml_pipeline.runs.stop import StopRequest
from ml_pipeline.runtime.interrupts import Interrupted, exiting_at_once
from ml_pipeline.tuning.config import TuneOrder, parse_tune
from ml_pipeline.tuning.study_files import (
    feature_warnings,
    is_try,
    kind_of,
    known_folders,
    n_finished,
    require_optuna,
    warnings_in_words,
)

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

    from ml_pipeline.tuning.trials.run_study import StudyRun


PROG = "tune"


def main(argv: list[str], *, prog: str = PROG) -> int:
    """Run the study until it has its trials, and return 0; 128 + the signal if a signal stopped it; 1 if trials keep
    failing; 2, after one sentence, if a setting cannot be used or nothing can be saved."""
    with entry(prog):
        with exiting_at_once():
            order = parse_tune(argv, prog=prog, description=COMMANDS["tune"].sentence)
            require_optuna()

            from ml_pipeline.models.rl.algorithms.interruption import stop_on_signals
            from ml_pipeline.tuning.trials.run_study import StudyRun

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
            _say(f"Continue with:\n  {shlex.join([*prog.split(), *argv])}")
            number = terminal.stopped_by or terminal.stop.signal  # the latter if `ml-pipeline stop STUDY` stopped it
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
        with suppress(RuntimeError):  # the signal interrupted the main thread while it was writing to the terminal
            self.say("Stopping: each trial saves after its step, to continue next time. Stop again to end at once.")

    def trial_ended(self, end: Mapping[str, Any]) -> None:
        assert self.run is not None
        if (line := self._lines.line(end, self.run.trials())) is not None:
            _say(line)

    def say(self, sentence: str) -> None:
        _say(sentence)


def _opening(order: TuneOrder, run: "StudyRun", folder: Path) -> str:
    where = f"in {shown_path(folder)}"
    if order.tune.continue_trial is not None:
        return f"Study {order.study_name}: continuing trial {order.tune.continue_trial}, {where}"
    done = n_finished(run.trials())
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


_LONGEST_REASON = 300
_NUMBER = re.compile(r"\d+")


class TrialLines:
    """One line per trial, without repeats. n_trials: total of the study; None: do not show the count."""

    def __init__(self, n_trials: int | None) -> None:
        self._n_trials = n_trials
        self._reasons: Counter[str] = Counter()

    def line(self, end: Mapping[str, Any], trials: "Sequence[FrozenTrial]") -> str | None:
        """How a trial ended; None if that was already printed for an earlier trial or when it was queued again.

        end: the fields of a `TrialEnd`.
        """
        number, state, value = end["number"], end["state"], end["value"]
        if state == "complete":
            how = f"{shown_value(value)} in {end['seconds']:,.1f} s"
        elif state == "pruned":
            how = f"pruned at step {end['global_step']:,} with {shown_value(value)}"
        elif state == "stopped":
            how = f"stopped at step {end['global_step']:,}, saved, and queued again"
        elif state == "lost":
            return None
        else:
            return self._reason_line(number, state, end["reason"])
        best = best_trial(trials)
        beside = "" if best is None else f"; best {shown_value(best.value)} by trial {best.number}"
        count = "" if self._n_trials is None else f"[{n_finished(trials)}/{self._n_trials}] "
        return f"{count}Trial {number}: {how}{beside}"

    def _reason_line(self, number: int, state: str, reason: str | None) -> str | None:
        reason = without_traceback(reason or "No reason was recorded.", _LONGEST_REASON)
        kind = f"{state} {_NUMBER.sub('#', reason)}"
        self._reasons[kind] += 1
        if self._reasons[kind] > 1:
            return None
        if state == "failed":
            return f"Trial {number} failed: {reason}"
        return f"Trial {number} was skipped, because its settings do not fit together; the study continues: {reason}"


def closing_lines(name: str, trials: "Sequence[FrozenTrial]", *, folder: Path) -> list[str]:
    """The result of a study so far."""
    kinds = Counter(map(_kind, trials))
    counts = [
        f"{kinds[kind]} {kind}" for kind in ("complete", "pruned", "failed", "impossible", "continued") if kinds[kind]
    ]
    lines = [f"Study {name}: {counted(n_finished(trials), 'trial')} finished ({', '.join(counts) or 'none'})."]
    told = [
        without_traceback(each.user_attrs.get("reason") or "", _LONGEST_REASON)
        for each in trials
        if _kind(each) == "failed"
    ]
    last = {_NUMBER.sub("#", reason): reason for reason in told}
    reasons = Counter(_NUMBER.sub("#", reason) for reason in told)
    lines += [f"  {times} x {last[kind]}" for kind, times in reasons.most_common(5) if kind]
    best = best_trial(trials)
    if best is None:
        return [*lines, "No trial has completed, so there is no best trial."]
    folders = known_folders(folder, best.user_attrs)
    where = f" in {shown_path(folders[0])}" if folders else ""
    if len(folders) > 1:
        where = f", the median of {len(folders)} runs,{where} to {folders[-1].name}"
    lines.append(f"Best value {shown_value(best.value)}, by trial {best.number}{where}")
    settings = best.user_attrs.get("settings") or best.params
    return [*lines, *(f"  {name}: {written(value)}" for name, value in settings.items())]


def best_trial(trials: "Sequence[FrozenTrial]") -> "FrozenTrial | None":
    """The complete trial with the largest value; the first one of a tie."""
    complete = [each for each in trials if _kind(each) in {"complete", "continued"}]
    return max(complete, key=lambda each: (each.value, -each.number), default=None)


def shown_value(value: float | None) -> str:
    """
    >>> shown_value(187.4331), shown_value(0.000123456), shown_value(None)
    ('187.4', '0.0001235', 'no value')
    """
    return "no value" if value is None else f"{value:,.4g}"


def _kind(trial: "FrozenTrial") -> str:
    kind = kind_of(trial)
    return kind if is_try(trial) or kind in {"void", "impossible"} else "continued"

"""How a study reads in the terminal: a line per trial, each reason of a failure once, and the best at the end."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ml_pipeline.config.wording import counted, shown_path, without_traceback, written
from ml_pipeline.tuning.study_files import known_folders

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

_LONGEST_REASON = 300
_NUMBER = re.compile(r"\d+")


class TrialLines:
    """Lines of the trials of one call; remembers what was said. n_trials: of the study in all; None: not counted."""

    def __init__(self, n_trials: int | None) -> None:
        self._n_trials = n_trials
        self._reasons: Counter[str] = Counter()

    def line(self, end: Mapping[str, Any], trials: "Sequence[FrozenTrial]") -> str | None:
        """How a trial ended; None where that was said, of an earlier one or when it was queued again.

        end: a `TrialEnd`, by its names.
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
        count = "" if self._n_trials is None else f"[{finished(trials)}/{self._n_trials}] "
        return f"{count}Trial {number}: {how}{beside}"

    def _reason_line(self, number: int, state: str, reason: str | None) -> str | None:
        reason = without_traceback(reason or "No reason is known.", _LONGEST_REASON)
        kind = f"{state} {_NUMBER.sub('#', reason)}"
        self._reasons[kind] += 1
        if self._reasons[kind] > 1:
            return None
        if state == "failed":
            return f"Trial {number} failed: {reason}"
        skipped = "is skipped, since the settings drawn for it do not fit together; the study goes on"
        return f"Trial {number} {skipped}: {reason}"


def closing_lines(name: str, trials: "Sequence[FrozenTrial]", *, folder: Path) -> list[str]:
    """What a study has come to."""
    kinds = Counter(map(_kind, trials))
    counts = [
        f"{kinds[kind]} {kind}" for kind in ("complete", "pruned", "failed", "impossible", "continued") if kinds[kind]
    ]
    lines = [f"Study {name}: {counted(finished(trials), 'trial')} finished ({', '.join(counts) or 'none'})."]
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
        return [*lines, "No trial is complete, so that none is the best."]
    folders = known_folders(folder, best.user_attrs)
    where = f" in {shown_path(folders[0])}" if folders else ""
    if len(folders) > 1:
        where = f", the median of {len(folders)} runs,{where} to {folders[-1].name}"
    lines.append(f"Best value {shown_value(best.value)}, by trial {best.number}{where}")
    settings = best.user_attrs.get("settings") or best.params
    return [*lines, *(f"  {name}: {written(value)}" for name, value in settings.items())]


def best_trial(trials: "Sequence[FrozenTrial]") -> "FrozenTrial | None":
    """The complete one with the largest value; of equal ones the first."""
    complete = [each for each in trials if _kind(each) in {"complete", "continued"}]
    return max(complete, key=lambda each: (each.value, -each.number), default=None)


def finished(trials: "Sequence[FrozenTrial]") -> int:
    return sum(_kind(each) in {"complete", "pruned"} for each in trials)


def shown_value(value: float | None) -> str:
    """
    >>> shown_value(187.4331), shown_value(0.000123456), shown_value(None)
    ('187.4', '0.0001235', 'no value')
    """
    return "no value" if value is None else f"{value:,.4g}"


def _kind(trial: "FrozenTrial") -> str:
    if trial.user_attrs.get("void"):
        return "void"
    if trial.user_attrs.get("impossible"):
        return "impossible"
    if trial.user_attrs.get("continues") is not None:
        return "continued"
    is_repeated = trial.state.name == "FAIL" and trial.user_attrs.get("reason") == "stopped"
    return "stopped" if is_repeated else {"FAIL": "failed"}.get(trial.state.name, trial.state.name.lower())

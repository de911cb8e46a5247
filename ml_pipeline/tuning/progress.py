"""study.json: the progress of a study, computed from its trials, for readers without Optuna.

`StudyProgress` counts; `write_progress` writes the file atomically; `active_seconds` leaves out pauses. Each finished
trial is read only once: with 500 of them, a write takes about a millisecond. Optuna's times are local and without a
zone, like `datetime.now()`.
"""

import json
import math
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from weakref import WeakKeyDictionary

from ml_pipeline.config.json_object import finite
from ml_pipeline.runtime.files import alone
from ml_pipeline.runtime.process_identity import this_process
from ml_pipeline.tuning.study_files import (
    HEARTBEAT_FILE,
    STUDY_FILE,
    TrialKind,
    feature_warnings,
    identity_of,
    is_try,
    kind_of,
    known_folders,
)

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import FrozenTrial


_LONGEST_GAP_S = 60.0
"""Longest time between two trials that does not count as a pause of the study."""


def active_seconds(stretches: Iterable[tuple[float, float]], *, since: float = float("-inf")) -> float:
    """Seconds that the intervals (begin, end) cover together, including the short gaps between them, after `since`.

    >>> active_seconds([(0, 100), (50, 120), (150, 200), (4000, 4100)])
    300.0
    >>> active_seconds([(0, 100), (50, 120), (150, 200), (4000, 4100)], since=180)
    120.0
    """
    total = 0.0
    covered: float | None = None
    for begin, end in sorted(stretches):
        from_here = begin if covered is None or begin - covered > _LONGEST_GAP_S else covered
        total += max(0.0, end - max(from_here, since))
        covered = end if covered is None else max(covered, end)
    return total


State = Literal["running", "stopped"]
"""Whether trials are being run. If all trials have finished, study.json says "finished" in both cases."""

_HOUR_S = 3600.0
_LEAST_INTERVAL_S = 1.0
_SHARE_OF_TIME = 0.01
"""Largest share of a process's time for writing: the file of a study with thousands of trials is written less often."""
_FEW_FINISHED = 3
"""Finished trials in the last hour from which on the time left is estimated from that hour, not from all trials."""
_MOST_FAILURES = 20
_NUMBER = re.compile(r"\d+")


class _Ended(NamedTuple):
    """A finished trial. until: when it stopped running; None if unknown. is_try: False if it continues another trial.
    text: its JSON."""

    number: int
    kind: TrialKind
    began: float
    until: float | None
    value: float | None
    settings: Mapping[str, Any]
    folder: str | None
    reason: str
    is_try: bool
    text: str


class StudyProgress:
    """The content of study.json. Caches finished trials, which no longer change."""

    def __init__(self, name: str, *, objective: str | None = None) -> None:
        """objective: `ObjectiveConfig.objective`; None: unknown."""
        self._name = name
        self._objective = objective
        self._ended: dict[int, _Ended | None] = {}  # None: does not count

    def text(
        self,
        trials: "Sequence[FrozenTrial]",
        *,
        study_folder: Path,
        n_trials: int,
        jobs: int,
        steps_per_trial: int | None,
        state: State,
        now: float,
        warnings: Sequence[str] = (),
    ) -> str:
        """The file's text. now: seconds since 1970. warnings: of features that may use later data. The other arguments
        are those of `write_progress`."""
        running = [trial for trial in trials if kind_of(trial) == "running"]
        ended = self._look(trials)
        tries = [each for each in ended if each.is_try]
        finished = [each for each in tries if each.kind in ("complete", "pruned")]
        began = min((each.began for each in ended), default=now)
        began = min([began, *(_timestamp(each.datetime_start, now) for each in running)])
        shown = [_of_running(each, steps_per_trial=steps_per_trial) for each in running]
        stretches = [(each.began, each.until) for each in ended if each.until is not None]
        stretches += [
            (_timestamp(trial.datetime_start, now), _last_sign(trial, study_folder, now=now)) for trial in running
        ]
        per_hour = _per_hour(len(finished), active_seconds(stretches))
        lately = [each for each in finished if each.until is not None and each.until >= now - _HOUR_S]
        per_hour_lately = _per_hour(len(lately), active_seconds(stretches, since=now - _HOUR_S))
        pace = per_hour_lately if len(lately) >= _FEW_FINISHED else per_hour
        counts = {kind: sum(each.kind == kind for each in tries) for kind in ("complete", "pruned", "failed")}
        values = {
            "name": self._name,
            "direction": "maximize",
            "objective": self._objective,
            "state": "finished" if len(finished) >= n_trials and not running else state,
            "n_trials": n_trials,
            "finished": len(finished),
            **counts,
            "impossible": sum(each.kind == "impossible" for each in ended),
            "jobs": jobs,
            "steps_per_trial": steps_per_trial,
            "running": shown,
            "trials_per_hour": per_hour,
            "trials_per_hour_last_hour": per_hour_lately,
            "seconds_left": _seconds_left(n_trials - len(finished), shown, pace=pace),
            "best": _best(ended),
            "failures": _failures(ended),
            "feature_warnings": list(warnings),
            "began": datetime.fromtimestamp(began, UTC).isoformat(),
            "updated": datetime.fromtimestamp(now, UTC).isoformat(),
            "writer": this_process()._asdict(),
            "history": _history(ended, began=began),
        }
        trials_text = ",\n".join(each.text for each in ended)
        return f'{json.dumps(values, allow_nan=False)[:-1]}, "trials": [\n{trials_text}\n]}}\n'

    def _look(self, trials: "Sequence[FrozenTrial]") -> list[_Ended]:
        """The finished trials that count, by number."""
        for trial in trials:
            if trial.number not in self._ended and trial.state.is_finished():
                self._ended[trial.number] = None if kind_of(trial) in {"void", "stopped"} else _ended(trial)
        return [each for _, each in sorted(self._ended.items()) if each is not None]


class _Writer:
    """The state of one process that writes the file of one study."""

    def __init__(self, study: "Study") -> None:
        objective = identity_of(study).get("objective")
        name = objective.get("objective") if isinstance(objective, dict) else None
        self.progress = StudyProgress(study.study_name, objective=name)
        self.due_s = -math.inf


_writers: "WeakKeyDictionary[Study, _Writer]" = WeakKeyDictionary()


def write_progress(
    study: "Study",
    study_folder: Path,
    *,
    n_trials: int,
    jobs: int = 1,
    steps_per_trial: int | None = None,
    state: State = "running",
) -> bool:
    """Write study.json; return whether it was written.

    Call it after each trial, every few seconds, and with state="stopped" before a process that runs trials ends. It
    writes at most once per second, except for that last call. n_trials: total of the study. jobs: trials at once.
    steps_per_trial: environment steps of a whole trial, over all its seeds or folds.

    If the file cannot be written, it is left unchanged, so that no trial fails. Raises what the storage raises.
    """
    writer = _writers.get(study)
    if writer is None:
        writer = _writers.setdefault(study, _Writer(study))
    began_s = time.perf_counter()
    if state == "running" and began_s < writer.due_s:
        return False
    text = writer.progress.text(
        study.get_trials(deepcopy=False),
        study_folder=study_folder,
        n_trials=n_trials,
        jobs=jobs,
        steps_per_trial=steps_per_trial,
        state=state,
        now=time.time(),
        warnings=feature_warnings(study),
    )
    try:
        _replace(study_folder / STUDY_FILE, text)
    except OSError:
        return False
    finally:
        now_s = time.perf_counter()
        writer.due_s = now_s + max(_LEAST_INTERVAL_S, (now_s - began_s) / _SHARE_OF_TIME)
    return True


def _replace(path: Path, text: str) -> None:
    """Replace a file atomically, without waiting for the disk: its content can be recomputed."""
    temporary = path.with_name(f"{path.name}.tmp")
    with alone(path.with_name(f"{path.name}.lock")):
        temporary.unlink(missing_ok=True)
        with open(temporary, "x", encoding="utf-8") as file:
            file.write(text)
        temporary.replace(path)


def _ended(trial: "FrozenTrial") -> _Ended:
    told = trial.user_attrs
    kind = kind_of(trial)
    end = _timestamp(trial.datetime_complete, 0.0)
    began = _timestamp(trial.datetime_start, end)
    seconds = finite(told.get("seconds"))
    until: float | None = end
    if kind == "failed":  # it may have been marked as failed long after its process ended
        until = None if seconds is None else min(end, began + seconds)
    value = finite(trial.values[0]) if trial.values else None
    settings = told.get("settings") or trial.params
    folder = _folder_of(trial)
    reason = str(told.get("reason") or "")
    shown = {
        "number": trial.number,
        "state": kind,
        "value": value,
        "folder": folder,
        "seconds": seconds if seconds is not None else max(0.0, end - began) if until is not None else None,
        "settings": _plain(settings),
        **({"reason": reason} if reason else {}),
    }
    text = json.dumps(shown, allow_nan=False)
    return _Ended(trial.number, kind, began, until, value, settings, folder, reason, is_try(trial), text)


def _of_running(trial: "FrozenTrial", *, steps_per_trial: int | None) -> dict[str, Any]:
    step = max(trial.intermediate_values, default=None)
    began = trial.datetime_start
    return {
        "number": trial.number,
        "folder": _folder_of(trial),
        "folders": [folder.name for folder in known_folders(Path(), trial.user_attrs)],
        "began": None if began is None else began.astimezone(UTC).isoformat(),
        "host": trial.user_attrs.get("host"),
        "progress": None if not steps_per_trial else min(1.0, (step or 0) / steps_per_trial),
        "value": None if step is None else finite(trial.intermediate_values[step]),
        "settings": _plain(trial.user_attrs.get("settings") or trial.params),
    }


def _best(ended: Sequence[_Ended]) -> dict[str, Any] | None:
    """The trial with the largest value; the first one of a tie."""
    complete = [each for each in ended if each.kind == "complete" and each.value is not None]
    if not complete:
        return None
    best = max(complete, key=lambda each: (each.value, -each.number))
    return {
        "number": best.number,
        "value": best.value,
        "settings": _plain(best.settings),
        "folder": best.folder,
    }


def _history(ended: Sequence[_Ended], *, began: float) -> list[list[float | None]]:
    """[number, seconds since the study began, value, best so far] of each complete or pruned trial, in the order in
    which they ended."""
    finished = [each for each in ended if each.kind in ("complete", "pruned")]
    rows: list[list[float | None]] = []
    best: float | None = None
    for each in sorted(finished, key=lambda one: (one.until or 0.0, one.number)):
        if each.kind == "complete" and each.value is not None and (best is None or each.value > best):
            best = each.value
        rows.append([each.number, round((each.until or began) - began, 1), each.value, best])
    return rows


def _failures(ended: Sequence[_Ended]) -> list[dict[str, Any]]:
    """Reasons of failures, the most frequent first; reasons that differ only in numbers are one."""
    groups: dict[str, list[_Ended]] = {}
    for each in ended:
        if each.kind == "failed":
            groups.setdefault(_NUMBER.sub("#", each.reason), []).append(each)
    found = sorted(groups.values(), key=len, reverse=True)[:_MOST_FAILURES]
    return [
        {
            "reason": group[-1].reason or "No reason was recorded.",
            "times": len(group),
            "numbers": [each.number for each in group],
        }
        for group in found
    ]


def _seconds_left(n_left: int, running: Sequence[Mapping[str, Any]], *, pace: float | None) -> float | None:
    if n_left <= 0:
        return 0.0
    if not pace:
        return None
    under_way = sorted((each["progress"] or 0.0 for each in running), reverse=True)[:n_left]
    return (n_left - sum(under_way)) / pace * _HOUR_S


def _per_hour(n: int, seconds: float) -> float | None:
    return n / seconds * _HOUR_S if n and seconds > 0.0 else None


def _last_sign(trial: "FrozenTrial", study_folder: Path, *, now: float) -> float:
    """Time of a running trial's last heartbeat; its process may have ended since."""
    folder = _folder_of(trial)
    try:
        return min(now, (study_folder / str(folder) / HEARTBEAT_FILE).stat().st_mtime) if folder else now
    except (OSError, ValueError):  # it is on another machine
        return now


def _folder_of(trial: "FrozenTrial") -> str | None:
    folders = known_folders(Path(), trial.user_attrs)
    return folders[0].name if folders else None


def _timestamp(when: datetime | None, otherwise: float) -> float:
    return otherwise if when is None else when.timestamp()


def _plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {str(name): value if _is_json(value) else str(value) for name, value in settings.items()}


def _is_json(value: object) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return True

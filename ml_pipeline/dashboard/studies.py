"""The studies in a folder of runs: state, speed, best trial and failures of each.

Only study.json is read; unchanged files are not read again.
"""

import os
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

from ml_pipeline.config.errors import UserError, nearest
from ml_pipeline.config.json_object import count, finite, text
from ml_pipeline.config.wording import in_one_line, written
from ml_pipeline.dashboard.files import JsonFile, NotThere, is_plain, is_plain_file, moment_s
from ml_pipeline.dashboard.summaries import BROKEN, RunSummary
from ml_pipeline.runs.folders import folders_in, run_name
from ml_pipeline.runtime.files import path_inside
from ml_pipeline.runtime.process_identity import identity_from, is_alive
from ml_pipeline.tuning.study_files import REPORT_FILE, STUDY_FILE, warnings_in_words

_STATES = ("running", "finished", "stopped")
_COUNTS = ("n_trials", "finished", "complete", "pruned", "failed", "impossible", "jobs")
_PACES = ("trials_per_hour", "trials_per_hour_last_hour")
_GONE_S, _SILENT_S = 10.0, 60.0
"""A study still counts as running for this long after its last write: if its process is gone, since another process may
continue; if its process is on another machine and cannot be checked."""
_LONGEST_VALUE = 200


@dataclass(frozen=True, kw_only=True)
class RunningTrial:
    """run: the name of its run, if its folder is here. progress: from 0 to 1. value: the best so far."""

    number: int
    run: str | None = None
    host: str | None = None
    began: str | None = None
    progress: float | None = None
    value: float | None = None


@dataclass(frozen=True, kw_only=True)
class BestTrial:
    number: int
    value: float
    run: str | None
    settings: Mapping[str, str]
    """As written in a settings file."""


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A reason for failures, with the trials that failed for it."""

    reason: str
    times: int
    numbers: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class StudySummary:
    """A study, from its study.json. None: unknown."""

    name: str
    """Name of its folder."""
    folder: Path
    status: str
    """running, finished or stopped; broken if the file is invalid."""
    reason: str | None = None
    """Why it counts as stopped, or what is broken."""
    n_trials: int | None = None
    finished: int | None = None
    """Trials that are complete or pruned."""
    complete: int | None = None
    pruned: int | None = None
    failed: int | None = None
    impossible: int | None = None
    """Trials with incompatible settings, rejected before they began; neither finished nor failed."""
    jobs: int | None = None
    trials_per_hour: float | None = None
    trials_per_hour_last_hour: float | None = None
    seconds_left: float | None = None
    best: BestTrial | None = None
    running: tuple[RunningTrial, ...] = ()
    failures: tuple[Failure, ...] = ()
    feature_warnings: tuple[str, ...] = ()
    """Sentences about features that may use future data."""
    began: str | None = None
    updated: str | None = None
    has_report: bool = False
    value_unit: str | None = None
    """Unit of a trial's value: the objective, or `RunSummary.score_unit` of its run."""

    @property
    def progress(self) -> float | None:
        """Fraction of the trials that are finished."""
        return min(1.0, self.finished / self.n_trials) if self.n_trials and self.finished is not None else None

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "folder": str(self.folder), "progress": self.progress}


def study_summary(
    values: Mapping[str, Any],
    *,
    root: Path,
    folder: Path,
    written_s: float,
    runs: Mapping[str, RunSummary],
    has_report: bool,
) -> StudySummary:
    """The study described by a file. written_s: modification time, in seconds since 1970. runs: the runs below the root
    by name, from which the progress of trials is taken.

    Raises ValueError if the file does not describe a study.
    """
    if values.get("state") not in _STATES or count(values.get("n_trials")) is None:
        raise ValueError("it has no state of a study, or no number of trials")
    status, reason = values["state"], None
    if status == "running":
        reason = _why_stopped(values, written_s=written_s)
        status = "stopped" if reason else status
    steps = count(values.get("steps_per_trial"))
    figures: dict[str, Any] = {name: count(values.get(name)) for name in _COUNTS}
    figures |= {name: finite(values.get(name)) for name in _PACES}
    running = [each for each in _objects(values.get("running")) if count(each.get("number")) is not None]
    return StudySummary(
        name=folder.name or folder.absolute().name,
        folder=folder,
        status=status,
        reason=reason,
        **figures,
        seconds_left=finite(values.get("seconds_left")) if status == "running" else None,
        best=_best(values.get("best"), root, folder),
        running=tuple(_running(each, root, folder, runs, steps=steps) for each in running)
        if status == "running"
        else (),
        failures=tuple(_failures(values.get("failures"))),
        feature_warnings=warnings_in_words(tuple(filter(None, map(text, _list(values.get("feature_warnings")))))),
        began=text(values.get("began")),
        updated=text(values.get("updated")),
        has_report=has_report,
        value_unit="Sharpe ratio"
        if values.get("objective") == "sharpe"
        else next((run.score_unit for run in runs.values() if run.folder.parent == folder), None),
    )


def study_details(values: Mapping[str, Any], *, root: Path, folder: Path) -> dict[str, Any]:
    """{"history": [[number, seconds, value, best so far]], "trials": [{"number", "state", "value", "seconds", "run",
    "reason", "settings"}], "settings": names} of a study.json; invalid values are left out."""
    history = values.get("history")
    rows = [each for each in history if isinstance(each, list) and len(each) == 4] if isinstance(history, list) else []
    trials: list[dict[str, Any]] = [
        {
            "number": number,
            "state": text(each.get("state")) or "unknown",
            "value": finite(each.get("value")),
            "seconds": finite(each.get("seconds")),
            "run": _run_of(root, folder, each.get("folder")),
            "reason": text(each.get("reason")),
            "settings": _settings(each.get("settings")),
        }
        for each in _objects(values.get("trials"))
        if (number := count(each.get("number"))) is not None
    ]
    return {
        "history": [[finite(value) for value in row] for row in rows if finite(row[0]) is not None],
        "trials": trials,
        "settings": list(dict.fromkeys(name for each in trials for name in each["settings"])),
    }


def _why_stopped(values: Mapping[str, Any], *, written_s: float) -> str | None:
    """Why a study whose state is "running" has probably stopped; None if it may be running."""
    try:
        age_s = time.time() - max(written_s, datetime.fromisoformat(str(values.get("updated"))).timestamp())
        writer = identity_from(*(values["writer"].get(name) for name in ("host", "pid", "started", "namespace")))
        alive = is_alive(writer)
    except (ValueError, KeyError, AttributeError, OverflowError, OSError):
        age_s, writer, alive = time.time() - written_s, None, None
    if alive or age_s < (_GONE_S if alive is False else _SILENT_S):
        return None
    if alive is False and writer is not None:
        return f"Its process {writer.pid} on {writer.host} is gone; to continue, start it again with the same command."
    return "Its processes have written nothing for over a minute; to continue, start it again with the same command."


def _best(value: object, root: Path, folder: Path) -> BestTrial | None:
    if not isinstance(value, dict):
        return None
    number, score = count(value.get("number")), finite(value.get("value"))
    if number is None or score is None:
        return None
    run = _run_of(root, folder, value.get("folder"))
    return BestTrial(number=number, value=score, run=run, settings=_settings(value.get("settings")))


def _running(
    value: Mapping[str, Any], root: Path, folder: Path, runs: Mapping[str, RunSummary], *, steps: int | None
) -> RunningTrial:
    named = value.get("folders")
    named = named if isinstance(named, list) and named else [value.get("folder")]
    names = [name for name in (_run_of(root, folder, each) for each in named) if name is not None]
    here = [runs[name] for name in names if name in runs]
    progress = finite(value.get("progress"))
    if here and steps:
        progress = min(1.0, sum(run.global_step or 0 for run in here) / steps)
    elif len(here) == 1 and len(names) == 1:
        progress = here[0].progress
    under_way = [run.name for run in here if run.status == "running"]
    number = count(value.get("number"))
    assert number is not None
    return RunningTrial(
        number=number,
        run=next(iter([*under_way, *(run.name for run in here)]), None),
        host=text(value.get("host")),
        began=text(value.get("began")),
        progress=None if progress is None else round(progress, 3),
        value=finite(value.get("value")),
    )


def _failures(value: object) -> list[Failure]:
    return [
        Failure(
            reason=text(each.get("reason")) or "No reason was recorded.",
            times=times,
            numbers=tuple(n for n in map(count, _list(each.get("numbers"))) if n is not None),
        )
        for each in _objects(value)
        if (times := count(each.get("times")))
    ]


def _settings(value: object) -> dict[str, str]:
    if not isinstance(value, dict):
        return {}
    return {str(name): _shown(each) for name, each in value.items()}


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    shown = written(tuple(value) if isinstance(value, list) else value)
    return shown if len(shown) <= _LONGEST_VALUE else f"{shown[:_LONGEST_VALUE]}..."


def _run_of(root: Path, folder: Path, name: object) -> str | None:
    """The name of the run in a folder of the study; None if the folder is outside the study."""
    inside = path_inside(folder, name)
    return None if inside is None else run_name(root, inside)


def _objects(value: object) -> list[Mapping[str, Any]]:
    return [each for each in _list(value) if isinstance(each, dict)]


def _list(value: object) -> Sequence[Any]:
    return value if isinstance(value, list) else []


def read_studies(root: Path, runs: Sequence[RunSummary] = ()) -> list[StudySummary]:
    """The studies in a folder, or the folder's own study; running ones first, then the newest.

    runs: the runs below the root, from which the progress of trials is taken. Repeated calls are cheap. Does not raise
    for a broken study: its status shows it. A folder that is missing or cannot be listed has no studies.
    """
    return _reader_of(root, root.absolute()).read(runs)


@cache
def _reader_of(root: Path, absolute: Path) -> "StudyReader":
    """One reader per folder."""
    return StudyReader(root)


class StudyReader:
    """Reads the studies of one folder repeatedly. Thread-safe."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._known: dict[Path, _KnownStudy] = {}
        self._lock = threading.Lock()

    def read(self, runs: Sequence[RunSummary] = ()) -> list[StudySummary]:
        """See `read_studies`."""
        by_name = {run.name: run for run in runs}
        with self._lock:
            folders = _study_folders(self._root)
            self._known = {folder: self._known.get(folder) or _KnownStudy(self._root, folder) for folder in folders}
            found = [study.summary(by_name) for study in self._known.values()]
        return sorted(found, key=_place, reverse=True)

    def details(self, name: str) -> dict[str, Any]:
        """History and trials of a study; see `study_details`. Raises NotThere, or UserError if it is broken."""
        folder = find_study(self._root, name)
        with self._lock:
            known = self._known.setdefault(folder, _KnownStudy(self._root, folder))
            return known.details()


def find_study(root: Path, name: str) -> Path:
    """The folder of a study, by name. Raises NotThere, also for a name that would leave the root."""
    studies = {_name_of(folder): folder for folder in _study_folders(root)}
    if name in studies:
        return studies[name]
    hint = nearest(name, sorted(studies)) if studies and is_plain(name) else "use the name of its folder."
    raise NotThere(f'{root} has no study "{in_one_line(name)}"; {hint}')


class _KnownStudy:
    def __init__(self, root: Path, folder: Path) -> None:
        self._root = root
        self._folder = folder
        self._file = JsonFile(folder / STUDY_FILE)

    def summary(self, runs: Mapping[str, RunSummary]) -> StudySummary:
        try:
            self._file.refresh()
            return study_summary(
                self._file.values,
                root=self._root,
                folder=self._folder,
                written_s=self._file.written_s,
                runs=runs,
                has_report=is_plain_file(self._folder / REPORT_FILE),
            )
        except Exception as error:  # any error: the other studies must still be shown
            return StudySummary(
                name=_name_of(self._folder), folder=self._folder, status=BROKEN, reason=self._told(error)
            )

    def details(self) -> dict[str, Any]:
        try:
            self._file.refresh()
            return study_details(self._file.values, root=self._root, folder=self._folder)
        except Exception as error:
            raise UserError(self._told(error)) from error

    def _told(self, error: Exception) -> str:
        return f"{self._file.path} cannot be read: {in_one_line(error) or type(error).__name__}."


def _study_folders(root: Path) -> list[Path]:
    """Study folders, without hidden ones and links out of the root."""
    if os.path.isfile(root / STUDY_FILE):
        return [root]
    try:
        inside = folders_in(root)
    except OSError:
        return []
    return [folder for folder in inside if os.path.lexists(folder / STUDY_FILE) and _is_inside(root, folder)]


def _is_inside(root: Path, folder: Path) -> bool:
    try:
        return not folder.is_symlink() or folder.resolve().is_relative_to(root.resolve())
    except (OSError, RuntimeError):  # a link loop
        return False


def _name_of(folder: Path) -> str:
    return folder.name or folder.absolute().name


def _place(study: StudySummary) -> tuple[bool, float, str]:
    """Sort key of a study; the greatest comes first."""
    is_running = study.status == "running"
    return is_running, 0.0 if is_running else moment_s(study.updated), study.name

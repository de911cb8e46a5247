"""Summaries of all runs in a folder. Only run folders are read; unchanged files are not read again."""

import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from ml_pipeline.config.env_schedule import planned_end
from ml_pipeline.config.errors import UserError
from ml_pipeline.config.files import read_mapping
from ml_pipeline.config.json_object import count, finite
from ml_pipeline.config.wording import in_one_line, last_line_first, score_unit
from ml_pipeline.dashboard.files import MetricsTail, moment_s
from ml_pipeline.monitoring.sinks import METRICS_FILE, STEP
from ml_pipeline.reporting.learning_curves import TRAINING_STAGES
from ml_pipeline.runs.folder import SETTINGS_FILE
from ml_pipeline.runs.folders import run_folders, run_name
from ml_pipeline.runs.state import ENDED, STATE_FILE, RunState, read_state
from ml_pipeline.runtime.files import FileIdentity
from ml_pipeline.tuning.study_files import is_study_folder, is_trial

BROKEN, UNKNOWN = "broken", "unknown"
_OF_A_RANK = re.compile(r"system/rank(\d+)/")
_MOST_SYMBOLS = 3


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """A run in one row. None: unknown, because no file of the folder has it yet.

    >>> RunSummary(name="a", folder=Path("runs/a"), status="running", global_step=30, total_timesteps=120).progress
    0.25
    """

    name: str
    """Path of its folder, relative to the root."""
    folder: Path
    status: str
    """running, queued, finished, stopped or failed; unknown without a state.json, and broken if it cannot be read."""
    reason: str | None = None
    """Why it stopped, failed, or finished early, or what is broken in the folder."""
    task: str | None = None
    """The environment id, or the symbols."""
    algorithm: str | None = None
    seed: int | None = None
    iteration: int | None = None
    total_iterations: int | None = None
    global_step: int | None = None
    total_timesteps: int | None = None
    """As requested; training ends with a complete iteration."""
    steps_per_second: float | None = None
    """In the last iterations, without evaluations."""
    seconds_left: float | None = None
    """At the speed of the last iterations, including evaluations; only while the run is running."""
    mean_return: float | None = None
    """Over the last 100 training episodes."""
    last_score: float | None = None
    """Score of the latest evaluation."""
    best_score: float | None = None
    score_unit: str | None = None
    """Unit of the scores: mean return, log return or Sharpe ratio."""
    n_envs: int | None = None
    n_workers: int | None = None
    n_ranks: int | None = None
    """Number of ranks in the latest iteration; None for a single process."""
    began: str | None = None
    """When the run was last started or resumed, in UTC (ISO 8601)."""
    ended: str | None = None
    study: str | None = None
    """The study of a run that is a trial; None for other runs, and if the root is the study's own folder."""

    @property
    def progress(self) -> float | None:
        """Fraction of the environment steps that are done."""
        if self.global_step is None or not self.total_timesteps:
            return None
        return min(1.0, self.global_step / self.total_timesteps)

    @property
    def activity(self) -> str:
        """The status, or "evaluating" if a running run has done all steps and writes its report."""
        return "evaluating" if self.status == "running" and self.progress == 1.0 else self.status

    @property
    def headline(self) -> str | None:
        """The reason in one line, beginning with the error; equals `reason` if that is one short line."""
        return None if self.reason is None else last_line_first(self.reason)

    def as_json(self) -> dict[str, Any]:
        """All fields, the progress and the activity as plain values."""
        return {
            **asdict(self),
            "folder": str(self.folder),
            "progress": self.progress,
            "headline": self.headline,
            "activity": self.activity,
        }


def summarized(
    known: RunSummary, *, settings: Mapping[str, Any], state: RunState | None, metrics: MetricsTail
) -> RunSummary:
    """The summary of a run, from its known name and status and the content of its files."""
    told = replace(known, **_of_settings(settings))
    told = replace(told, **_of_metrics(metrics))
    if state is not None:
        told = replace(told, **_of_state(state, told))
    return replace(told, seconds_left=_seconds_left(told, metrics.rows))


def _of_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Fields from the settings, which may be of another version or edited by hand: values may be missing or invalid."""
    n_envs, n_steps = count(settings.get("n_envs")), count(settings.get("n_steps"))
    total, iterations = count(settings.get("total_timesteps")), count(settings.get("iterations"))
    batch = n_envs * n_steps if n_envs and n_steps else None
    if total is None and iterations and batch:
        total = iterations * batch
    algorithm = str(settings.get("algorithm") or "PPO") if settings else None
    if algorithm != "PPO":
        iterations = None
    elif total and n_envs and n_steps:
        schedule = _schedule(settings.get("n_envs_schedule"))
        iterations, _ = planned_end(total, step=0, n_steps=n_steps, n_envs=n_envs, schedule=schedule)
    return {
        "task": _task(settings),
        "algorithm": algorithm,
        "seed": count(settings.get("seed")),
        "n_envs": n_envs,
        "n_workers": count(settings.get("n_workers")),
        "total_timesteps": total,
        "total_iterations": iterations,
        "score_unit": score_unit(settings.get("env_id"), settings.get("score", "log_return")) if settings else None,
    }


def _schedule(value: Any) -> dict[int, int]:
    """The valid part of a schedule: numbers of environments by step."""
    if not isinstance(value, Mapping):
        return {}
    return {step: n for step, n in value.items() if count(step) and count(n)}


def _task(settings: Mapping[str, Any]) -> str | None:
    if not settings:
        return None
    if settings.get("env_id") is not None:
        return str(settings["env_id"])
    symbols = settings.get("symbols")
    if isinstance(symbols, Sequence) and not isinstance(symbols, str) and symbols:
        more = f" +{len(symbols) - _MOST_SYMBOLS}" if len(symbols) > _MOST_SYMBOLS else ""
        return " ".join(str(each) for each in symbols[:_MOST_SYMBOLS]) + more
    data = settings.get("data")
    return "built-in market" if data is None else Path(str(data)).stem


def _of_metrics(tail: MetricsTail) -> dict[str, Any]:
    rows = tail.rows
    last = rows[-1] if rows else {}
    told = {
        "iteration": count(last.get("time/iteration")),
        "global_step": count(last.get(STEP)),
        "mean_return": finite(last.get("rollout/mean_return_100")),
        "steps_per_second": _pace(rows, TRAINING_STAGES) or finite(last.get("time/steps_per_second")),
        "last_score": tail.last_score,
        "best_score": tail.best_score,
        "n_ranks": len({found[1] for name in last if (found := _OF_A_RANK.match(name))}) or None,
    }
    for name, metric in (("n_workers", "workers/count"), ("n_envs", "time/n_envs")):
        if (latest := count(last.get(metric))) is not None:
            told[name] = latest
    return told


def _of_state(state: RunState, told: RunSummary) -> dict[str, Any]:
    """Fields from state.json; once a run has ended, it is more recent than the last line of metrics."""
    known = {"iteration": state.iterations, "global_step": state.global_step, "best_score": state.best_score}
    return {
        "began": state.began,
        "ended": state.ended,
        **{name: getattr(told, name) if value is None else value for name, value in known.items()},
    }


def _seconds_left(told: RunSummary, rows: Sequence[Mapping[str, Any]]) -> float | None:
    pace = _pace(rows, (*TRAINING_STAGES, "time/evaluating_s")) or told.steps_per_second
    if told.status != "running" or not pace or told.global_step is None or told.total_timesteps is None:
        return None
    return finite(max(0.0, told.total_timesteps - told.global_step) / pace)


def _pace(rows: Sequence[Mapping[str, Any]], parts: Sequence[str]) -> float | None:
    """Steps per second over these iterations, without the first, whose beginning is unknown."""
    steps = [finite(row.get(STEP)) for row in rows]
    seconds = sum(finite(row.get(part)) or 0.0 for row in rows[1:] for part in parts)
    if len(rows) < 2 or steps[0] is None or steps[-1] is None or steps[-1] <= steps[0] or seconds <= 0.0:
        return None
    return finite((steps[-1] - steps[0]) / seconds)


_ORDER = ("running", "queued")
"""Runs with these statuses come first; the rest follow, sorted from new to old."""


def read_summaries(root: Path) -> list[RunSummary]:
    """The runs in a folder and its subfolders: running ones first, then queued ones in order, then the newest.

    Repeated calls are cheap: only changed files are read. A missing folder has no runs; a run folder has one. Does not
    raise for a broken run: its status shows it. Raises UserError if the folder cannot be listed.
    """
    return _reader_of(root, root.absolute()).read()


@cache
def _reader_of(root: Path, absolute: Path) -> "SummaryReader":
    """One reader per folder."""
    return SummaryReader(root)


class SummaryReader:
    """Reads the summaries of one folder repeatedly. Thread-safe."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._known: dict[Path, _KnownRun] = {}
        self._lock = threading.Lock()

    def read(self) -> list[RunSummary]:
        """See `read_summaries`."""
        with self._lock:
            refused: dict[Path, str] = {}
            folders = list(run_folders(self._root, refused=refused))
            self._known = {folder: self._known.get(folder) or _KnownRun(self._root, folder) for folder in folders}
            inside = {folder.parent for folder in folders} - {self._root}
            studies = {folder: folder.name for folder in inside if is_study_folder(folder)}
            runs = [
                replace(run.summary(), study=studies.get(folder.parent)) if is_trial(folder) else run.summary()
                for folder, run in self._known.items()
            ]
            runs += [self._refused(folder, reason) for folder, reason in refused.items()]
            return sorted(runs, key=_place, reverse=True)

    def _refused(self, folder: Path, reason: str) -> RunSummary:
        sentence = f"{folder} cannot be read: {reason}."
        return RunSummary(name=run_name(self._root, folder), folder=folder, status=BROKEN, reason=sentence)


class _KnownRun:
    """A run folder with its last summary; unchanged files are not read again."""

    def __init__(self, root: Path, folder: Path) -> None:
        self._folder = folder
        self._name = run_name(root, folder)
        self._seen: tuple[object, ...] | None = None
        self._settings_seen: FileIdentity | None = None
        self._settings: Mapping[str, Any] | UserError = {}
        self._tail: MetricsTail | None = None
        self._summary = RunSummary(name=self._name, folder=folder, status=UNKNOWN)

    def summary(self) -> RunSummary:
        """The run's summary, with status broken on any error, so that the other runs are still shown."""
        try:
            return self._up_to_date()
        except Exception as error:
            self._tail = None
            reason = f"{self._folder} cannot be read: {type(error).__name__}: {in_one_line(error)}."
            self._summary = RunSummary(name=self._name, folder=self._folder, status=BROKEN, reason=reason)
            return self._summary

    def _up_to_date(self) -> RunSummary:
        seen = tuple(_signature(self._folder / name) for name in (STATE_FILE, SETTINGS_FILE, METRICS_FILE))
        # If a run has not ended, its process may die without changing the files.
        if seen != self._seen or self._summary.status not in ENDED:
            self._summary = self._read()
            self._seen = seen
            if self._summary.status in ENDED:
                self._tail = None
        return self._summary

    def _read(self) -> RunSummary:
        status, reason, state = UNKNOWN, None, None
        try:
            state = read_state(self._folder)
            if state is not None:
                status, reason = state.status, state.reason
        except UserError as error:
            status, reason = BROKEN, str(error)
        try:
            settings = self._read_settings()
        except UserError as error:
            settings = {}
            status, reason = BROKEN, reason or str(error)
        self._tail = self._tail or MetricsTail(self._folder / METRICS_FILE)
        self._tail.read()
        known = RunSummary(name=self._summary.name, folder=self._folder, status=status, reason=reason)
        return summarized(known, settings=settings, state=state, metrics=self._tail)

    def _read_settings(self) -> Mapping[str, Any]:
        path = self._folder / SETTINGS_FILE
        seen = _signature(path)
        if seen is None:
            return {}
        if seen != self._settings_seen:
            try:
                self._settings = read_mapping(path)
            except UserError as error:  # the file is not read again until it changes
                self._settings = error
            self._settings_seen = seen
        if isinstance(self._settings, UserError):
            raise self._settings
        return self._settings


def _signature(path: Path) -> FileIdentity | None:
    """Identity of a file's content; None if it is missing."""
    try:
        return FileIdentity.of(path.stat())
    except OSError:
        return None


def _place(run: RunSummary) -> tuple[int, float, str]:
    """Sort key of a run; the greatest comes first."""
    began = moment_s(run.began)
    if run.status == "queued":  # among runs of equal priority, the oldest starts first
        began = -began
    return (len(_ORDER) - _ORDER.index(run.status) if run.status in _ORDER else 0, began, run.name)

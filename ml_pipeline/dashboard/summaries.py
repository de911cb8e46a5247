"""The summaries of all runs in a folder, read from run folders alone; what did not change is not read again."""

import math
import threading
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.files import read_mapping
from ml_pipeline.config.wording import in_one_line
from ml_pipeline.dashboard.metrics_tail import MetricsTail
from ml_pipeline.dashboard.summary import BROKEN, UNKNOWN, RunSummary, summarized
from ml_pipeline.monitoring.metrics_file import METRICS_FILE
from ml_pipeline.runs.folder import SETTINGS_FILE
from ml_pipeline.runs.folders import run_folders, run_name
from ml_pipeline.runs.state import ENDED, STATE_FILE, read_state
from ml_pipeline.runtime.regular_file import FileIdentity
from ml_pipeline.tuning.study_files import is_study_folder, is_trial

_ORDER = ("running", "queued")
"""These come first in a list; the rest follow, the newest first."""


def read_summaries(root: Path) -> list[RunSummary]:
    """The runs in a folder, or in the folders inside of it; running ones first, then queued ones as they
    were queued, then the newest.

    Cheap to call again: only what changed on disk since the last call of this process is read. A folder that is
    missing has no runs; one that is itself a run folder has that run. Never raises for a single run that is broken: its
    status tells. Raises UserError where the folder cannot be listed.
    """
    with _lock:
        reader = _readers.setdefault(root.absolute(), SummaryReader(root))
    return reader.read()


class SummaryReader:
    """Reads the summaries of one folder again and again; may be used by several threads."""

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
        sentence = f"{folder} cannot be looked at: {reason}."
        return RunSummary(name=run_name(self._root, folder), folder=folder, status=BROKEN, reason=sentence)


_lock = threading.Lock()
_readers: dict[Path, SummaryReader] = {}


class _KnownRun:
    """A run folder and what was read from it; what did not change since is not read again."""

    def __init__(self, root: Path, folder: Path) -> None:
        self._folder = folder
        self._name = run_name(root, folder)
        self._seen: tuple[object, ...] | None = None
        self._settings_seen: FileIdentity | None = None
        self._settings: Mapping[str, Any] | UserError = {}
        self._tail: MetricsTail | None = None
        self._summary = RunSummary(name=self._name, folder=folder, status=UNKNOWN)

    def summary(self) -> RunSummary:
        """The run, told as broken where anything at all is wrong with its folder: the others are to be seen."""
        try:
            return self._up_to_date()
        except Exception as error:
            self._tail = None
            reason = f"{self._folder} cannot be read: {type(error).__name__}: {in_one_line(error)}."
            self._summary = RunSummary(name=self._name, folder=self._folder, status=BROKEN, reason=reason)
            return self._summary

    def _up_to_date(self) -> RunSummary:
        seen = tuple(_signature(self._folder / name) for name in (STATE_FILE, SETTINGS_FILE, METRICS_FILE))
        # The process of a run that has not ended may die, and leave its files as they were.
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
            except UserError as error:  # it is not read again either, as long as it stays the same
                self._settings = error
            self._settings_seen = seen
        if isinstance(self._settings, UserError):
            raise self._settings
        return self._settings


def _signature(path: Path) -> FileIdentity | None:
    """None if it is missing."""
    try:
        return FileIdentity.of(path.stat())
    except OSError:
        return None


def _place(run: RunSummary) -> tuple[int, float, str]:
    """Where a run stands in a list, the greatest first."""
    try:
        began = datetime.fromisoformat(run.began or "").timestamp()
    except (ValueError, OverflowError, OSError):
        began = -math.inf
    if run.status == "queued":  # the one that waits longest starts first, among those of one priority
        began = -began
    return (len(_ORDER) - _ORDER.index(run.status) if run.status in _ORDER else 0, began, run.name)

"""The studies in a folder of runs, read from their study.json alone; what did not change is not read again."""

import math
import os
import threading
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from ml_pipeline.config.errors import UserError, nearest
from ml_pipeline.config.wording import in_one_line
from ml_pipeline.dashboard.json_file import JsonFile
from ml_pipeline.dashboard.run_files import is_plain
from ml_pipeline.dashboard.study import StudySummary, study_details, study_summary
from ml_pipeline.dashboard.summary import BROKEN, RunSummary
from ml_pipeline.runs.folders import folders_in
from ml_pipeline.tuning.study_files import REPORT_FILE, STUDY_FILE


class NoSuchStudy(UserError):
    """The folder of runs holds no study of this name."""


def read_studies(root: Path, runs: Sequence[RunSummary] = ()) -> list[StudySummary]:
    """The studies in a folder, or the folder that is one; running ones first, then the newest.

    runs: those below the root, which tell how far running trials are. Cheap to call again. Never raises for a study
    that is broken: its status tells. A folder that is missing, or cannot be listed, has none.
    """
    with _lock:
        reader = _readers.setdefault(root.absolute(), StudyReader(root))
    return reader.read(runs)


class StudyReader:
    """Reads the studies of one folder again and again; may be used by several threads."""

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
        """History and trials of a study; see `study_details`. Raises NoSuchStudy, or UserError where it is broken."""
        folder = find_study(self._root, name)
        with self._lock:
            known = self._known.setdefault(folder, _KnownStudy(self._root, folder))
            return known.details()


_lock = threading.Lock()
_readers: dict[Path, StudyReader] = {}


def find_study(root: Path, name: str) -> Path:
    """The folder of a study, by its folder's name. Raises NoSuchStudy, also for a name that would lead elsewhere."""
    studies = {_name_of(folder): folder for folder in _study_folders(root)}
    if name in studies:
        return studies[name]
    hint = nearest(name, sorted(studies)) if studies and is_plain(name) else "a study is named as its folder is."
    raise NoSuchStudy(f'{root} holds no study "{in_one_line(name)}"; {hint}')


class _KnownStudy:
    def __init__(self, root: Path, folder: Path) -> None:
        self._root = root
        self._folder = folder
        self._file = JsonFile(folder / STUDY_FILE)

    def summary(self, runs: Mapping[str, RunSummary]) -> StudySummary:
        try:
            self._file.refresh()
            report = self._folder / REPORT_FILE
            return study_summary(
                self._file.values,
                root=self._root,
                folder=self._folder,
                written_s=self._file.written_s,
                runs=runs,
                has_report=report.is_file() and not report.is_symlink(),
            )
        except Exception as error:  # anything at all: the others are to be seen
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
    """Hidden ones are left out, and links out of the root."""
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
    except (OSError, RuntimeError):  # a link that became one to itself
        return False


def _name_of(folder: Path) -> str:
    return folder.name or folder.absolute().name


def _place(study: StudySummary) -> tuple[bool, float, str]:
    """Where a study stands in a list, the greatest first."""
    try:
        updated = datetime.fromisoformat(study.updated or "").timestamp()
    except (ValueError, OverflowError, OSError):
        updated = -math.inf
    is_running = study.status == "running"
    return is_running, 0.0 if is_running else updated, study.name

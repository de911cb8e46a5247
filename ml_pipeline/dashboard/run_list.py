"""The lists of runs, studies and trading sessions, and what changed in them since somebody last looked."""

import threading
from pathlib import Path
from typing import Any, NamedTuple

from ml_pipeline.config.errors import UserError
from ml_pipeline.dashboard.curves.chart_data import plain
from ml_pipeline.dashboard.sessions import SessionReader
from ml_pipeline.dashboard.studies import read_studies
from ml_pipeline.dashboard.summaries import read_summaries


class Changes(NamedTuple):
    """runs: those that are new or changed. removed: names. order: of all runs, where it changed. studies: all of them,
    where one changed. sessions: as studies. problem: why the folder of runs cannot be read, None where it can."""

    version: int
    runs: list[dict[str, Any]]
    removed: list[str]
    order: list[str] | None
    studies: list[dict[str, Any]] | None
    sessions: list[dict[str, Any]] | None
    problem: str | None


class RunList:
    """The runs below a root, each with the number of the refresh that last changed it. For several threads."""

    def __init__(self, root: Path, sessions: SessionReader | None = None) -> None:
        self._root = root
        self._session_reader = sessions
        self._lock = threading.Lock()
        self.version = 0
        self._runs: dict[str, tuple[int, dict[str, Any]]] = {}
        self._removed: dict[str, int] = {}
        self._order: tuple[int, list[str]] = 0, []
        self._studies: tuple[int, list[dict[str, Any]]] = 0, []
        self._sessions: tuple[int, list[dict[str, Any]]] = 0, []
        self._problem: str | None = None

    def refresh(self) -> bool:
        """Look at the folders again; return whether anything changed."""
        problem = None
        try:
            summaries = read_summaries(self._root)
            found = {run.name: plain(run.as_json()) for run in summaries}
            studies = [study.as_json() for study in read_studies(self._root, summaries)]
        except UserError as error:
            found, studies, problem = {}, [], str(error)
        sessions = [each.as_json() for each in self._session_reader.read()] if self._session_reader else []
        with self._lock:
            before = {name: run for name, (_, run) in self._runs.items()}
            order = list(found)
            same_runs = found == before and order == self._order[1]
            same_others = studies == self._studies[1] and sessions == self._sessions[1]
            if same_runs and same_others and problem == self._problem:
                return False
            self.version += 1
            new = self.version
            self._removed = {name: at for name, at in self._removed.items() if name not in found}
            self._removed.update(dict.fromkeys(before.keys() - found.keys(), new))
            self._runs = {
                name: self._runs[name] if before.get(name) == run else (new, run) for name, run in found.items()
            }
            if order != self._order[1]:
                self._order = new, order
            if studies != self._studies[1]:
                self._studies = new, studies
            if sessions != self._sessions[1]:
                self._sessions = new, sessions
            self._problem = problem
        return True

    def since(self, version: int) -> Changes:
        """What changed after this version; everything is new after version 0."""
        with self._lock:
            return Changes(
                self.version,
                [run for at, run in self._runs.values() if at > version],
                [name for name, at in self._removed.items() if at > version] if version else [],
                self._order[1] if self._order[0] > version else None,
                self._studies[1] if self._studies[0] > version else None,
                self._sessions[1] if self._sessions[0] > version else None,
                self._problem,
            )

"""What the page asks for about studies and trading sessions: details of one, its reports, and the machine's use."""

from functools import partial
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ml_pipeline.dashboard.sessions import SessionReader
from ml_pipeline.dashboard.studies import REPORT_FILE, StudyReader, find_study
from ml_pipeline.dashboard.web.http import as_json, one_of
from ml_pipeline.dashboard.web.reports import Reports
from ml_pipeline.live.session_files import RECONCILIATION_FILE
from ml_pipeline.live.session_files import REPORT_FILE as SESSION_REPORT_FILE
from ml_pipeline.monitoring.resources import Machine


class Studies:
    """Studies are named in the query, as runs are; see `find_study`."""

    def __init__(self, root: Path, reports: Reports) -> None:
        self._root = root
        self._reports = reports
        self._reader = StudyReader(root)
        self._machine = Machine()

    def routes(self) -> list[Route]:
        return [
            Route("/api/study", partial(as_json, self.study)),
            Route("/api/machine", partial(as_json, self.machine)),
            Route("/study-report", self.report),
        ]

    def study(self, request: Request) -> Any:
        """History and trials of a study."""
        return self._reader.details(one_of(request, "study"))

    def machine(self, request: Request) -> Any:
        """CPU, memory and GPUs of the machine that serves the page."""
        use = self._machine.look()
        return {**use._asdict(), "gpus": [gpu._asdict() for gpu in use.gpus]}

    def report(self, request: Request) -> Response:
        name = one_of(request, "study")
        return self._reports.opened(
            request, "runs", find_study(self._root, name) / REPORT_FILE, f"{name} has no report yet."
        )


class Sessions:
    """Sessions are named in the query, as runs are; see `SessionReader.folder`."""

    def __init__(self, reader: SessionReader, reports: Reports) -> None:
        self._reader = reader
        self._reports = reports

    def routes(self) -> list[Route]:
        return [
            Route("/api/session", partial(as_json, self.session)),
            Route("/session-report", self.report),
            Route("/session-reconciliation", self.reconciliation),
        ]

    def session(self, request: Request) -> Any:
        """Equity, last decision and last events of a session."""
        return self._reader.details(one_of(request, "session"))

    def report(self, request: Request) -> Response:
        name = one_of(request, "session")
        return self._reports.opened(
            request, "sessions", self._reader.folder(name) / SESSION_REPORT_FILE, f"{name} has no report yet."
        )

    def reconciliation(self, request: Request) -> Response:
        name = one_of(request, "session")
        otherwise = f"{name} was not compared with its backtest yet: ml-pipeline paper-trade reconcile {name}"
        return self._reports.opened(request, "sessions", self._reader.folder(name) / RECONCILIATION_FILE, otherwise)

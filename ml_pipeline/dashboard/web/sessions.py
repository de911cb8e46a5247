"""What the page asks for about trading sessions: equity, last decision and events of one, and its two reports."""

from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ml_pipeline.config.errors import UserError
from ml_pipeline.dashboard.sessions import SessionReader
from ml_pipeline.dashboard.web.json_answer import as_json
from ml_pipeline.dashboard.web.reports import Reports
from ml_pipeline.live.session_files import RECONCILIATION_FILE, REPORT_FILE


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
        return self._reader.details(_named(request))

    def report(self, request: Request) -> Response:
        name = _named(request)
        return self._reports.opened(
            request, "sessions", self._reader.folder(name) / REPORT_FILE, f"{name} has no report yet."
        )

    def reconciliation(self, request: Request) -> Response:
        name = _named(request)
        otherwise = f"{name} was not compared with its backtest yet: ml-pipeline paper-trade reconcile {name}"
        return self._reports.opened(request, "sessions", self._reader.folder(name) / RECONCILIATION_FILE, otherwise)


def _named(request: Request) -> str:
    names = request.query_params.getlist("session")
    if len(names) != 1:
        raise UserError(f"Name one session, as ?session=NAME, but got {len(names)}.")
    return names[0]

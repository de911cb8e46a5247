"""What the page asks for about studies: history and trials of one, its report, and what the machine uses now."""

from functools import partial
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ml_pipeline.config.errors import UserError
from ml_pipeline.dashboard.studies import REPORT_FILE, StudyReader, find_study
from ml_pipeline.dashboard.web.json_answer import as_json
from ml_pipeline.dashboard.web.reports import Reports
from ml_pipeline.monitoring.machine import Machine


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
        return self._reader.details(_named(request))

    def machine(self, request: Request) -> Any:
        """CPU, memory and GPUs of the machine that serves the page."""
        use = self._machine.look()
        return {**use._asdict(), "gpus": [gpu._asdict() for gpu in use.gpus]}

    def report(self, request: Request) -> Response:
        name = _named(request)
        return self._reports.opened(
            request, "runs", find_study(self._root, name) / REPORT_FILE, f"{name} has no report yet."
        )


def _named(request: Request) -> str:
    names = request.query_params.getlist("study")
    if len(names) != 1:
        raise UserError(f"Name one study, as ?study=NAME, but got {len(names)}.")
    return names[0]

"""The web application: the page, and what it asks for about the runs below one folder.

Runs are named in the query, never in the path. Everything is read from run folders; only `controls` changes anything.
"""

import html
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.wording import in_one_line, shown_path
from ml_pipeline.dashboard.controls import Controls
from ml_pipeline.dashboard.curves.chart_data import check_axis, curve, time_spent, x_of
from ml_pipeline.dashboard.files import NoSuchRun, find_run, read_text
from ml_pipeline.dashboard.run_details import evaluation_table, settings_table
from ml_pipeline.dashboard.sessions import NoSuchSession, SessionReader
from ml_pipeline.dashboard.studies import NoSuchStudy
from ml_pipeline.dashboard.web.access import FILES, Access, Guard, plain_page
from ml_pipeline.dashboard.web.changing import Changing
from ml_pipeline.dashboard.web.http import (
    MOST_RUNS,
    JsonAnswer,
    as_json,
    metrics_of,
    number_of,
    range_of,
    runs_of,
    whole_number_of,
)
from ml_pipeline.dashboard.web.reports import NoSuchReport, Reports
from ml_pipeline.dashboard.web.studies_and_sessions import Sessions, Studies
from ml_pipeline.dashboard.web.updates import Choice, EventStream, Position, Updates
from ml_pipeline.monitoring.listener import LOG_FILE
from ml_pipeline.reporting.report_files import PAGE_FILE
from ml_pipeline.runs.folder import OUTPUT_FILE

_MOST_PAGES = 64
_ASSETS = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml", "txt": "text/plain"}
_SHARED_ASSETS = ("uPlot.min.js", "uPlot.min.css", "uPlot-LICENSE.txt")  # which reports use as well


def make_app(
    root: Path, access: Access, controls: Controls | None = None, *, sessions: Path | None = None
) -> tuple[ASGIApp, Updates]:
    """(the application over the runs below `root` and the trading `sessions`, what its streams send: closing it ends
    them)."""
    reader = SessionReader(sessions or root)
    reports = Reports(root, sessions or root, access.tickets)
    updates = Updates(root, reader)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        updates.close()

    app = Starlette(
        routes=[
            Route("/", _Page(root, access, controls, updates.look_ahead).answer),
            Route("/assets/{name}", _asset),
            # Of reports, which name no icon: browsers ask for this by themselves.
            Route("/favicon.ico", RedirectResponse("/assets/icon.svg")),
            *_Reading(root, updates, reports).routes(),
            *Studies(root, reports).routes(),
            *Sessions(reader, reports).routes(),
            *reports.routes(),
            *Changing(root, controls).routes(),
        ],
        exception_handlers={UserError: _told, HTTPException: _http_error, Exception: _failed},
        lifespan=lifespan,
    )
    return Guard(app, access), updates


_NOT_THERE = (NoSuchRun, NoSuchStudy, NoSuchSession, NoSuchReport)


def _told(request: Request, error: Exception) -> Response:
    if request.scope["path"].startswith(FILES):  # a link of a report, which a person followed
        return plain_page(str(error), status=404)
    return JsonAnswer({"error": str(error)}, 404 if isinstance(error, _NOT_THERE) else 400)


def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JsonAnswer({"error": f"{request.method} {request.url.path}: {error.detail}."}, error.status_code)


def _failed(request: Request, error: Exception) -> Response:
    sentence = f"{request.url.path} failed, which it should not: {type(error).__name__}: {in_one_line(error)}"
    return JsonAnswer({"error": sentence}, 500)


class _Page:
    def __init__(self, root: Path, access: Access, controls: Controls | None, look_ahead: Callable[[], None]) -> None:
        self._look_ahead = look_ahead
        text = files("ml_pipeline.dashboard").joinpath("assets", "page.html").read_text(encoding="utf-8")
        content = {
            "root": str(shown_path(root)),
            "token": access.page_token if controls is not None else "",
            "controls": "yes" if controls is not None else "",
            "most-runs": str(MOST_RUNS),
        }
        for name, value in content.items():
            text = text.replace("{{" + name + "}}", html.escape(value))
        self._text = text.encode(errors="replace")  # a folder may have any name

    def answer(self, request: Request) -> Response:
        return HTMLResponse(self._text, background=BackgroundTask(self._look_ahead))  # while the browser reads it


def _asset(request: Request) -> Response:
    name = request.path_params["name"]
    package = "ml_pipeline.reporting" if name in _SHARED_ASSETS else "ml_pipeline.dashboard"
    known = {each.name: each for each in files(package).joinpath("assets").iterdir()}
    kind = _ASSETS.get(name.rpartition(".")[2])
    if name not in known or kind is None:
        raise HTTPException(404, f"there is no file {name}")
    return Response(known[name].read_bytes(), media_type=kind, headers={"cache-control": "no-cache"})


class _Reading:
    """What the page asks for. Every answer is JSON, but for a report and the stream of events."""

    def __init__(self, root: Path, updates: Updates, reports: Reports) -> None:
        self._root = root
        self._updates = updates
        self._reports = reports

    def routes(self) -> list[Route]:
        answers: dict[str, Callable[[Request], Any]] = {
            "runs": self.runs,
            "metrics": self.metrics,
            "curves": self.curves,
            "time": self.time,
            "settings": self.settings,
            "evaluation": self.evaluation,
            "log": self.log,
        }
        return [
            *(Route(f"/api/{name}", partial(as_json, answer)) for name, answer in answers.items()),
            Route("/api/events", self.events),
            Route("/report", self.report),
        ]

    def runs(self, request: Request) -> Any:
        self._updates.runs.refresh()
        changes = self._updates.runs.since(0)
        by_name = {run["name"]: run for run in changes.runs}
        runs = [by_name[name] for name in changes.order or ()]
        return {
            "runs": runs,
            "studies": changes.studies or [],
            "sessions": changes.sessions or [],
            "problem": changes.problem,
            "position": str(Position(changes.version)),
        }

    def metrics(self, request: Request) -> Any:
        """The names of metrics, by run."""
        found = {}
        for run in runs_of(request):
            with self._updates.store.opened(run) as columns:
                found[run] = columns.names
        return {"names": found}

    def curves(self, request: Request) -> Any:
        """Thinned curves of the named metrics, by run."""
        axis = check_axis(request.query_params.get("axis", "step"))
        low, high = range_of(request)
        n_bins = int(number_of(request, "width", 800, least=10, most=8000))
        smoothing = number_of(request, "smoothing", 0.0, least=0.0, most=0.9999)
        metrics = metrics_of(request)
        found = {}
        for run in runs_of(request):
            with self._updates.store.opened(run) as columns:
                x = x_of(columns, axis)
                found[run] = {
                    "generation": columns.generation,
                    "n_rows": columns.n_rows,
                    "names": columns.names,
                    "metrics": {
                        name: curve(columns, name, x=x, low=low, high=high, n_bins=n_bins, smoothing=smoothing)
                        for name in metrics
                        if name in columns.names
                    },
                }
        return {"runs": found}

    def time(self, request: Request) -> Any:
        """Seconds in each stage of training, over steps or time and in all, by run."""
        axis = check_axis(request.query_params.get("axis", "step"))
        low, high = range_of(request)
        n_bins = int(number_of(request, "width", 200, least=10, most=8000))
        found = {}
        for run in runs_of(request):
            with self._updates.store.opened(run) as columns:
                x = x_of(columns, axis)
                found[run] = time_spent(columns, x=x, low=low, high=high, n_bins=n_bins)
        return {"runs": found}

    def settings(self, request: Request) -> Any:
        return settings_table([find_run(self._root, run) for run in runs_of(request)])

    def evaluation(self, request: Request) -> Any:
        """The figures of evaluations, and which of the runs have a report."""
        runs = runs_of(request)
        folders = [find_run(self._root, run) for run in runs]
        reports = [run for run, folder in zip(runs, folders, strict=True) if _is_file(folder / PAGE_FILE)]
        return {**evaluation_table(folders), "reports": reports}

    def log(self, request: Request) -> Any:
        """The end of a log, or what was added to it after a byte, or what lies before one."""
        (run,) = runs_of(request, exactly=1)
        names = {"run": LOG_FILE, "output": OUTPUT_FILE}
        which = request.query_params.get("file", "run")
        if which not in names:
            raise UserError(f'file is one of run, output, but got "{which}".')
        after, before = (whole_number_of(request, name) for name in ("after", "before"))
        path = find_run(self._root, run) / names[which]
        return {**read_text(path, after=after, before=before)._asdict(), "name": names[which]}

    def report(self, request: Request) -> Response:
        (run,) = runs_of(request, exactly=1)
        return self._reports.opened(
            request, "runs", find_run(self._root, run) / PAGE_FILE, f"{run} holds no report; evaluate it first."
        )

    async def events(self, request: Request) -> Any:
        if self._updates.pages >= _MOST_PAGES:
            raise HTTPException(503, f"{_MOST_PAGES} pages are open already; close one")
        choice = Choice(tuple(runs_of(request, at_least=0)), tuple(metrics_of(request)))
        given = request.headers.get("last-event-id") or request.query_params.get("after", "")
        return EventStream(self._updates, choice, Position.parse(given, len(choice.runs)))


def _is_file(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()

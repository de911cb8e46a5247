"""The web application of the dashboard: the page, and its API for the runs below one folder.

Runs are named in the query, not in the path. All data is read from run folders; only `controls` changes anything.
"""

import html
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, Protocol

from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from ml_pipeline.config.errors import UserError, nearest
from ml_pipeline.config.wording import in_one_line, shown_path
from ml_pipeline.dashboard.curves.chart_data import check_axis, curve, time_spent, x_of
from ml_pipeline.dashboard.files import NotThere, find_run, is_plain_file, read_text
from ml_pipeline.dashboard.run_details import evaluation_table, settings_table
from ml_pipeline.dashboard.sessions import SessionReader
from ml_pipeline.dashboard.studies import REPORT_FILE as STUDY_REPORT_FILE
from ml_pipeline.dashboard.studies import StudyReader, find_study
from ml_pipeline.dashboard.web.access import FILES, Access, Guard, plain_page
from ml_pipeline.dashboard.web.http import (
    MOST_RUNS,
    JsonAnswer,
    as_json,
    metrics_of,
    number_of,
    one_of,
    range_of,
    runs_of,
    whole_number_of,
)
from ml_pipeline.dashboard.web.reports import Reports
from ml_pipeline.dashboard.web.updates import Choice, EventStream, Position, Updates
from ml_pipeline.live.session_files import RECONCILIATION_FILE
from ml_pipeline.live.session_files import REPORT_FILE as SESSION_REPORT_FILE
from ml_pipeline.monitoring.listener import LOG_FILE
from ml_pipeline.monitoring.resources import Machine
from ml_pipeline.reporting.report_files import PAGE_FILE
from ml_pipeline.runs.folder import OUTPUT_FILE

_MOST_PAGES = 64
_ASSETS = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml", "txt": "text/plain"}
_SHARED_ASSETS = ("uPlot.min.js", "uPlot.min.css", "uPlot-LICENSE.txt")  # also used by reports


class Controls(Protocol):
    """Actions of the page if a service serves it: stop, resume and scale a run, named by its folder.

    Methods may raise UserError, whose sentence the page shows. Called from several threads at once.
    """

    def stop(self, run: str) -> object:
        """Ask a run to save and end; remove a queued run from the queue."""

    def resume(self, run: str, *, total_timesteps: int | None = None) -> object:
        """Continue a run that has ended from its checkpoint; return False if it has none and starts again.

        total_timesteps: new total for a finished run.
        """

    def scale(
        self, run: str, *, n_workers: int | Literal["auto", "dynamic"] | None = None, n_envs: int | None = None
    ) -> object:
        """Change the number of workers or environments of a run, from its next iteration; None: no change."""


def make_app(
    root: Path, access: Access, controls: Controls | None = None, *, sessions: Path | None = None
) -> tuple[ASGIApp, Updates]:
    """(the application for the runs below `root` and the trading `sessions`, its updates: closing them ends all
    streams)."""
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
            # Browsers request this for reports, which have no icon.
            Route("/favicon.ico", RedirectResponse("/assets/icon.svg")),
            *_Reading(root, reader, updates, reports).routes(),
            *reports.routes(),
            *_Changing(root, controls).routes(),
        ],
        exception_handlers={UserError: _told, HTTPException: _http_error, Exception: _failed},
        lifespan=lifespan,
    )
    return Guard(app, access), updates


def _told(request: Request, error: Exception) -> Response:
    if request.scope["path"].startswith(FILES):  # the user followed a link of a report
        return plain_page(str(error), status=404)
    return JsonAnswer({"error": str(error)}, 404 if isinstance(error, NotThere) else 400)


def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JsonAnswer({"error": f"{request.method} {request.url.path}: {error.detail}."}, error.status_code)


def _failed(request: Request, error: Exception) -> Response:
    sentence = f"{request.url.path} failed unexpectedly: {type(error).__name__}: {in_one_line(error)}"
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
    """Requests that read runs, studies and sessions, which the query names.

    All answers are JSON, except reports and the event stream.
    """

    def __init__(self, root: Path, sessions: SessionReader, updates: Updates, reports: Reports) -> None:
        self._root = root
        self._sessions = sessions
        self._studies = StudyReader(root)
        self._updates = updates
        self._reports = reports
        self._machine = Machine()

    def routes(self) -> list[Route]:
        answers = (
            *(self.runs, self.metrics, self.curves, self.time, self.settings, self.evaluation, self.log),
            *(self.study, self.session, self.machine),
        )
        return [
            *(Route(f"/api/{answer.__name__}", partial(as_json, answer)) for answer in answers),
            Route("/api/events", self.events),
            Route("/report", self.report),
            Route("/study-report", self.study_report),
            Route("/session-report", self.session_report),
            Route("/session-reconciliation", self.session_reconciliation),
        ]

    def runs(self, request: Request) -> Any:
        self._updates.runs.refresh()
        changes = self._updates.runs.since(0)
        by_name = {run["name"]: run for run in changes.runs}
        runs = [by_name[name] for name in changes.lists.get("order", ())]
        return {
            "runs": runs,
            "studies": changes.lists.get("studies", []),
            "sessions": changes.lists.get("sessions", []),
            "problem": changes.problem,
            "position": str(Position(changes.version)),
        }

    def metrics(self, request: Request) -> Any:
        """Names of metrics, by run."""
        found = {}
        for run in runs_of(request):
            with self._updates.store.opened(run) as columns:
                found[run] = columns.names
        return {"names": found}

    def curves(self, request: Request) -> Any:
        """Downsampled curves of the named metrics, by run."""
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
        """Seconds in each stage of training, over steps or time and in total, by run."""
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
        """Evaluation metrics, and the runs that have a report."""
        runs = runs_of(request)
        folders = [find_run(self._root, run) for run in runs]
        reports = [run for run, folder in zip(runs, folders, strict=True) if is_plain_file(folder / PAGE_FILE)]
        return {**evaluation_table(folders), "reports": reports}

    def log(self, request: Request) -> Any:
        """The end of a log, or the part after or before a byte offset."""
        (run,) = runs_of(request, exactly=1)
        names = {"run": LOG_FILE, "output": OUTPUT_FILE}
        which = request.query_params.get("file", "run")
        if which not in names:
            raise UserError(f'file must be run or output, but got "{which}".')
        after, before = (whole_number_of(request, name) for name in ("after", "before"))
        path = find_run(self._root, run) / names[which]
        return {**read_text(path, after=after, before=before)._asdict(), "name": names[which]}

    def study(self, request: Request) -> Any:
        """History and trials of a study."""
        return self._studies.details(one_of(request, "study"))

    def session(self, request: Request) -> Any:
        """Equity, last decision and last events of a session."""
        return self._sessions.details(one_of(request, "session"))

    def machine(self, request: Request) -> Any:
        """CPU, memory and GPU usage of the server's machine."""
        use = self._machine.look()
        return {**use._asdict(), "gpus": [gpu._asdict() for gpu in use.gpus]}

    def report(self, request: Request) -> Response:
        (run,) = runs_of(request, exactly=1)
        return self._reports.opened(
            request, "runs", find_run(self._root, run) / PAGE_FILE, f"{run} has no report; evaluate it first."
        )

    def study_report(self, request: Request) -> Response:
        name = one_of(request, "study")
        path = find_study(self._root, name) / STUDY_REPORT_FILE
        return self._reports.opened(request, "runs", path, f"{name} has no report yet.")

    def session_report(self, request: Request) -> Response:
        name = one_of(request, "session")
        path = self._sessions.folder(name) / SESSION_REPORT_FILE
        return self._reports.opened(request, "sessions", path, f"{name} has no report yet.")

    def session_reconciliation(self, request: Request) -> Response:
        name = one_of(request, "session")
        otherwise = f"{name} has no comparison with its backtest; run: ml-pipeline paper-trade reconcile {name}"
        return self._reports.opened(request, "sessions", self._sessions.folder(name) / RECONCILIATION_FILE, otherwise)

    async def events(self, request: Request) -> Any:
        if self._updates.pages >= _MOST_PAGES:
            raise HTTPException(503, f"{_MOST_PAGES} pages are open already; close one")
        choice = Choice(tuple(runs_of(request, at_least=0)), tuple(metrics_of(request)))
        given = request.headers.get("last-event-id") or request.query_params.get("after", "")
        return EventStream(self._updates, choice, Position.parse(given, len(choice.runs)))


_LARGEST_REQUEST = 10_000


class _Changing:
    """Requests to stop, resume and scale a run; refused if no service serves the page."""

    def __init__(self, root: Path, controls: Controls | None) -> None:
        self._root = root
        self._controls = controls

    def routes(self) -> list[Route]:
        return [
            Route(f"/api/{name}", partial(self._answer, name), methods=["POST"]) for name in ("stop", "resume", "scale")
        ]

    async def _answer(self, name: Literal["stop", "resume", "scale"], request: Request) -> Response:
        if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            raise HTTPException(415, "send JSON")
        return JsonAnswer(await run_in_threadpool(self._do, name, await _body_of(request)))

    def _do(self, name: str, body: bytes) -> dict[str, str]:
        if self._controls is None:
            raise UserError(
                "This page only shows runs; to stop, resume and scale them, use the page of `ml-pipeline serve`."
            )
        try:
            values = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise UserError("The request is not valid JSON.") from error
        if not isinstance(values, dict) or not isinstance(values.get("run"), str):
            raise UserError('The request must name a run, as {"run": "NAME"}.')
        run = values.pop("run")
        find_run(self._root, run)
        known = {"scale": ("n_workers", "n_envs"), "resume": ("total_timesteps",), "stop": ()}[name]
        for each in values:
            if each not in known:
                raise UserError(f'{name} takes no "{each}". {nearest(each, ["run", *known])}')
        if name == "scale":
            self._controls.scale(run, **_scale_of(values))
            return {"done": f"{run} scales after its current iteration; see its log."}
        if name == "stop":
            self._controls.stop(run)
            return {"done": f"{run} saves and stops."}
        total = values.get("total_timesteps")
        if total is not None and (not isinstance(total, int) or isinstance(total, bool) or total < 1):
            raise UserError(f"total_timesteps must be a whole number from 1 on, but got {json.dumps(total)}.")
        if self._controls.resume(run, total_timesteps=total) is False:
            return {"done": f"{run} has no checkpoint; it starts again when resources are free."}
        return {"done": f"{run} continues from its checkpoint when resources are free."}


def _scale_of(values: dict[str, Any]) -> dict[str, Any]:
    if not values:
        raise UserError("scale needs n_workers, n_envs, or both.")
    for name, value in values.items():
        is_count = isinstance(value, int) and not isinstance(value, bool) and value >= (0 if name == "n_workers" else 1)
        if not is_count and not (name == "n_workers" and value in ("auto", "dynamic")):
            words = ", auto or dynamic" if name == "n_workers" else ""
            raise UserError(f"{name} must be a whole number{words}, but got {json.dumps(value)}.")
    return values


async def _body_of(request: Request) -> bytes:
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > _LARGEST_REQUEST:
            raise HTTPException(413, "the request is too long")
    return body

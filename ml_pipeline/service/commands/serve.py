"""Command: run a queue of trainings, several at once, with a dashboard; `ml-pipeline submit` adds runs.

ml-pipeline serve
ml-pipeline serve --max-runs 2 --max-concurrent-envs 16
ml-pipeline serve --config service.yaml --no-page
"""

import shlex
import time
from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from ml_pipeline.commands import COMMANDS
from ml_pipeline.config.errors import UserError, nearest
from ml_pipeline.config.files import read_settings
from ml_pipeline.config.flags import read_flags
from ml_pipeline.config.settings import build
from ml_pipeline.config.wording import counted, shown_path
from ml_pipeline.dashboard.server import HOST, PORT, DashboardServer
from ml_pipeline.dashboard.server import serve as serve_page
from ml_pipeline.live.session_files import root_of_sessions
from ml_pipeline.monitoring.console import entry, outlive_readers
from ml_pipeline.runs.folder import root_of_runs
from ml_pipeline.runtime.interrupts import Interrupted, raising_once_more
from ml_pipeline.service.agent_training_service import AgentTrainingService
from ml_pipeline.service.channel import ServiceChannel
from ml_pipeline.service.resources import ServiceLimits
from ml_pipeline.service.store import StoreUnavailable

PROG = "serve"
_LOOK_S = 0.1


@dataclass(frozen=True, kw_only=True)
class ServeConfig:
    """The service and its dashboard."""

    root: Path | None = None
    """Folder of runs; none: checkpoints/."""

    config: Path | None = None
    """YAML or JSON file of settings, whose keys are the names of flags; flags override the file."""

    page: bool = True
    """Serve the dashboard."""

    host: str = HOST
    """Address of the dashboard. Addresses that other machines can reach require a token."""

    port: int = PORT
    """Port of the dashboard; if it is in use, the next free port is taken."""

    token: str | None = None
    """Password of the dashboard, at least 16 characters; the address that is printed contains it."""

    stop_runs: bool = False
    """Stop all runs when the service ends; otherwise they continue to train."""


@dataclass(frozen=True, kw_only=True)
class CommandLine:
    """The flags of the command."""

    serve: ServeConfig = field(default_factory=ServeConfig)
    limits: ServiceLimits = field(default_factory=ServiceLimits)


def main(argv: list[str], *, prog: str = PROG) -> int:
    """Serve until Ctrl-C or SIGTERM; exit with code 2 and an error message if the service cannot start."""
    with entry(prog, first_signal_alone=True):
        settings = _settings(argv, prog)
        serve = settings.serve
        root = root_of_runs(serve.root)
        outlive_readers()
        with ExitStack() as stack:
            service = stack.enter_context(AgentTrainingService(root, limits=settings.limits, say=_say))
            stack.enter_context(closing(ServiceChannel(root, partial(answer, service))))
            page = _page(settings, root, service) if serve.page else None
            if page is not None:
                stack.enter_context(page)
            waiting = [run for run in service.list() if run.status in {"queued", "running"}]
            try:
                _say(f"The service works on {shown_path(root)}: {counted(len(waiting), 'run')} to do.")
                if page is not None:
                    _say(f"Dashboard: {page.url}")
                _say(f"Add runs with: ml-pipeline submit ...{_root_flag(serve.root)}   Ctrl-C ends the service.")
                # Short sleeps: a signal that another thread received is handled only when this thread wakes up.
                while True:
                    time.sleep(_LOOK_S)
            except Interrupted as stop:
                service.start_no_more()
                _end(service, serve, prog)
                return stop.exit_code
    return 0


def _end(service: AgentTrainingService, serve: ServeConfig, prog: str) -> None:
    try:
        _tell_end(service, serve, prog)
    except StoreUnavailable as error:  # the service ends anyway
        _say(str(error))


def _tell_end(service: AgentTrainingService, serve: ServeConfig, prog: str) -> None:
    going_on = [run.id for run in service.list() if run.status == "running"]
    queued = sum(run.status == "queued" for run in service.list())
    again = f"{prog}{_root_flag(serve.root)}"
    if serve.stop_runs and going_on:
        _say(f"Stopping {counted(len(going_on), 'run')}; each saves first. Press Ctrl-C again to let them continue.")
        with raising_once_more():
            service.close(stop_runs=True)
    elif going_on:
        go_on = "continues" if len(going_on) == 1 else "continue"
        _say(f"{counted(len(going_on), 'run')} {go_on} without the service: {' '.join(going_on)}")
    if queued:
        _say(f"{counted(queued, 'run')} {'waits' if queued == 1 else 'wait'} in the queue.")
    _say(f"Start the service again with: {again}")


def _page(settings: CommandLine, root: Path, service: AgentTrainingService) -> DashboardServer | None:
    """The dashboard with buttons; if its extra is not installed, print a message and return None."""
    serve = settings.serve
    try:
        page = serve_page(
            root,
            sessions=root_of_sessions(None),
            controls=service,
            host=serve.host,
            port=serve.port,
            token=serve.token,
        )
    except UserError as error:
        if not isinstance(error.__cause__, ModuleNotFoundError):
            raise
        _say(f"No dashboard: {error}")
        return None
    if page.moved:
        _say(f"Port {serve.port} is in use; {page.port} was free.")
    return page


def _settings(argv: list[str], prog: str) -> CommandLine:
    flags = read_flags(argv, CommandLine, prog=prog, description=COMMANDS["serve"].sentence)
    file = flags.pop("config", None)
    return build(CommandLine, {**(read_settings(file, CommandLine) if file else {}), **flags})


def _root_flag(root: Path | None) -> str:
    return "" if root is None else f" --root {shlex.quote(str(root))}"


def _say(sentence: str) -> None:
    print(sentence, flush=True)


_KNOWN = ("submit", "knows", "stop", "resume", "scale")


def answer(service: AgentTrainingService, request: Mapping[str, Any]) -> Any:
    """Carry out a request {"do": NAME, ...} and return a JSON value. Raises UserError."""
    asked = dict(request)
    do = asked.pop("do", "")
    if do == "submit":
        return service.submit(asked.pop("settings"), **asked)
    if do == "knows":
        return service.knows(asked["run"])
    if do in {"stop", "resume", "scale"}:
        return getattr(service, do)(asked.pop("run"), **asked)
    raise UserError(f'The service has no request "{do}". {nearest(str(do), _KNOWN)}')

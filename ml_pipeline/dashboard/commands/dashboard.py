"""Command: the page in the browser over a folder of runs, to be read only; or its studies in the terminal.

ml-pipeline dashboard
ml-pipeline dashboard checkpoints/ --port 9000
ml-pipeline dashboard checkpoints/ --host 0.0.0.0
ml-pipeline dashboard --training
ml-pipeline dashboard --training --study eurusd_5m --once
"""

import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from ml_pipeline.commands import COMMANDS
from ml_pipeline.config.errors import UserError
from ml_pipeline.config.flags import parse_settings
from ml_pipeline.config.wording import shown_path
from ml_pipeline.dashboard.server import HOST, PORT, serve
from ml_pipeline.dashboard.studies import StudySummary, find_study, read_studies
from ml_pipeline.dashboard.summaries import read_summaries
from ml_pipeline.dashboard.terminal.study_screen import study_line, study_lines, study_screen
from ml_pipeline.live.session_files import root_of_sessions
from ml_pipeline.monitoring.console import entry
from ml_pipeline.monitoring.machine import Machine
from ml_pipeline.runs.folder import root_of_runs
from ml_pipeline.runs.folders import check_folder
from ml_pipeline.runtime.interrupts import Interrupted

_INTERVAL_S = 1.0


@dataclass(frozen=True, kw_only=True)
class DashboardConfig:
    """What is shown, and where it is served.

    Raises UserError where settings of the terminal stand without --training.
    """

    root: tyro.conf.Positional[tuple[Path, ...]]
    """Folder of runs, or one run folder; none: checkpoints/."""
    sessions: Path | None = None
    """Folder of trading sessions; none: live/."""
    host: str = HOST
    """Address to listen on. Any but this machine's own needs a token, which is made and printed unless --token names
    one."""
    port: int = PORT
    """Port to listen on. If it is in use, the next free one is taken."""
    token: str | None = None
    """What whoever opens the page must know, at least 16 characters."""
    training: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Show the studies in this terminal, in place of a page in the browser."""
    study: str | None = None
    """The study to show with --training; none: the one that runs, or ran last, and the others in one line each."""
    once: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """With --training: print what is known now, and end."""

    def __post_init__(self) -> None:
        if not self.training and (self.study is not None or self.once):
            flag = "--study" if self.study is not None else "--once"
            raise UserError(f"{flag} is for the terminal; add --training, or choose the study on the page.")


@dataclass(frozen=True)
class CommandLine:
    """What the flags fill."""

    dashboard: DashboardConfig = field()


def main(argv: list[str], *, prog: str = "dashboard") -> int:
    """Serve, or draw, until Ctrl-C; exit with code 2 after one sentence where it cannot."""
    with entry(prog):
        config = parse_settings(argv, CommandLine, prog=prog, description=COMMANDS["dashboard"].sentence).dashboard
        root = _root_of(config)
        if config.training:
            return _show_training(config, root)
        with serve(
            root, sessions=root_of_sessions(config.sessions), host=config.host, port=config.port, token=config.token
        ) as server:
            if server.moved:
                print(f"Port {config.port} is in use; {server.port} was free.")
            print(
                f"The runs in {shown_path(root)} are shown at {server.url}",
                "Ctrl-C ends it.",
                sep="\n",
                flush=True,
            )
            server.wait()
    return 0


def _show_training(config: DashboardConfig, root: Path) -> int:
    if config.study is not None:
        find_study(root, config.study)
    console = Console(highlight=False)
    machine = Machine()
    try:
        if config.once:
            time.sleep(0.1)  # the use of the cores is that since the look before
            print(
                *_lines(config, root, machine=machine, width=console.width if console.is_terminal else None), sep="\n"
            )
        elif console.is_terminal and not console.is_dumb_terminal:
            _draw(config, root, machine, console)
        else:
            _print(config, root, machine)
    except Interrupted as stop:
        if stop.number != signal.SIGINT:
            raise
    return 0


def _studies(config: DashboardConfig, root: Path) -> list[StudySummary]:
    found = read_studies(root, read_summaries(root))
    return [study for study in found if config.study in (None, study.name)]


def _lines(config: DashboardConfig, root: Path, *, machine: Machine, width: int | None) -> list[str]:
    """The first study in full, the others in one line each."""
    studies = _studies(config, root)
    if not studies:
        return [_none_yet(root)]
    return [*study_lines(studies[0], machine=machine.look(), width=width), *map(study_line, studies[1:])]


def _draw(config: DashboardConfig, root: Path, machine: Machine, console: Console) -> None:
    """In place, as much as the window has lines for."""
    with Live(console=console, screen=True, auto_refresh=False, vertical_overflow="crop") as live:
        while True:
            studies = _studies(config, root)
            live.update(_screen(studies, machine, console) if studies else Text(_none_yet(root)), refresh=True)
            time.sleep(_INTERVAL_S)


def _screen(studies: Sequence[StudySummary], machine: Machine, console: Console) -> Group:
    return study_screen(studies, machine=machine.look(), width=console.width, height=console.height)


def _print(config: DashboardConfig, root: Path, machine: Machine) -> None:
    """Whenever another trial has ended or begun, with the time in UTC above it."""
    before: object = None
    while True:
        now = [
            (study.name, study.status, study.finished, study.failed, [trial.number for trial in study.running])
            for study in _studies(config, root)
        ]
        if now != before:
            before = now
            lines = _lines(config, root, machine=machine, width=None)
            print(f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}", *lines, sep="\n", end="\n\n", flush=True)
        time.sleep(_INTERVAL_S)


def _none_yet(root: Path) -> str:
    return f"No studies in {shown_path(root)} yet. Start one with: ml-pipeline tune"


def _root_of(config: DashboardConfig) -> Path:
    """The one folder that is shown. Raises UserError where several are named, or it is not there."""
    if len(config.root) > 1:
        raise UserError(
            f"The page shows one folder of runs, but {len(config.root)} are named; name one that holds them."
        )
    if not config.root:
        return root_of_runs(None)
    check_folder(config.root[0])
    return root_of_runs(config.root[0])

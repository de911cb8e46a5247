"""Command: a read-only dashboard of a folder of runs in the browser, or of its studies in the terminal.

ml-pipeline dashboard
ml-pipeline dashboard checkpoints/ --port 9000
ml-pipeline dashboard checkpoints/ --host 0.0.0.0
ml-pipeline dashboard --training
ml-pipeline dashboard --training --study eurusd_5m --once
"""

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from ml_pipeline.commands import COMMANDS
from ml_pipeline.config.errors import UserError
from ml_pipeline.config.flags import parse_settings
from ml_pipeline.config.wording import shown_path
from ml_pipeline.dashboard.server import HOST, PORT, serve
from ml_pipeline.dashboard.studies import find_study
from ml_pipeline.dashboard.terminal.views import StudiesView, show, watch
from ml_pipeline.live.session_files import root_of_sessions
from ml_pipeline.monitoring.console import entry
from ml_pipeline.runs.folder import root_of_runs
from ml_pipeline.runs.folders import check_folder

_INTERVAL_S = 1.0


@dataclass(frozen=True, kw_only=True)
class DashboardConfig:
    """The folders to show, and the address of the dashboard.

    Raises UserError if settings of the terminal are used without --training.
    """

    root: tyro.conf.Positional[tuple[Path, ...]]
    """Folder of runs, or one run folder; none: checkpoints/."""
    sessions: Path | None = None
    """Folder of trading sessions; none: live/."""
    host: str = HOST
    """Address to listen on. Addresses that other machines can reach require a token; without --token, the command
    creates and prints one."""
    port: int = PORT
    """Port to listen on; if it is in use, the next free port is taken."""
    token: str | None = None
    """Password of the dashboard, at least 16 characters; the address that is printed contains it."""
    training: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Show the studies in this terminal instead of the browser."""
    study: str | None = None
    """Name of the study that --training shows; none: the active or latest study, with one line for each other study."""
    once: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """With --training: print the current state once, and exit."""

    def __post_init__(self) -> None:
        if not self.training and (self.study is not None or self.once):
            flag = "--study" if self.study is not None else "--once"
            raise UserError(f"{flag} works only in the terminal; add --training, or choose the study on the page.")


@dataclass(frozen=True)
class CommandLine:
    """The flags of the command."""

    dashboard: DashboardConfig = field()


def main(argv: list[str], *, prog: str = "dashboard") -> int:
    """Serve or draw until Ctrl-C; exit with code 2 and an error message if that is impossible."""
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
                f"Dashboard of {shown_path(root)}: {server.url}",
                "Press Ctrl-C to end it.",
                sep="\n",
                flush=True,
            )
            server.wait()
    return 0


def _show_training(config: DashboardConfig, root: Path) -> int:
    if config.study is not None:
        find_study(root, config.study)
    view = StudiesView(root, config.study)
    if not config.once:
        watch(view, interval_s=_INTERVAL_S)
        return 0
    time.sleep(0.1)  # CPU use is measured since the previous sample
    show(view)
    return 0


def _root_of(config: DashboardConfig) -> Path:
    """The folder to show. Raises UserError if several are named, or if it does not exist."""
    if len(config.root) > 1:
        raise UserError(
            f"The dashboard shows one folder of runs, but got {len(config.root)}; name the folder that contains them."
        )
    if not config.root:
        return root_of_runs(None)
    check_folder(config.root[0])
    return root_of_runs(config.root[0])

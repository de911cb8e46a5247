"""Command: the page in the browser over a folder of runs, to be read only; or its studies in the terminal.

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
    view = StudiesView(root, config.study)
    if not config.once:
        watch(view, interval_s=_INTERVAL_S)
        return 0
    time.sleep(0.1)  # the use of the cores is that since the look before
    show(view)
    return 0


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

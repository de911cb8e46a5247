"""Command: the page in the browser over a folder of runs, to be read only; needs no service.

ml-pipeline dashboard
ml-pipeline dashboard checkpoints/ --port 9000
ml-pipeline dashboard checkpoints/ --host 0.0.0.0
"""

import sys
from dataclasses import dataclass, field
from pathlib import Path

from ml_pipeline.runtime.interrupts import exit_at_once_on_signals

if __name__ == "__main__":
    exit_at_once_on_signals("dashboard")

import tyro

from ml_pipeline.commands import COMMANDS
from ml_pipeline.config.errors import UserError
from ml_pipeline.config.flags import parse_settings
from ml_pipeline.config.wording import shown_path
from ml_pipeline.dashboard.server import HOST, PORT, serve
from ml_pipeline.monitoring.console import entry
from ml_pipeline.runs.folder import root_of_runs
from ml_pipeline.runs.folders import check_folder


@dataclass(frozen=True, kw_only=True)
class DashboardConfig:
    """What is shown, and where it is served."""

    root: tyro.conf.Positional[tuple[Path, ...]]
    """Folder of runs, or one run folder; none: checkpoints/."""
    host: str = HOST
    """Address to listen on. Any but this machine's own needs a token, which is made and printed unless --token names
    one."""
    port: int = PORT
    """Port to listen on. If it is in use, the next free one is taken."""
    token: str | None = None
    """What whoever opens the page must know, at least 16 characters."""


@dataclass(frozen=True)
class CommandLine:
    """What the flags fill."""

    dashboard: DashboardConfig = field()


def main(argv: list[str], *, prog: str = "dashboard") -> int:
    """Serve until Ctrl-C; exit with code 2 after one sentence where it cannot."""
    with entry(prog):
        config = parse_settings(argv, CommandLine, prog=prog, description=COMMANDS["dashboard"].sentence).dashboard
        with serve(_root_of(config), host=config.host, port=config.port, token=config.token) as server:
            if server.moved:
                print(f"Port {config.port} is in use; {server.port} was free.")
            print(
                f"The runs in {shown_path(_root_of(config))} are shown at {server.url}",
                "Ctrl-C ends it.",
                sep="\n",
                flush=True,
            )
            server.wait()
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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

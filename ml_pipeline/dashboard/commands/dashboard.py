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
from ml_pipeline.runs.folder import runs_folder


@dataclass(frozen=True, kw_only=True)
class DashboardConfig:
    """What is shown, and where it is served."""

    root: tyro.conf.Positional[Path | None] = None
    """Folder of runs; by default checkpoints/."""
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

    dashboard: DashboardConfig = field(default_factory=DashboardConfig)


def main(argv: list[str], *, prog: str = "dashboard") -> int:
    """Serve until Ctrl-C; exit with code 2 after one sentence where it cannot."""
    with entry(prog):
        config = parse_settings(argv, CommandLine, prog=prog, description=COMMANDS["dashboard"].sentence).dashboard
        root = (runs_folder() if config.root is None else config.root.expanduser()).absolute()
        if config.root is not None and not root.is_dir():
            raise UserError(f"{config.root} is no folder; name one that holds runs, such as checkpoints/.")
        with serve(root, host=config.host, port=config.port, token=config.token) as server:
            if server.moved:
                print(f"Port {config.port} is in use; {server.port} was free.")
            print(f"The runs in {shown_path(root)} are shown at {server.url}", "Ctrl-C ends it.", sep="\n", flush=True)
            server.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Command: ask runs to save and end, or take them out of the queue; with or without a service.

ml-pipeline stop CartPole-v1-seed0
ml-pipeline stop --all
"""

import sys

from ml_pipeline.runtime.interrupts import exit_at_once_on_signals

if __name__ == "__main__":
    exit_at_once_on_signals("stop")

from dataclasses import dataclass, field
from pathlib import Path

import tyro

from ml_pipeline.commands import COMMANDS
from ml_pipeline.config.errors import UserError
from ml_pipeline.config.flags import parse_settings
from ml_pipeline.monitoring.console import entry
from ml_pipeline.runs.folder import runs_folder
from ml_pipeline.runs.state import read_state
from ml_pipeline.service.run_controls import stop_run
from ml_pipeline.service.run_names import find_run, run_ids

PROG = "stop"


@dataclass(frozen=True)
class StopConfig:
    """Which runs stop."""

    runs: tyro.conf.Positional[tuple[str, ...]] = ()
    """Ids of runs, beginnings of ids, or folders."""

    all: bool = False
    """Stop all runs that wait or go on."""

    root: Path | None = None
    """Folder of runs; none: checkpoints/."""


@dataclass(frozen=True, kw_only=True)
class CommandLine:
    """What the flags fill."""

    stop: StopConfig = field(default_factory=StopConfig)


def main(argv: list[str], *, prog: str = PROG) -> int:
    """Stop; return 1 where one of several could not be stopped, and exit with code 2 where none is meant."""
    with entry(prog):
        stop = parse_settings(argv, CommandLine, prog=prog, description=COMMANDS["stop"].sentence).stop
        root = (runs_folder() if stop.root is None else stop.root.expanduser()).absolute()
        if bool(stop.runs) == stop.all:
            raise UserError("Name the runs to stop, or say --all.")
        folders = [find_run(root, name) for name in stop.runs] or _under_way(root)
        if not folders:
            print("No run waits or goes on.")
        failed = False
        for folder in folders:
            try:
                print(stop_run(root, folder), flush=True)
            except UserError as error:
                failed = True
                print(f"{prog}: {error}", file=sys.stderr)
    return int(failed)


def _under_way(root: Path) -> list[Path]:
    """Those that wait first: else they would start in the place of those that stop."""
    found = {name: read_state(root / name) for name in run_ids(root)}
    queued = [root / name for name, state in found.items() if state is not None and state.status == "queued"]
    return queued + [root / name for name, state in found.items() if state is not None and state.status == "running"]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

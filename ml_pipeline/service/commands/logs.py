"""Command: print what a run said, and go on with it as it says more.

ml-pipeline logs CartPole-v1-seed0-2026
ml-pipeline logs CartPole-v1-seed0-2026 --follow
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from ml_pipeline.commands import COMMANDS
from ml_pipeline.config.flags import parse_settings
from ml_pipeline.monitoring.console import entry
from ml_pipeline.runs.folder import root_of_runs
from ml_pipeline.service.control.run_names import find_run
from ml_pipeline.service.run.output import RunOutput

PROG = "logs"


@dataclass(frozen=True)
class LogsConfig:
    """Which log is printed."""

    run: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]
    """Id of the run, the beginning of one, or its folder."""

    follow: bool = False
    """Go on until the run has ended."""

    root: Path | None = None
    """Folder of runs; none: checkpoints/."""


@dataclass(frozen=True, kw_only=True)
class CommandLine:
    """What the flags fill."""

    logs: LogsConfig


def main(argv: list[str], *, prog: str = PROG) -> int:
    """Print the log; exit with code 2, after one sentence, where there is no such run."""
    with entry(prog):
        logs = parse_settings(argv, CommandLine, prog=prog, description=COMMANDS["logs"].sentence).logs
        root = root_of_runs(logs.root)
        for text in RunOutput(find_run(root, logs.run, newest=True)).texts(follow=logs.follow):
            sys.stdout.write(text)
            sys.stdout.flush()
    return 0

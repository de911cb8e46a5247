"""Command: show runs in one table: their state, progress, speed, time left and scores.

python -m ml_pipeline.dashboard.commands.status
python -m ml_pipeline.dashboard.commands.status checkpoints/ --json
"""

import sys

from ml_pipeline.runtime.interrupts import exit_at_once_on_signals

if __name__ == "__main__":
    exit_at_once_on_signals("status")

import json

from rich.console import Console

from ml_pipeline.commands import COMMANDS
from ml_pipeline.config.flags import parse_settings
from ml_pipeline.dashboard.terminal import plain_lines, remarks, status_table
from ml_pipeline.dashboard.terminal_config import StatusCommandLine
from ml_pipeline.monitoring.console import entry


def main(argv: list[str], *, prog: str = "status") -> int:
    """Print the table; return 0. Exits with code 2, after one sentence, where a folder cannot be used."""
    with entry(prog):
        config = parse_settings(argv, StatusCommandLine, prog=prog, description=COMMANDS["status"].sentence).status
        runs = config.read()
        if config.json:
            print(json.dumps([run.as_json() for run in runs], indent=2, allow_nan=False))
            return 0
        if not runs:
            print(config.empty())
            return 0
        console = Console(highlight=False)
        if console.is_terminal:
            console.print(status_table(runs, width=console.width))
        else:
            print(*plain_lines(runs), sep="\n")
        print(*remarks(runs, width=console.width if console.is_terminal else None), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

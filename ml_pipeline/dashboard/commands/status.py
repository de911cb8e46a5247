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
from ml_pipeline.dashboard.terminal.command_line import StatusCommandLine
from ml_pipeline.dashboard.terminal.run_table import plain_lines, remarks, status_table
from ml_pipeline.monitoring.console import entry


def main(argv: list[str], *, prog: str = "status") -> int:
    """Print the table; return 0. Exits with code 2, after one sentence, where a folder cannot be used."""
    with entry(prog):
        config = parse_settings(argv, StatusCommandLine, prog=prog, description=COMMANDS["status"].sentence).status
        runs = config.read()
        if config.json:
            print(json.dumps([run.as_json() for run in runs], indent=2, allow_nan=False))
            return 0
        studies, listed = config.studies(runs), config.listed(runs)
        if not listed and not studies:
            print(config.empty())
            return 0
        console = Console(highlight=False)
        if listed and console.is_terminal:
            console.print(status_table(listed, width=console.width))
        elif listed:
            print(*plain_lines(listed), sep="\n")
        below = remarks(listed, width=console.width if console.is_terminal else None) if listed else []
        print(*below, *studies, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

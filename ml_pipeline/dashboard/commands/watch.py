"""Command: show the table of runs live, until Ctrl-C.

ml-pipeline watch
ml-pipeline watch checkpoints/ --interval-s 10
"""

import signal
import time
from collections.abc import Sequence
from datetime import UTC, datetime

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from ml_pipeline.commands import COMMANDS
from ml_pipeline.config.flags import parse_settings
from ml_pipeline.dashboard.summaries import RunSummary
from ml_pipeline.dashboard.terminal.command_line import WatchCommandLine, WatchConfig
from ml_pipeline.dashboard.terminal.run_table import plain_lines, remarks, status_table
from ml_pipeline.monitoring.console import entry
from ml_pipeline.runtime.interrupts import Interrupted

_AROUND = 2  # lines of the header and of the count of runs


def main(argv: list[str], *, prog: str = "watch") -> int:
    """Show the table until Ctrl-C; return 0. Exits with code 2, after one sentence, where a folder cannot be used.

    On a terminal the table is drawn anew in place; elsewhere it is printed, with the time in UTC above it, whenever it
    has changed.
    """
    with entry(prog):
        config = parse_settings(argv, WatchCommandLine, prog=prog, description=COMMANDS["watch"].sentence).watch
        console = Console(highlight=False)
        try:
            if console.is_terminal and not console.is_dumb_terminal:
                _draw(config, console)
            else:
                _print(config)
        except Interrupted as stop:
            if stop.number != signal.SIGINT:
                raise
    return 0


def _draw(config: WatchConfig, console: Console) -> None:
    """In place, as many runs as the window has lines for."""
    with Live(console=console, screen=True, auto_refresh=False, vertical_overflow="crop") as live:
        while True:
            live.update(_screen(config, config.read(), console), refresh=True)
            time.sleep(config.interval_s)


def _screen(config: WatchConfig, found: Sequence[RunSummary], console: Console) -> Group:
    runs, studies = config.listed(found), config.studies(found)
    lines = [*(remarks(runs) if runs else []), *studies] or [config.empty()]
    below = [Text(line, no_wrap=True, overflow="ellipsis") for line in lines]
    room = max(1, console.height - _AROUND - len(below))
    shown = runs if len(runs) <= room else runs[: room - 1]
    if len(shown) < len(runs):
        below.insert(0, Text(f"... and {len(runs) - len(shown):,} more"))
    return Group(*([status_table(shown, width=console.width)] if shown else []), *below)


def _print(config: WatchConfig) -> None:
    shown: list[str] = []
    while True:
        found = config.read()
        runs, studies = config.listed(found), config.studies(found)
        lines = [*([*plain_lines(runs), *remarks(runs)] if runs else []), *studies] or [config.empty()]
        if lines != shown:
            shown = lines
            print(f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}", *lines, sep="\n", end="\n\n", flush=True)
        time.sleep(config.interval_s)

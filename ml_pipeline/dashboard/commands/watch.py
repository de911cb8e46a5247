"""Command: show the table of runs live, until Ctrl-C.

ml-pipeline watch
ml-pipeline watch checkpoints/ --interval-s 10
"""

from ml_pipeline.commands import COMMANDS
from ml_pipeline.config.flags import parse_settings
from ml_pipeline.dashboard.terminal.views import RunsView, WatchCommandLine, watch
from ml_pipeline.monitoring.console import entry


def main(argv: list[str], *, prog: str = "watch") -> int:
    """Show the table until Ctrl-C; return 0, or exit with code 2 and an error message if a folder does not exist."""
    with entry(prog):
        config = parse_settings(argv, WatchCommandLine, prog=prog, description=COMMANDS["watch"].sentence).watch
        watch(RunsView(config), interval_s=config.interval_s)
    return 0

"""Command: print a table of runs: state, progress, speed, time left and scores.

ml-pipeline status
ml-pipeline status checkpoints/ --json
"""

import json
from collections.abc import Sequence
from pathlib import Path

from ml_pipeline.commands import COMMANDS
from ml_pipeline.config.flags import parse_settings
from ml_pipeline.config.wording import shown_path
from ml_pipeline.dashboard.summaries import RunSummary
from ml_pipeline.dashboard.terminal.views import RunsView, StatusCommandLine, show
from ml_pipeline.monitoring.console import entry
from ml_pipeline.service.channel import no_service_on, service_of
from ml_pipeline.service.store import SERVICE_FOLDER


def main(argv: list[str], *, prog: str = "status") -> int:
    """Print the table; return 0, or exit with code 2 and an error message if a folder does not exist."""
    with entry(prog):
        config = parse_settings(argv, StatusCommandLine, prog=prog, description=COMMANDS["status"].sentence).status
        if config.json:
            print(json.dumps([run.as_json() for run in config.read()], indent=2, allow_nan=False))
            return 0
        view = RunsView(config)
        show(view)
        for sentence in _idle_roots(config.folders(), view.found):
            print(sentence)
    return 0


def _idle_roots(folders: Sequence[Path], runs: Sequence[RunSummary]) -> list[str]:
    """A sentence for each root that has queued runs, or had a service before, but has no service now."""
    served = [folder for folder in folders if (folder / SERVICE_FOLDER).is_dir()]
    waiting = [run.folder.parent for run in runs if run.status == "queued"]
    return [no_service_on(shown_path(root)) for root in dict.fromkeys([*served, *waiting]) if service_of(root) is None]

"""Command: write a study's page, and open the test split once for its winner.

ml-pipeline report eurusd_5m
ml-pipeline report eurusd_5m --no-open-test
"""

import sys

from ml_pipeline.commands import COMMANDS
from ml_pipeline.config.flags import parse_settings
from ml_pipeline.config.wording import shown_path
from ml_pipeline.monitoring.console import entry
from ml_pipeline.runs.folder import root_of_runs
from ml_pipeline.runtime.interrupts import exiting_at_once
from ml_pipeline.tuning.optuna_extra import require_optuna
from ml_pipeline.tuning.report.study_report import CommandLine


def main(argv: list[str], *, prog: str = "report") -> int:
    """Write the page, print what it says first and where it is; return 0.

    Exits with code 2, after one sentence, where there is no such study or something cannot be used.
    """
    with entry(prog):
        with exiting_at_once():
            asked = parse_settings(argv, CommandLine, prog=prog, description=COMMANDS["report"].sentence).report
            require_optuna()

            from ml_pipeline.tuning.report.study_report import trials_asked_for, write_study_report
            from ml_pipeline.tuning.storage.open_storage import open_study

        study, folder = open_study(asked.study, root_of_runs(asked.root), storage=asked.storage, say=_note)
        n_trials = asked.n_trials or trials_asked_for(study)
        report = write_study_report(study, folder, n_trials=n_trials, open_test=asked.choice)
        print(*report.sentences, f"\nWritten to {shown_path(report.path)}", sep="\n")
    return 0


def _note(sentence: str) -> None:
    print(sentence, file=sys.stderr)

"""Command: write a study's page, and open the test split once for its winner.

ml-pipeline report eurusd_5m
ml-pipeline report eurusd_5m --no-open-test
"""

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import tyro

from ml_pipeline.commands import COMMANDS
from ml_pipeline.config.checks import check_count
from ml_pipeline.config.errors import UserError
from ml_pipeline.config.flags import parse_settings
from ml_pipeline.config.wording import shown_path
from ml_pipeline.monitoring.console import entry
from ml_pipeline.runs.folder import root_of_runs
from ml_pipeline.runtime.interrupts import exiting_at_once
from ml_pipeline.tuning.study_files import require_optuna


@dataclass(frozen=True, kw_only=True)
class ReportConfig:
    """The study to report on, and the use of its test split.

    Raises UserError if a value is out of range, or two contradict each other.
    """

    study: tyro.conf.Positional[str]
    """Name of the study."""

    n_trials: int | None = None
    """Number of finished trials at which the study counts as complete; none: the number that was given to tune."""

    open_test: bool = True
    """Evaluate the winner on the test split, if all trials have ended and no earlier command evaluated on it."""

    open_test_again: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Evaluate another winner on a test split that an earlier command has used; the report counts how often."""

    storage: str | None = None
    """Storage of the study, as given to tune; none: the journal in the study's folder."""

    root: Path | None = None
    """Folder of runs, in which the study's folder lies; none: checkpoints/."""

    def __post_init__(self) -> None:
        if self.n_trials is not None:
            check_count("n_trials", self.n_trials)
        if self.open_test_again and not self.open_test:
            raise UserError("--open-test-again opens the test, but --no-open-test keeps it closed; use one of them.")

    @property
    def choice(self) -> Literal["once", "again", "never"]:
        """The value for `see_test`."""
        return "again" if self.open_test_again else "once" if self.open_test else "never"


@dataclass(frozen=True, kw_only=True)
class CommandLine:
    """The groups of settings that flags can set."""

    report: ReportConfig = field()


def main(argv: list[str], *, prog: str = "report") -> int:
    """Write the page, print its verdict and its path; return 0.

    Exits with code 2 and one sentence if there is no such study or something cannot be used.
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

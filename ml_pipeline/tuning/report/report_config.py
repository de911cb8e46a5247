"""The settings of a study's report, and how the command line fills them."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import tyro

from ml_pipeline.config.checks import check_count
from ml_pipeline.config.errors import UserError


@dataclass(frozen=True, kw_only=True)
class ReportConfig:
    """Which study is reported on, and whether the test may be opened.

    Raises UserError where a value is out of range, or two contradict each other.
    """

    study: tyro.conf.Positional[str]
    """Name of the study."""

    n_trials: int | None = None
    """Number of finished trials that makes the study complete; none: as many as tune was asked for."""

    open_test: bool = True
    """Evaluate the winner on the test split, where all trials have ended and nobody has seen the test."""

    open_test_again: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Evaluate another winner on a test split that was seen; counted in the report."""

    storage: str | None = None
    """Where the study is stored, as in tune; none: the journal in its folder."""

    root: Path | None = None
    """Folder of runs in which the study has its folder; none: checkpoints/."""

    def __post_init__(self) -> None:
        if self.n_trials is not None:
            check_count("n_trials", self.n_trials)
        if self.open_test_again and not self.open_test:
            raise UserError("--open-test-again opens the test, but --no-open-test keeps it closed; leave out one.")

    @property
    def choice(self) -> Literal["once", "again", "never"]:
        """As `see_test` takes it."""
        return "again" if self.open_test_again else "once" if self.open_test else "never"


@dataclass(frozen=True, kw_only=True)
class CommandLine:
    """What the flags fill."""

    report: ReportConfig = field()

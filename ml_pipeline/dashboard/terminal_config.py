"""Which runs the tables in the terminal show, and how the command lines fill it."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from ml_pipeline.config.checks import check_positive
from ml_pipeline.config.wording import shown_path
from ml_pipeline.dashboard.summaries import read_summaries
from ml_pipeline.dashboard.summary import RunSummary
from ml_pipeline.runs.folder import runs_folder
from ml_pipeline.runs.folders import check_folder


@dataclass(frozen=True, kw_only=True)
class ShownRuns:
    """Which runs are shown."""

    root: Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="[FOLDER ...]", help_behavior_hint="")]
    """Folders of runs, or run folders; none: checkpoints/."""

    def read(self) -> list[RunSummary]:
        """The runs of all folders. Raises UserError where a folder that was named is not there."""
        for folder in self.root:
            check_folder(folder)
        return [run for folder in self.folders() for run in read_summaries(folder)]

    def folders(self) -> tuple[Path, ...]:
        return self.root or (runs_folder(),)

    def empty(self) -> str:
        """What is said where there is no run."""
        return f"No runs in {', '.join(str(shown_path(each)) for each in self.folders())} yet."


@dataclass(frozen=True, kw_only=True)
class StatusConfig(ShownRuns):
    """What is shown once."""

    json: bool = False
    """Print a JSON list with one object per run, for scripts."""


@dataclass(frozen=True, kw_only=True)
class WatchConfig(ShownRuns):
    """What is shown again and again.

    Raises UserError where a value is out of range.
    """

    interval_s: float = 2.0
    """Seconds between two looks at the folders."""

    def __post_init__(self) -> None:
        check_positive("interval_s", self.interval_s)


@dataclass(frozen=True, kw_only=True)
class StatusCommandLine:
    """What the flags of `status` fill."""

    status: StatusConfig = field()


@dataclass(frozen=True, kw_only=True)
class WatchCommandLine:
    """What the flags of `watch` fill."""

    watch: WatchConfig = field()

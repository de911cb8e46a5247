"""Which runs the tables in the terminal show, and how the command lines fill it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from ml_pipeline.config.checks import check_positive
from ml_pipeline.config.errors import UserError
from ml_pipeline.config.wording import shown_path
from ml_pipeline.dashboard.studies import read_studies
from ml_pipeline.dashboard.summaries import RunSummary, read_summaries
from ml_pipeline.dashboard.terminal.study_screen import study_line
from ml_pipeline.runs.folder import runs_folder
from ml_pipeline.runs.folders import is_run_folder, run_folders

_MOST_NAMED = 5


@dataclass(frozen=True, kw_only=True)
class ShownRuns:
    """Which runs are shown."""

    root: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[RUN ...]", help_behavior_hint="")]
    """Folders of runs, run folders, or names of runs in checkpoints/; none: checkpoints/."""

    trials: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """List the trials of studies as well; without it, a study is one line below the table."""

    def read(self) -> list[RunSummary]:
        """The runs of all folders. Raises UserError where a folder that was named is not there."""
        return [run for folder in self.folders() for run in read_summaries(folder)]

    def listed(self, runs: Sequence[RunSummary]) -> list[RunSummary]:
        """Those of the runs that the table shows: without the trials of studies, unless they are asked for."""
        return [run for run in runs if self.trials or run.study is None]

    def studies(self, runs: Sequence[RunSummary]) -> list[str]:
        """A line for each study of all folders."""
        return [study_line(study) for folder in self.folders() for study in read_studies(folder, runs)]

    def folders(self) -> tuple[Path, ...]:
        return tuple(map(_folder_of, self.root)) or (runs_folder(),)

    def empty(self) -> str:
        """What is said where there is neither a run nor a study."""
        return f"No runs in {', '.join(str(shown_path(each)) for each in self.folders())} yet."


@dataclass(frozen=True, kw_only=True)
class StatusConfig(ShownRuns):
    """What is shown once."""

    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
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


def _folder_of(named: Path) -> Path:
    """The folder that is meant: itself, or the run in checkpoints/ of this name, or whose name begins so."""
    if named.is_dir():
        return named
    if named.exists():
        raise UserError(f"{named} is no folder; name a folder of runs, such as checkpoints/.")
    root = runs_folder()
    if len(named.parts) == 1 and not is_run_folder(root):
        known = [folder for folder in run_folders(root) if folder.parent == root]
        meant = [folder for folder in known if folder.name.startswith(named.name)]
        meant = [folder for folder in meant if folder.name == named.name] or meant
        if len(meant) == 1:
            return meant[0]
        if meant:
            names = ", ".join(folder.name for folder in meant[:_MOST_NAMED]) + (
                ", ..." if len(meant) > _MOST_NAMED else ""
            )
            raise UserError(
                f'"{named}" begins the names of {len(meant)} runs: {names}; write more of the one that is meant.'
            )
    raise UserError(f"{named} is not there; name a folder of runs, such as checkpoints/, or a run in it.")

"""Views of `status`, `watch` and `dashboard --training`: printed once, or redrawn in place until Ctrl-C."""

import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Protocol

import tyro
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from ml_pipeline.config.checks import check_positive
from ml_pipeline.config.errors import UserError
from ml_pipeline.config.wording import shown_path
from ml_pipeline.dashboard.studies import StudySummary, read_studies
from ml_pipeline.dashboard.summaries import RunSummary, read_summaries
from ml_pipeline.dashboard.terminal.run_table import plain_lines, remarks, status_table
from ml_pipeline.dashboard.terminal.study_screen import study_line, study_lines, study_screen
from ml_pipeline.monitoring.resources import Machine
from ml_pipeline.runs.folder import runs_folder
from ml_pipeline.runs.folders import is_run_folder, run_folders
from ml_pipeline.runtime.interrupts import Interrupted

_AROUND = 2  # lines of the header and of the count of runs
_MOST_NAMED = 5


class View(Protocol):
    """The content of a folder, as of the last `refresh`."""

    def refresh(self) -> object:
        """Read the folder again; the result compares equal if there is nothing new to print."""

    def printed(self, width: int | None) -> Sequence[RenderableType]:
        """Lines to print once. width: of the terminal; None, as for a pipe: full plain lines."""

    def screen(self, console: Console) -> RenderableType:
        """The view, cut to the height of the window."""


def show(view: View) -> None:
    """Print the current view."""
    view.refresh()
    console = Console(highlight=False)
    for line in view.printed(console.width if console.is_terminal else None):
        if isinstance(line, str):
            print(line)
        else:
            console.print(line)


def watch(view: View, *, interval_s: float) -> None:
    """Show the view until Ctrl-C.

    A terminal is redrawn in place. Elsewhere the view is printed after each change, below the time in UTC.
    """
    console = Console(highlight=False)
    try:
        if console.is_terminal and not console.is_dumb_terminal:
            with Live(console=console, screen=True, auto_refresh=False, vertical_overflow="crop") as live:
                while True:
                    view.refresh()
                    live.update(view.screen(console), refresh=True)
                    time.sleep(interval_s)
        shown: object = None
        while True:
            if (now := view.refresh()) != shown:
                shown = now
                print(f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}", *view.printed(None), sep="\n", end="\n\n", flush=True)
            time.sleep(interval_s)
    except Interrupted as stop:
        if stop.number != signal.SIGINT:
            raise


@dataclass(frozen=True, kw_only=True)
class ShownRuns:
    """The runs to show."""

    root: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[RUN ...]", help_behavior_hint="")]
    """Folders of runs, run folders, or names of runs in checkpoints/; none: checkpoints/."""

    trials: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """List the trials of studies as well; otherwise only one line per study, below the table."""

    def folders(self) -> tuple[Path, ...]:
        """Raises UserError if a named folder does not exist."""
        return tuple(map(_folder_of, self.root)) or (runs_folder(),)

    def read(self) -> list[RunSummary]:
        """The runs of all folders."""
        return [run for folder in self.folders() for run in read_summaries(folder)]


@dataclass(frozen=True, kw_only=True)
class StatusConfig(ShownRuns):
    """The runs to list, and how to print them."""

    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print a JSON list with one object per run, for scripts."""


@dataclass(frozen=True, kw_only=True)
class WatchConfig(ShownRuns):
    """The runs to list, and how often to update the list.

    Raises UserError if a value is out of range.
    """

    interval_s: float = 2.0
    """Seconds between two updates."""

    def __post_init__(self) -> None:
        check_positive("interval_s", self.interval_s)


@dataclass(frozen=True, kw_only=True)
class StatusCommandLine:
    """The flags of `status`."""

    status: StatusConfig = field()


@dataclass(frozen=True, kw_only=True)
class WatchCommandLine:
    """The flags of `watch`."""

    watch: WatchConfig = field()


class RunsView:
    """The table of runs, with one line per study below it. found: all runs, including trials."""

    def __init__(self, config: ShownRuns) -> None:
        self._config = config
        self.found: Sequence[RunSummary] = ()
        self._runs: Sequence[RunSummary] = ()
        self._studies: Sequence[str] = ()

    def refresh(self) -> object:
        self.found = self._config.read()
        self._runs = [run for run in self.found if self._config.trials or run.study is None]
        studies = (study for folder in self._config.folders() for study in read_studies(folder, self.found))
        self._studies = [study_line(study) for study in studies]
        return self.printed(None)

    def printed(self, width: int | None) -> list[RenderableType]:
        table: Sequence[RenderableType] = ()
        if self._runs:
            table = plain_lines(self._runs) if width is None else [status_table(self._runs, width=width)]
        return [*table, *self._below(width)]

    def screen(self, console: Console) -> RenderableType:
        below = [Text(line, no_wrap=True, overflow="ellipsis") for line in self._below(None)]
        room = max(1, console.height - _AROUND - len(below))
        shown = self._runs if len(self._runs) <= room else self._runs[: room - 1]
        if len(shown) < len(self._runs):
            below.insert(0, Text(f"... and {len(self._runs) - len(shown):,} more"))
        return Group(*([status_table(shown, width=console.width)] if shown else []), *below)

    def _below(self, width: int | None) -> list[str]:
        lines = [*(remarks(self._runs, width=width) if self._runs else []), *self._studies]
        where = ", ".join(str(shown_path(each)) for each in self._config.folders())
        return lines or [f"No runs in {where} yet."]


class StudiesView:
    """The active or latest study in full, the others in one line each, and machine usage.

    study: name of the only study to show; None: all.
    """

    def __init__(self, root: Path, study: str | None = None) -> None:
        self._root, self._study = root, study
        self._machine = Machine()
        self._studies: list[StudySummary] = []

    def refresh(self) -> object:
        """The result changes when a trial starts or ends, but not with the steps of a running trial."""
        found = read_studies(self._root, read_summaries(self._root))
        self._studies = [study for study in found if self._study in (None, study.name)]
        return [
            (study.name, study.status, study.finished, study.failed, [trial.number for trial in study.running])
            for study in self._studies
        ]

    def printed(self, width: int | None) -> list[str]:
        if not self._studies:
            return [self._none_yet()]
        first, *others = self._studies
        return [*study_lines(first, machine=self._machine.look(), width=width), *map(study_line, others)]

    def screen(self, console: Console) -> RenderableType:
        if not self._studies:
            return Text(self._none_yet())
        return study_screen(self._studies, machine=self._machine.look(), width=console.width, height=console.height)

    def _none_yet(self) -> str:
        return f"No studies in {shown_path(self._root)} yet. Start one with: ml-pipeline tune"


def _folder_of(named: Path) -> Path:
    """The folder with this path, or the run in checkpoints/ with this name or beginning of a name."""
    if named.is_dir():
        return named
    if named.exists():
        raise UserError(f"{named} is not a folder; name a folder of runs, such as checkpoints/.")
    root = runs_folder()
    if len(named.parts) == 1 and not is_run_folder(root):
        known = [folder for folder in run_folders(root) if folder.parent == root]
        meant = [folder for folder in known if folder.name.startswith(named.name)]
        meant = [folder for folder in meant if folder.name == named.name] or meant
        if len(meant) == 1:
            return meant[0]
        if meant:
            more = ", ..." if len(meant) > _MOST_NAMED else ""
            names = ", ".join(folder.name for folder in meant[:_MOST_NAMED]) + more
            raise UserError(f'"{named}" matches the names of {len(meant)} runs: {names}; type more of the name.')
    raise UserError(f"{named} does not exist; name a folder of runs, such as checkpoints/, or a run in it.")

"""What `status`, `watch` and `dashboard --training` show of a folder: as text, or drawn in place until Ctrl-C."""

import signal
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from ml_pipeline.config.wording import shown_path
from ml_pipeline.dashboard.studies import StudySummary, read_studies
from ml_pipeline.dashboard.summaries import RunSummary, read_summaries
from ml_pipeline.dashboard.terminal.command_line import ShownRuns
from ml_pipeline.dashboard.terminal.run_table import plain_lines, remarks, status_table
from ml_pipeline.dashboard.terminal.study_screen import study_line, study_lines, study_screen
from ml_pipeline.monitoring.resources import Machine
from ml_pipeline.runtime.interrupts import Interrupted

_AROUND = 2  # lines of the header and of the count of runs


class View(Protocol):
    """What is shown of a folder, as it was at the last `refresh`."""

    def refresh(self) -> object:
        """Look at the folder again; the result is equal as long as there is nothing new to print."""

    def lines(self, width: int | None) -> list[str]:
        """Plain text. width: columns at which lines are wrapped; None, as for a pipe: not at all."""

    def screen(self, console: Console) -> RenderableType:
        """As much as the window has lines for."""


def watch(view: View, *, interval_s: float) -> None:
    """Show the view until Ctrl-C.

    On a terminal it is drawn anew in place; elsewhere it is printed, with the time in UTC above it, whenever it has
    changed.
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
                lines = view.lines(None)
                print(f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}", *lines, sep="\n", end="\n\n", flush=True)
            time.sleep(interval_s)
    except Interrupted as stop:
        if stop.number != signal.SIGINT:
            raise


class RunsView:
    """The table of runs, a line for each study below it. found: all runs; runs: those of the table."""

    def __init__(self, config: ShownRuns) -> None:
        self._config = config
        self.found: Sequence[RunSummary] = ()
        self.runs: Sequence[RunSummary] = ()
        self.studies: Sequence[str] = ()

    def refresh(self) -> object:
        self.found = self._config.read()
        self.runs, self.studies = self._config.listed(self.found), self._config.studies(self.found)
        return self.lines(None)

    def lines(self, width: int | None) -> list[str]:
        table = [*plain_lines(self.runs), *remarks(self.runs, width=width)] if self.runs else []
        return [*table, *self.studies] or [self._config.empty()]

    def screen(self, console: Console) -> RenderableType:
        runs = self.runs
        lines = [*(remarks(runs) if runs else []), *self.studies] or [self._config.empty()]
        below = [Text(line, no_wrap=True, overflow="ellipsis") for line in lines]
        room = max(1, console.height - _AROUND - len(below))
        shown = runs if len(runs) <= room else runs[: room - 1]
        if len(shown) < len(runs):
            below.insert(0, Text(f"... and {len(runs) - len(shown):,} more"))
        return Group(*([status_table(shown, width=console.width)] if shown else []), *below)

    def printed(self, console: Console) -> list[RenderableType]:
        """What is printed once: in a terminal a table in colours, and lines that are wrapped."""
        if not console.is_terminal or not self.runs:
            return [*self.lines(None)]
        return [
            status_table(self.runs, width=console.width),
            *remarks(self.runs, width=console.width),
            *self.studies,
        ]


class StudiesView:
    """The study that runs, or ran last, in full, the others in one line each, and the use of the machine.

    study: the name of the one to show; None: all.
    """

    def __init__(self, root: Path, study: str | None = None) -> None:
        self._root, self._study = root, study
        self._machine = Machine()
        self._studies: list[StudySummary] = []

    def refresh(self) -> object:
        """Another trial that has ended or begun is new; a step of one that goes on is not."""
        found = read_studies(self._root, read_summaries(self._root))
        self._studies = [study for study in found if self._study in (None, study.name)]
        return [
            (study.name, study.status, study.finished, study.failed, [trial.number for trial in study.running])
            for study in self._studies
        ]

    def lines(self, width: int | None) -> list[str]:
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

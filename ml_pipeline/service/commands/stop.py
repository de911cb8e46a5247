"""Command: ask runs and studies to save and end, or remove runs from the queue; with or without a service.

ml-pipeline stop CartPole-v1-seed0-2026
ml-pipeline stop eurusd_5m
ml-pipeline stop --all
"""

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from ml_pipeline.commands import COMMANDS
from ml_pipeline.config.errors import UserError
from ml_pipeline.config.flags import parse_settings
from ml_pipeline.monitoring.console import entry
from ml_pipeline.runs.folder import root_of_runs
from ml_pipeline.runs.folders import run_folders
from ml_pipeline.runs.stop import ask_study_to_stop
from ml_pipeline.runtime.files import path_inside
from ml_pipeline.service.control import find_run, status_of, stop_run
from ml_pipeline.tuning.study_files import is_running_study, is_study_folder

PROG = "stop"


@dataclass(frozen=True)
class StopConfig:
    """The runs to stop."""

    runs: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="[RUN ...]")] = ()
    """Runs, by id, first characters of the id, or run folder; or studies, by name. All save before they stop."""

    all: bool = False
    """Stop all studies, and all queued and running runs."""

    root: Path | None = None
    """Folder of runs; none: checkpoints/."""


@dataclass(frozen=True, kw_only=True)
class CommandLine:
    """The flags of the command."""

    stop: StopConfig = field(default_factory=StopConfig)


def main(argv: list[str], *, prog: str = PROG) -> int:
    """Stop the runs; return 2 if one of them could not be stopped, after trying all others."""
    with entry(prog):
        stop = parse_settings(argv, CommandLine, prog=prog, description=COMMANDS["stop"].sentence).stop
        root = root_of_runs(stop.root)
        if bool(stop.runs) == stop.all:
            raise UserError("Name the runs to stop, or pass --all.")
        # Studies first: otherwise they would start other trials in place of those that stop.
        studies = [study for name in stop.runs if (study := _study(root, name))] or (_studies(root) if stop.all else [])
        names = [name for name in stop.runs if _study(root, name) is None]
        folders = [find_run(root, name, status={"queued", "running"}) for name in names]
        if stop.all:
            folders = [each for each in _under_way(root) if each.parent not in studies]
        if not folders and not studies:
            print("No run is queued or running.")
        failed = False
        for folder in (*studies, *folders):
            try:
                print(_stop_study(folder) if folder in studies else _stop_run(root, folder), flush=True)
            except UserError as error:
                failed = True
                print(f"{prog}: {error}", file=sys.stderr)
    return 2 if failed else 0


def _study(root: Path, name: str) -> Path | None:
    """The folder of the study of this name; None if there is none."""
    folder = path_inside(root, name.rstrip("/"))
    return folder if folder is not None and is_study_folder(folder) else None


def _studies(root: Path) -> list[Path]:
    """The studies that are running."""
    try:
        return sorted(each for each in root.iterdir() if is_running_study(each))
    except OSError:
        return []


def _stop_run(root: Path, folder: Path) -> str:
    done = stop_run(root, folder)
    study = next((each for each in folder.parents if is_running_study(each)), None)
    if study is None:
        return done
    return f"{done} The study {study.name} will continue it; to stop the study: ml-pipeline stop {study.name}"


def _stop_study(folder: Path) -> str:
    if not is_running_study(folder):
        raise UserError(f"The study {folder.name} is not running here; there is nothing to stop.")
    try:
        ask_study_to_stop(folder)
    except OSError as error:
        how = "press Ctrl-C in its terminal"
        raise UserError(f"{folder.name} cannot be asked to stop: {error.strerror}; {how}.") from error
    return f"The study {folder.name} stops: its running trials save, and continue when you start tune again."


def _under_way(root: Path) -> list[Path]:
    """Queued runs first: otherwise they would start in place of those that stop."""
    found = [(folder, status_of(folder)) for folder in run_folders(root)]
    return [folder for wanted in ("queued", "running") for folder, status in found if status == wanted]

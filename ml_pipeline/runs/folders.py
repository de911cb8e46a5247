"""Finds the run folders below a root, and names the runs."""

import os
from collections.abc import Iterator
from pathlib import Path

from ml_pipeline.config.errors import UserError
from ml_pipeline.monitoring.sinks import METRICS_FILE
from ml_pipeline.runs.folder import LATEST_CHECKPOINT, SETTINGS_FILE
from ml_pipeline.runs.state import STATE_FILE


def run_folders(root: Path, *, refused: dict[Path, str] | None = None) -> Iterator[Path]:
    """The root if it is a run folder, else the run folders one or two levels below it, except hidden ones.

    refused: filled with the folders that cannot be read, each with the system's reason. Raises UserError if the root
    exists and cannot be listed.
    """
    refused = {} if refused is None else refused
    if is_run_folder(root):
        yield root
        return
    try:
        inside = folders_in(root, refused=refused)
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise UserError(f"{root} cannot be read: {error.strerror}; choose another folder of runs.") from error
    for folder in inside:
        if is_run_folder(folder):
            yield folder
            continue
        try:
            deeper = folders_in(folder, refused=refused)
        except (FileNotFoundError, NotADirectoryError):  # deleted meanwhile
            continue
        except OSError as error:
            refused[folder] = str(error.strerror)
            continue
        yield from filter(is_run_folder, deeper)


def folders_in(folder: Path, *, refused: dict[Path, str] | None = None) -> list[Path]:
    """The visible subfolders, by name. refused: see `run_folders`. Raises OSError if it cannot be listed."""
    found = []
    with os.scandir(folder) as entries:
        for each in entries:
            if each.name.startswith("."):
                continue
            try:
                if each.is_dir():
                    found.append(Path(each.path))
            except OSError as error:  # a link to itself, or through a folder that may not be entered
                if refused is not None:
                    refused[Path(each.path)] = str(error.strerror)
    return sorted(found)


def check_folder(root: Path) -> None:
    """Raise UserError unless `root` is a folder."""
    if not root.is_dir():
        what = "is not a folder" if root.exists() else "does not exist"
        raise UserError(f"{root} {what}; name a folder of runs, such as checkpoints/.")


def is_run_folder(folder: Path) -> bool:
    """Whether a folder holds a run or the remains of one."""
    names = {
        name
        for name in (STATE_FILE, LATEST_CHECKPOINT, SETTINGS_FILE, METRICS_FILE)
        if os.path.isfile(os.path.join(folder, name))
    }
    return bool(names & {STATE_FILE, LATEST_CHECKPOINT}) or {SETTINGS_FILE, METRICS_FILE} <= names


def run_name(root: Path, folder: Path) -> str:
    """The name of a run: its folder's path from the root; the folder's name if it is the root.

    >>> run_name(Path("checkpoints"), Path("checkpoints/fit/seed0"))
    'fit/seed0'
    """
    return folder.relative_to(root).as_posix() if folder != root else folder.absolute().name

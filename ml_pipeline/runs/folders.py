"""Which folders below a root hold runs, and what they are called there."""

import os
from collections.abc import Iterator
from pathlib import Path

from ml_pipeline.config.errors import UserError
from ml_pipeline.monitoring.metrics_file import METRICS_FILE
from ml_pipeline.runs.folder import LATEST_CHECKPOINT, SETTINGS_FILE
from ml_pipeline.runs.state import STATE_FILE


def run_folders(root: Path) -> Iterator[Path]:
    """The root if it is a run folder, else those in it, and in its folders that are none; hidden ones are left out.

    Raises UserError where the root is there and cannot be listed.
    """
    if is_run_folder(root):
        yield root
        return
    try:
        inside = _folders_in(root)
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise UserError(f"{root} cannot be read: {error.strerror}; name another folder of runs.") from error
    for folder in inside:
        if is_run_folder(folder):
            yield folder
            continue
        try:
            deeper = _folders_in(folder)
        except OSError:  # deleted meanwhile, or somebody else's
            continue
        yield from filter(is_run_folder, deeper)


def check_folder(root: Path) -> None:
    """Raise UserError unless there is such a folder."""
    if not root.is_dir():
        what = "is no folder" if root.exists() else "is not there"
        raise UserError(f"{root} {what}; name a folder of runs, such as checkpoints/.")


def is_run_folder(folder: Path) -> bool:
    """Whether a folder holds a run, or what is left of one."""
    names = {
        name
        for name in (STATE_FILE, LATEST_CHECKPOINT, SETTINGS_FILE, METRICS_FILE)
        if os.path.isfile(os.path.join(folder, name))
    }
    return bool(names & {STATE_FILE, LATEST_CHECKPOINT}) or {SETTINGS_FILE, METRICS_FILE} <= names


def run_name(root: Path, folder: Path) -> str:
    """The name of a run: its folder's path from the root, or the name of the root that is itself a run folder.

    >>> run_name(Path("checkpoints"), Path("checkpoints/fit/seed0"))
    'fit/seed0'
    """
    return folder.relative_to(root).as_posix() if folder != root else folder.absolute().name


def _folders_in(folder: Path) -> list[Path]:
    with os.scandir(folder) as entries:
        return sorted(Path(each.path) for each in entries if each.is_dir() and not each.name.startswith("."))

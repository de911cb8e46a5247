"""A run folder: the names of its files, and where it is made."""

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ml_pipeline.config.errors import UserError

SETTINGS_FILE = "config.yaml"
LATEST_CHECKPOINT = "latest.pt"
BEST_CHECKPOINT = "best.pt"
FEATURE_WARNINGS_FILE = "feature_warnings.json"
"""Doubts about the features that a run trades on: see `training.files.feature_warnings`."""
OUTPUT_FILE = "output.log"
"""Output of the process of a run that a service started."""
BEGAN_IN_NAME = re.compile(r"-\d{4}(\d\d)(\d\d)-(\d\d)(\d\d)(\d\d)(-[0-9a-f]{6})?(?=$|-)")
"""The time in a default run name, and the random suffix that the service adds."""


def runs_folder() -> Path:
    """Where runs are written: checkpoints/ in the working directory or, inside this repository, in its root.

    Raises UserError if the working directory was deleted.
    """
    repository = Path(__file__).resolve().parents[2]
    try:
        here = Path.cwd()
    except FileNotFoundError:
        raise UserError("The working directory was deleted; change to one that exists.") from None
    is_inside = here.resolve().is_relative_to(repository) and (repository / "pyproject.toml").is_file()
    return (repository if is_inside else here) / "checkpoints"


def root_of_runs(named: Path | None) -> Path:
    """The folder of runs named by a flag, as an absolute path; `runs_folder()` for None."""
    return (runs_folder() if named is None else named.expanduser()).absolute()


def make_new_folder(task_name: str) -> Path:
    """Make a folder for a run and return it; no other process gets the same one. Raises UserError on failure."""
    name = f"{task_name}-{time.strftime('%Y%m%d-%H%M%S')}"
    for suffix in ("", *(f"-{n}" for n in range(2, 1000))):
        folder = runs_folder() / f"{name}{suffix}"
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise UserError(
                f"The folder {folder} cannot be created: {error.strerror}; run in another folder, or name one with "
                "--checkpoint-dir."
            ) from error
        return folder
    raise UserError(f"{runs_folder()} holds a thousand runs started in this second; name a folder with checkpoint_dir.")


class FolderIdentity:
    """Checks that the folder at a path is still the original one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._identity = self._now()

    def require(self) -> None:
        """Raise UserError if the folder was deleted, moved or replaced."""
        if self._now() != self._identity:
            raise UserError(
                f"The run folder {self._folder} was deleted, moved or replaced while the run wrote it, so nothing more "
                "can be saved: training since its last checkpoint is lost. If it was moved, resume it from its new "
                "place."
            )

    def _now(self) -> tuple[int, int] | None:
        try:
            found = self._folder.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino


@contextmanager
def report_folder(folder: Path) -> Iterator[None]:
    """Create a folder for a report that the block writes. Raises UserError if one of them cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        refuse_links(folder)
        yield
    except OSError as error:
        raise UserError(
            f"The report cannot be written to {folder}: {error.strerror}; choose another folder."
        ) from error


def refuse_links(folder: Path) -> None:
    """Raise UserError if a file in a run folder is a symbolic link: writes would land elsewhere."""
    for path in sorted(folder.iterdir()):
        if path.is_symlink():
            raise UserError(f"{path} is a link to {path.readlink()}, but a run writes only into its folder; remove it.")

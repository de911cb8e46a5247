"""A run folder: what its files are called, where it is made, and how to resume it."""

import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ml_pipeline.config.errors import UserError
from ml_pipeline.monitoring.console import shown_path

SETTINGS_FILE = "config.yaml"
LATEST_CHECKPOINT = "latest.pt"
BEST_CHECKPOINT = "best.pt"
METRICS_FILE = "metrics.jsonl"
EPISODES_FILE = "monitor.csv"


def runs_folder() -> Path:
    """Where runs are written: checkpoints/ of this repository or, for an installed copy, of the working directory."""
    of_repository = Path(__file__).resolve().parents[2] / "checkpoints"
    return of_repository if of_repository.is_dir() else Path.cwd() / "checkpoints"


def make_new_folder(task_name: str) -> Path:
    """Make a folder for a run and return it; no other process gets the same one. Raises UserError where it cannot."""
    name = f"{task_name}-{time.strftime('%Y%m%d-%H%M%S')}"
    for suffix in ("", *(f"-{n}" for n in range(2, 1000))):
        folder = runs_folder() / f"{name}{suffix}"
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise UserError(f"The folder {folder} cannot be made: {error.strerror}; choose another.") from error
        return folder
    raise UserError(f"{runs_folder()} holds a thousand runs of this second; name a folder by checkpoint_dir.")


@contextmanager
def report_folder(folder: Path) -> Iterator[None]:
    """A folder to write a report into within the block. Raises UserError where it cannot be made or written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise UserError(f"The report cannot be written to {folder}: {error.strerror}; choose another.") from error


def resume_command(folder: Path) -> str:
    """What a user types to continue the run in a folder: by the path of this interpreter, unless it is the active one,
    as after `make train` without `source .venv/bin/activate`."""
    active = shutil.which("python")
    # Links are not followed: a virtual environment's python is one to the python that it was made with.
    is_active = active is not None and Path(active).parent == Path(sys.executable).parent
    python = "python" if is_active else shown_path(Path(sys.executable))
    return f"{python} -m ml_pipeline.train_ppo --resume {shown_path(folder)}"

"""Temporary folders for memory-mapped files. They are removed even if the process that made them was killed."""

import atexit
import os
import shutil
from pathlib import Path

from ml_pipeline.runtime.owned_folders import new_owned_folder

_PREFIX = "ml-pipeline-market-"


def new_memory_map_folder() -> Path:
    """Make a folder that is removed when this process ends; also remove the folders that killed processes left."""
    folder = new_owned_folder(_PREFIX)
    atexit.register(_remove, folder, os.getpid())
    return folder


def _remove(folder: Path, maker: int) -> None:
    if os.getpid() == maker:  # a forked worker ends as well
        shutil.rmtree(folder, ignore_errors=True)

"""Temporary folders for memory-mapped files. They are removed even if the process that made them was killed."""

import atexit
import os
import shutil
import tempfile
from pathlib import Path

_PREFIX = "ml-pipeline-market-"


def new_memory_map_folder() -> Path:
    """Make a folder that is removed when this process ends; also remove the folders that killed processes left."""
    for left in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        maker = left.name.removeprefix(_PREFIX).partition("-")[0]
        if maker.isdecimal() and not _is_alive(int(maker)):
            shutil.rmtree(left, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-"))
    atexit.register(_remove, folder, os.getpid())
    return folder


def _remove(folder: Path, maker: int) -> None:
    if os.getpid() == maker:  # a forked worker ends as well
        shutil.rmtree(folder, ignore_errors=True)


def _is_alive(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    except OSError:  # another user's, or no such question on this system
        return True
    return True

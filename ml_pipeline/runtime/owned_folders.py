"""Temporary folders that say which process made them, so that the next one removes what a killed process left."""

import json
import os
import shutil
import tempfile
from pathlib import Path

from ml_pipeline.runtime.process_identity import ProcessIdentity, is_alive, this_process
from ml_pipeline.runtime.regular_file import read_regular

_OWNER_FILE = "owner.json"
_MOST_BYTES = 1_000


def new_owned_folder(prefix: str, parent: str | None = None) -> Path:
    """Make a folder of this process, named `prefix` and something random, in `parent` (default: TMPDIR).

    First it removes the folders with this prefix that processes left which have ended: none of other users, of other
    machines and containers that share the folder, and none that does not name its owner yet. Raises OSError.
    """
    parent = tempfile.gettempdir() if parent is None else parent
    for left in Path(parent).glob(f"{prefix}*"):
        if _is_abandoned(left):
            shutil.rmtree(left, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    try:
        (folder / _OWNER_FILE).write_text(json.dumps(this_process()))
    except OSError:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder


def owner_of(folder: Path) -> ProcessIdentity | None:
    """The process that made a folder; None if the folder does not say so."""
    try:
        host, pid, started, namespace = json.loads(read_regular(folder / _OWNER_FILE, most_bytes=_MOST_BYTES))
        return ProcessIdentity(str(host), int(pid), started and str(started), namespace and str(namespace))
    except (OSError, ValueError, TypeError, RecursionError):
        return None


def _is_abandoned(folder: Path) -> bool:
    """Whether it is this user's, and its owner is known to have ended."""
    try:
        if hasattr(os, "geteuid") and folder.lstat().st_uid != os.geteuid():
            return False
    except OSError:
        return False
    owner = owner_of(folder)
    return owner is not None and is_alive(owner) is False

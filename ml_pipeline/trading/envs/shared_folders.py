"""Temporary folders of markets: shared by the processes of one user, or private to a process for its memory maps.

A shared folder is named after its content, written once, and kept while a process uses it. A process that uses a folder
holds a lock, which the system releases however the process ends. The next process, and the last to leave, removes the
folders without a lock.
"""

import atexit
import contextlib
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from ml_pipeline.runtime.process_identity import new_owned_folder

try:
    import fcntl
except ImportError:  # Windows has no such locks
    fcntl = None  # type: ignore[assignment]

_PREFIX = "ml-pipeline-markets-"
_USERS, _LOCK = "users", "lock"
_held: dict[Path, int] = {}  # by folder, the open file whose lock this process holds


def shared_folder(fingerprint: str, write: Callable[[Path], None]) -> Path | None:
    """The folder with this fingerprint; `write` fills it if it does not exist. It stays until this process ends.

    None if folders cannot be shared: the caller then makes a private one. Raises the errors of `write`.
    """
    if fcntl is None:
        return None
    root = Path(tempfile.gettempdir()) / f"{_PREFIX}{os.geteuid()}"
    folder = root / fingerprint
    with _locked(root) as is_ours:
        if not is_ours:
            return None
        if folder not in _held:
            if not _held:
                atexit.register(_leave, os.getpid())
            _remove_unused(root, but_for=folder)
            if not folder.exists():
                _fill(folder, write)
            users = os.open(folder / _USERS, os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(users, fcntl.LOCK_SH)
            _held[folder] = users
    return folder


@contextlib.contextmanager
def _locked(root: Path) -> Iterator[bool]:
    """Keep other processes from writing or removing folders; False if the root is not private to this user."""
    while True:
        root.mkdir(mode=0o700, exist_ok=True)
        about = root.lstat()
        if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.geteuid() or about.st_mode & 0o077:
            yield False
            return
        try:
            lock = os.open(root / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        except FileNotFoundError:  # the last process just removed the root
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if _is_still(root / _LOCK, lock):
                yield True
                return
        finally:
            os.close(lock)


def _is_still(path: Path, descriptor: int) -> bool:
    try:
        return path.stat().st_ino == os.fstat(descriptor).st_ino
    except FileNotFoundError:
        return False


def _fill(folder: Path, write: Callable[[Path], None]) -> None:
    """Other processes never see half a folder, even after a kill."""
    draft = Path(tempfile.mkdtemp(prefix="draft-", dir=folder.parent))
    try:
        write(draft)
        draft.rename(folder)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise


def _remove_unused(root: Path, but_for: Path | None = None) -> None:
    for folder in root.iterdir():
        if folder.name == _LOCK or folder == but_for:
            continue
        with contextlib.suppress(OSError):  # in use
            users = os.open(folder / _USERS, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
            finally:
                os.close(users)


def _leave(user: int) -> None:
    """Removes the folders that only this process used, when it ends."""
    if os.getpid() != user:  # a fork ends as well
        return
    for root in {folder.parent for folder in _held}:
        with contextlib.suppress(OSError), _locked(root) as is_ours:
            for folder in [folder for folder in _held if folder.parent == root]:
                os.close(_held.pop(folder))
            if is_ours:
                _remove_unused(root)
                if {path.name for path in root.iterdir()} == {_LOCK}:
                    shutil.rmtree(root)


def _let_go_in_fork() -> None:
    """A fork shares the lock, but only the parent uses the folder."""
    for users in _held.values():
        os.close(users)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go_in_fork)


_MAP_PREFIX = "ml-pipeline-market-"


def new_memory_map_folder() -> Path:
    """Make a folder that is removed when this process ends; also remove the folders that killed processes left."""
    folder = new_owned_folder(_MAP_PREFIX)
    atexit.register(_remove, folder, os.getpid())
    return folder


def _remove(folder: Path, maker: int) -> None:
    if os.getpid() == maker:  # a forked worker ends as well
        shutil.rmtree(folder, ignore_errors=True)

"""A lock between processes: a file that one of them at a time has open and locked."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def alone(path: Path) -> Iterator[None]:
    """Within the block no other process or thread is in one with the same path; the system ends it with us.

    The file is made where it is missing, and removed at the end. Raises OSError where it cannot be opened.
    """
    descriptor = _open_locked(path)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # Windows keeps open files, and an empty one harms nobody
            path.unlink()
        os.close(descriptor)


def _open_locked(path: Path) -> int:
    """The descriptor of the lock file that lies there, once it is ours."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            _lock(descriptor)
            if _is_still(path, descriptor):  # else whoever had it before has deleted it
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _lock(descriptor: int) -> None:
    """Wait for the lock of an open file. Where the file system has none, go on: two may then meet."""
    with contextlib.suppress(OSError):
        if os.name == "nt":
            import msvcrt

            msvcrt.locking(descriptor, msvcrt.LK_LOCK, 1)  # type: ignore[attr-defined,unused-ignore]
        else:
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX)


def _is_still(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False

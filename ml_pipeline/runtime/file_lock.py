"""A lock between processes: a file that one of them at a time has open and locked."""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

_LOOK_S = 0.02


@contextlib.contextmanager
def alone(path: Path, *, timeout_s: float | None = None) -> Iterator[None]:
    """Within the block no other process or thread is in one with the same path; the system ends it with us.

    The file is made where it is missing, and removed at the end. Raises OSError where it cannot be opened, and
    TimeoutError where another has it for longer than `timeout_s`; none: waits as long as it takes.
    Without locks, and on Windows after ten seconds, it goes on: two may then meet.
    """
    descriptor = _open_locked(path, None if timeout_s is None else time.monotonic() + timeout_s)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # Windows keeps open files, and an empty one harms nobody
            path.unlink()
        os.close(descriptor)


def _open_locked(path: Path, deadline: float | None) -> int:
    """The descriptor of the lock file that lies there, once it is ours."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            _lock(descriptor, deadline)
            if _is_still(path, descriptor):  # else whoever had it before has deleted it
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _lock(descriptor: int, deadline: float | None) -> None:
    """Wait for the lock of an open file. Where the file system has none, return."""
    if os.name == "nt":
        import msvcrt

        with contextlib.suppress(OSError):  # it gives up after ten seconds by itself
            msvcrt.locking(descriptor, msvcrt.LK_LOCK, 1)  # type: ignore[attr-defined,unused-ignore]
        return
    import fcntl

    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX if deadline is None else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if deadline is not None and time.monotonic() > deadline:
                raise TimeoutError("Another process keeps the lock.") from None
            time.sleep(_LOOK_S)
        except OSError:
            return None


def _is_still(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False

"""One service per root, by a lock file of its own: a queue that was deleted lets no second one in."""

import os
from contextlib import suppress
from pathlib import Path

from ml_pipeline.config.errors import UserError

LOCK_FILE = "service.lock"
_LOCKED_BYTE = 1 << 20  # on Windows others cannot read a locked byte, and they read who holds the lock
_MOST_BYTES = 4096


class RootTaken(UserError):
    """Another process holds the lock. who: what it wrote down about itself; empty where it could not."""

    def __init__(self, who: str) -> None:
        super().__init__(who)
        self.who = who


class RootLock:
    """The lock of a folder that a service keeps its files in; the system ends it with this process."""

    def __init__(self, folder: Path, who: str) -> None:
        """who: shown to whoever is refused. Raises RootTaken, and OSError where the file cannot be opened."""
        self.path = folder / LOCK_FILE
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
        while True:
            self._descriptor = os.open(self.path, flags, 0o600)
            try:
                if not _try_lock(self._descriptor):
                    raise RootTaken(os.read(self._descriptor, _MOST_BYTES).decode(errors="replace").strip())
                if self.is_there():  # else whoever had the folder before has deleted it
                    break
            except BaseException:
                os.close(self._descriptor)
                raise
            os.close(self._descriptor)
        with suppress(OSError):  # a full disk: nobody is told who, and the lock holds all the same
            os.ftruncate(self._descriptor, 0)
            os.write(self._descriptor, who.encode())

    def is_there(self) -> bool:
        """Whether the file still lies where it was made: not so if the folder was deleted, moved or replaced."""
        try:
            return os.path.samestat(os.stat(self.path), os.fstat(self._descriptor))
        except OSError:
            return False

    def close(self) -> None:
        """Let another service take the folder. The file stays, empty: removing it would let two in. Once only."""
        with suppress(OSError):
            os.ftruncate(self._descriptor, 0)
        os.close(self._descriptor)


def _try_lock(descriptor: int) -> bool:
    """Lock an open file at once; False where another has it. A file system without locks leaves it to the queue."""
    try:
        if os.name == "nt":
            import msvcrt

            os.lseek(descriptor, _LOCKED_BYTE, os.SEEK_SET)
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined,unused-ignore]
            os.lseek(descriptor, 0, os.SEEK_SET)
        else:
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    except OSError:
        pass
    return True

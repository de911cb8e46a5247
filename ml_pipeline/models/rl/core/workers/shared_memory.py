"""Memory that a trainer shares with its workers, all of it there from the beginning.

multiprocessing's own shared arrays are files that grow as they are written. Where there is too little room for that,
SIGBUS kills the process.
"""

import ctypes
import mmap
import multiprocessing
import os
import shutil
import tempfile
import weakref
from multiprocessing import reduction
from typing import Any

from ml_pipeline.config.errors import UserError

_NAME = "ml-workers"
_SHARED_MEMORY = "/dev/shm"
_CHUNK = 1 << 20


def allocate(nbytes: int, *, num_envs: int) -> Any:
    """A zeroed buffer of so many bytes, which can be handed to processes as they start.

    It bears no name, and is gone with the last process that maps it. num_envs: for the message. Raises UserError where
    there is too little room.
    """
    if os.name != "posix":
        return multiprocessing.RawArray(ctypes.c_uint8, nbytes)
    failures = []
    for place in _places():
        try:
            return SharedMemory(_file_without_name(place, nbytes), nbytes)
        except OSError as error:
            failures.append((place, error))
    tried = "; ".join(f"{place or 'memory'}: {error.strerror}{_free_in(place)}" for place, error in failures)
    raise UserError(
        f"{num_envs} environments need {_megabytes(nbytes)} of memory that their workers share, but there is no room "
        f"for it ({tried}). Use fewer environments or num_workers=0, give a Docker container more memory and a larger "
        "--shm-size, or set TMPDIR to a folder with more room."
    ) from failures[-1][1]


class SharedMemory(mmap.mmap):
    """An open file, mapped; also in the processes that it is handed to as they start."""

    _fd: int

    def __new__(cls, fd: int, nbytes: int) -> "SharedMemory":
        """Owns the open file, also where this fails."""
        try:
            memory = super().__new__(cls, fd, nbytes)
        except BaseException:
            os.close(fd)
            raise
        memory._fd = fd
        weakref.finalize(memory, os.close, fd)
        return memory

    def fileno(self) -> int:
        """The open file."""
        return self._fd

    def __reduce__(self) -> tuple[Any, ...]:
        return _map_again, (reduction.DupFd(self._fd), len(self))


def _map_again(duplicate: Any, nbytes: int) -> SharedMemory:
    return SharedMemory(duplicate.detach(), nbytes)


def _places() -> list[str]:
    """Folders that may have room, best first; "" is memory that no folder limits."""
    memory = [""] if hasattr(os, "memfd_create") else []  # on Linux; Docker gives /dev/shm 64 MB only
    return [*memory, *([_SHARED_MEMORY] if os.path.isdir(_SHARED_MEMORY) else []), tempfile.gettempdir()]


def _file_without_name(place: str, nbytes: int) -> int:
    """An open file of so many zeros, all of which have their place."""
    if place:
        fd, path = tempfile.mkstemp(prefix=f"{_NAME}-", dir=place)
        os.unlink(path)
    else:
        fd = os.memfd_create(_NAME)
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(fd, 0, nbytes)
        else:  # macOS
            for start in range(0, nbytes, _CHUNK):
                _write(fd, bytes(min(_CHUNK, nbytes - start)))
    except BaseException:
        os.close(fd)
        raise
    return fd


def _write(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def _free_in(place: str) -> str:
    return f", {_megabytes(shutil.disk_usage(place).free)} free" if place else ""


def _megabytes(nbytes: int) -> str:
    return f"{nbytes / 1e6:,.1f} MB"

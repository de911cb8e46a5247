"""Opens files that somebody else may have put there: a pipe would keep the reader waiting, and a device has no end."""

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO, NamedTuple


def open_regular(path: Path, *, follow_links: bool = True) -> BinaryIO:
    """The regular file for reading; never waits. Raises OSError, also where a pipe, a device or a folder lies there."""
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
    if not follow_links:
        flags |= getattr(os, "O_NOFOLLOW", 0)
    descriptor = os.open(path, flags)
    kind = os.fstat(descriptor).st_mode
    if stat.S_ISREG(kind):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    if stat.S_ISDIR(kind):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise OSError(errno.EINVAL, "it is no regular file", str(path))


def read_regular(path: Path, *, most_bytes: int, follow_links: bool = True) -> bytes:
    """All of a regular file. Raises OSError as `open_regular` does, and if it is larger than `most_bytes`."""
    with open_regular(path, follow_links=follow_links) as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise OSError(errno.EFBIG, f"it is larger than {most_bytes / 1e6:,.3g} MB", str(path))
    return content


def has_grown(file: BinaryIO, *, offset: int, before: bytes) -> bool:
    """Whether a file still is the one of which the bytes up to `offset` were read; `before`: the last of these.

    Inodes are used again: a file that was deleted and written anew, longer, may have the number of the one before.
    """
    file.seek(offset - len(before))
    return file.read(len(before)) == before


class FileIdentity(NamedTuple):
    """Equal as long as a file was neither replaced nor written to, nor its permissions changed."""

    device: int
    inode: int
    n_bytes: int
    written_ns: int
    changed_ns: int

    @classmethod
    def of(cls, found: os.stat_result) -> "FileIdentity":
        return cls(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)

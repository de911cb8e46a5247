"""Files and folders that others put there or named: a pipe keeps a reader waiting, and a name may lead elsewhere."""

import errno
import os
import stat
import zipfile
from io import BufferedReader
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import BinaryIO, NamedTuple

_LONGEST_NAME = 255  # bytes, on most file systems


def open_regular(path: Path, *, follow_links: bool = True) -> BufferedReader:
    """The regular file for reading; never waits. Raises OSError, also where a pipe, a device or a folder lies there."""
    flags = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
    return os.fdopen(only_regular(path, flags | (0 if follow_links else getattr(os, "O_NOFOLLOW", 0))), "rb")


def only_regular(path: str | Path, flags: int) -> int:
    """The descriptor of a regular file, for the `opener` of `open`, as where a file is made or grows.

    Never waits. Raises OSError, also where a pipe, a socket, a device or a folder lies there.
    """
    try:
        descriptor = os.open(path, flags | getattr(os, "O_NONBLOCK", 0), 0o666)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket, or a pipe without a reader
            raise _not_regular(path) from error
        raise
    kind = os.fstat(descriptor).st_mode
    if stat.S_ISREG(kind):
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(kind):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise _not_regular(path)


def _not_regular(path: str | Path) -> OSError:
    return OSError(errno.EINVAL, "it is no regular file", str(path))


def read_regular(path: Path, *, most_bytes: int, follow_links: bool = True) -> bytes:
    """All of a regular file. Raises OSError as `open_regular` does, and if it is larger than `most_bytes`."""
    with open_regular(path, follow_links=follow_links) as file:
        is_larger = os.fstat(file.fileno()).st_size > most_bytes
        content = b"" if is_larger else file.read(most_bytes + 1)
    if is_larger or len(content) > most_bytes:
        raise OSError(errno.EFBIG, f"it is larger than {most_bytes / 1e6:,.3g} MB", str(path))
    return content


def unpacked_bytes(archive: BinaryIO) -> int:
    """The bytes that the files in a ZIP archive declare: more of them are not read. Raises zipfile.BadZipFile."""
    with zipfile.ZipFile(archive) as opened:
        return sum(info.file_size for info in opened.infolist())


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


def path_inside(folder: Path, name: object) -> Path | None:
    """The path of a file or folder that others named: in a storage, a journal, a table, a state file or a request.

    None unless the name is one component of a path, on every system, and no link lies there: it would lead out of the
    folder.

    >>> path_inside(Path("study"), "trial-0001").as_posix(), path_inside(Path("study"), "../trial-0001")
    ('study/trial-0001', None)
    """
    if not isinstance(name, str) or name in ("", ".", "..") or "\0" in name:
        return None
    if PurePosixPath(name).name != name or PureWindowsPath(name).name != name:
        return None
    try:
        if len(os.fsencode(name)) > _LONGEST_NAME:
            return None
    except UnicodeEncodeError:  # half a character
        return None
    path = folder / name
    return None if os.path.islink(path) else path

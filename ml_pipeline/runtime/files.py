"""Files that several processes or users share: read with limits, written whole, followed as they grow, and a lock."""

import contextlib
import errno
import os
import stat
import time
import zipfile
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO, Any, BinaryIO, NamedTuple

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


@contextlib.contextmanager
def written_whole(path: Path, mode: str = "wb", **options: Any) -> Iterator[IO[Any]]:
    """A file to write in the block, opened with `options`; at its end it takes the place of `path`.

    Where the block fails, `path` stays what it was. Raises OSError where the file cannot be written.
    """
    temporary = path.with_name(path.name + ".tmp")
    try:
        temporary.unlink(missing_ok=True)
        with open(temporary, mode.replace("w", "x"), **options) as file:  # never through a link that lies there
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_folder(path.parent)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def sync_folder(folder: Path) -> None:
    """Wait until the names of its files are on the disk, after one was renamed."""
    with contextlib.suppress(OSError):  # not every system lets a folder be opened
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


_COMPARED = 256  # bytes that were read last


class GrowingFile:
    """Reads a file that others append to; if another file takes its place, it is read from the start.

    It keeps how far the file was read, in chunks that end with a line. Not for several threads at once.

    chunk_bytes: the longest chunk; one that holds no end of a line comes as it is. most_bytes: of more that was added,
    only the last so many bytes are read, and the first line of them may be torn.
    """

    def __init__(self, *, chunk_bytes: int = 4_000_000, most_bytes: int = 2**30) -> None:
        self._chunk_bytes, self._most_bytes = chunk_bytes, most_bytes
        self.forget()

    def forget(self) -> None:
        """Nothing was read, as where the file is gone."""
        self._identity: tuple[int, int] | None = None
        self._offset = 0  # up to here everything was read
        self._last_bytes = b""  # before that offset

    def goes_on(self, file: BinaryIO) -> bool:
        """Whether the open file is the one that was read before, grown or unchanged; if not, it will be read anew.

        Inodes are used again: a file that was deleted and written anew, longer, may have the number of the one before.
        So the last bytes that were read are compared as well.
        """
        found = os.fstat(file.fileno())
        identity = found.st_dev, found.st_ino
        if identity == self._identity:
            file.seek(self._offset - len(self._last_bytes))
            if file.read(len(self._last_bytes)) == self._last_bytes:
                return True
        self.forget()
        self._identity = identity
        return False

    def chunks(self, file: BinaryIO, *, last: bool = False) -> Iterator[bytes]:
        """What was added since the last call, in whole lines. last: also a last line that has no end."""
        self._offset = max(self._offset, os.fstat(file.fileno()).st_size - self._most_bytes)
        while True:
            file.seek(self._offset)
            chunk = file.read(self._chunk_bytes)
            is_full = len(chunk) == self._chunk_bytes
            end = chunk.rfind(b"\n") + 1
            if is_full or not last:
                chunk = chunk[:end] if end or not is_full else chunk
            if not chunk:
                return
            self._offset += len(chunk)
            self._last_bytes = (self._last_bytes + chunk[-_COMPARED:])[-_COMPARED:]
            yield chunk


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

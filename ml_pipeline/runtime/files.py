"""Files shared by several processes or users: bounded reads, atomic writes, reading as they grow, and a lock."""

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
    """Open a regular file for reading, without blocking. Raises OSError, also for a pipe, a device or a folder."""
    flags = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
    return os.fdopen(only_regular(path, flags | (0 if follow_links else getattr(os, "O_NOFOLLOW", 0))), "rb")


def only_regular(path: str | Path, flags: int) -> int:
    """Open a regular file without blocking, and return its descriptor; usable as the `opener` of `open`.

    Raises OSError, also for a pipe, a socket, a device or a folder.
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
    return OSError(errno.EINVAL, "it is not a regular file", str(path))


def read_regular(path: Path, *, most_bytes: int, follow_links: bool = True) -> bytes:
    """All of a regular file. Raises OSError as `open_regular` does, and if it is larger than `most_bytes`."""
    with open_regular(path, follow_links=follow_links) as file:
        is_larger = os.fstat(file.fileno()).st_size > most_bytes
        content = b"" if is_larger else file.read(most_bytes + 1)
    if is_larger or len(content) > most_bytes:
        raise OSError(errno.EFBIG, f"it is larger than {most_bytes / 1e6:,.3g} MB", str(path))
    return content


def unpacked_bytes(archive: BinaryIO) -> int:
    """The total unpacked size that a ZIP archive declares; readers stop there. Raises zipfile.BadZipFile."""
    with zipfile.ZipFile(archive) as opened:
        return sum(info.file_size for info in opened.infolist())


class FileIdentity(NamedTuple):
    """Equal as long as a file has not been replaced, written to, or given other permissions."""

    device: int
    inode: int
    n_bytes: int
    written_ns: int
    changed_ns: int

    @classmethod
    def of(cls, found: os.stat_result) -> "FileIdentity":
        return cls(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def path_inside(folder: Path, name: object) -> Path | None:
    """The path of a name that comes from outside, such as a storage, a journal, a table, a state file or a request.

    None if the name could lead out of the folder: it is not a single path component on every system, or it is a link.

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
    """Write a file atomically: the block writes a temporary file, which replaces `path` at its end.

    If the block fails, `path` is unchanged. options: passed to `open`. Raises OSError if the file cannot be written.
    """
    temporary = path.with_name(path.name + ".tmp")
    try:
        temporary.unlink(missing_ok=True)
        with open(temporary, mode.replace("w", "x"), **options) as file:  # "x" does not follow an existing link
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
    """Flush the names of a folder's files to disk, after a rename."""
    with contextlib.suppress(OSError):  # not every system can open a folder
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


_COMPARED = 256  # bytes before the current offset


class GrowingFile:
    """Reads a file that another process appends to, in chunks of whole lines. If the file is replaced, starts over.

    Not thread-safe.

    chunk_bytes: the largest chunk; a chunk without a line break is returned as it is. most_bytes: if more was appended,
    only the last most_bytes are read, and their first line may be incomplete.
    """

    def __init__(self, *, chunk_bytes: int = 4_000_000, most_bytes: int = 2**30) -> None:
        self._chunk_bytes, self._most_bytes = chunk_bytes, most_bytes
        self.forget()

    def forget(self) -> None:
        """Start over, for example because the file was deleted."""
        self._identity: tuple[int, int] | None = None
        self._offset = 0  # up to here everything was read
        self._last_bytes = b""  # before that offset

    def goes_on(self, file: BinaryIO) -> bool:
        """Whether the open file is the one that was read before, grown or unchanged; if not, reading starts over.

        File systems reuse inode numbers: a file that was deleted and rewritten may have the same one. So this also
        compares the last bytes read.
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
        """The lines appended since the last call. last: include a last line without a line break."""
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
    """Hold an exclusive lock on a lock file within the block; the system releases it if this process dies.

    Creates the file if necessary, and removes it at the end. Raises OSError if the file cannot be opened, and
    TimeoutError if another process holds the lock for longer than `timeout_s`; None waits without limit.
    On file systems without locks, and on Windows after 10 s, the block runs without the lock.
    """
    descriptor = _open_locked(path, None if timeout_s is None else time.monotonic() + timeout_s)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # Windows does not delete open files; an empty one does no harm
            path.unlink()
        os.close(descriptor)


def _open_locked(path: Path, deadline: float | None) -> int:
    """The descriptor of the lock file, once this process holds its lock."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            _lock(descriptor, deadline)
            if _is_still(path, descriptor):  # otherwise the previous holder deleted it
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _lock(descriptor: int, deadline: float | None) -> None:
    """Wait for the lock of an open file. If the file system has no locks, return."""
    if os.name == "nt":
        import msvcrt

        with contextlib.suppress(OSError):  # LK_LOCK gives up after 10 s
            msvcrt.locking(descriptor, msvcrt.LK_LOCK, 1)  # type: ignore[attr-defined,unused-ignore]
        return
    import fcntl

    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX if deadline is None else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if deadline is not None and time.monotonic() > deadline:
                raise TimeoutError("Another process holds the lock.") from None
            time.sleep(_LOOK_S)
        except OSError:
            return None


def _is_still(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False

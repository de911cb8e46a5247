"""Optuna's journal as a file that a killed writer can neither lock for ever nor tear for the others.

Optuna's own lock is a file beside the journal: left behind by `kill -9`, it stops every writer for 30 seconds, and two
that wait for its end may then both remove it and write at once. Here the journal itself is locked, by the system, which
ends the lock with the process. The lines are Optuna's, so that its tools read the file.
"""

import contextlib
import errno
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from optuna.storages.journal import BaseJournalBackend

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.wording import shown_path
from ml_pipeline.runtime.regular_file import open_regular
from ml_pipeline.tuning.storage.journal_repair import damaged, not_a_journal, record_in, repair_end

_NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP})
_MOST_BYTES = 2**32
"""Of a file, which is read whole; a trial takes some 10,000."""
_END = b"}\n"  # of every whole line
_LOCKED_BYTE = 1 << 40  # on Windows others cannot read a locked byte, so that one far behind the end is locked


class JournalFile(BaseJournalBackend):
    """A journal for `JournalStorage`. The file is made where it is missing; its folder must be there.

    A torn last line is cut off when the journal is opened, and before a line is appended; `say` is told what was lost.
    """

    def __init__(self, path: Path, say: Callable[[str], None]) -> None:
        """Raises UserError where the file cannot be opened, read or written, cannot be locked, or is no journal."""
        self._path = path
        self._say = say
        self._next, self._offset = 0, 0  # the record that is read next, and where it begins
        with self._locked(os.O_CREAT) as descriptor:
            repair_end(descriptor, path, say)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_say": _say_nothing}

    def read_logs(self, log_number_from: int) -> Iterator[dict[str, Any]]:
        """The records from this one on, counted from 0. A last line that is not whole is left for later.

        Raises UserError where a line in the middle is damaged, or the file is gone.
        """
        if log_number_from != self._next:
            self._next, self._offset = 0, 0
        for settled in (False, True):  # a network disk may show zeros in place of what others have just appended
            lines, ends_whole = self._whole_lines(settled=settled)
            for left, line in zip(reversed(range(len(lines))), lines, strict=True):
                record = record_in(line)
                if record is None:
                    if left == 0 and ends_whole:
                        return
                    break
                # Before the record is handed over: where applying it fails, it counts as read.
                self._next, self._offset = self._next + 1, self._offset + len(line)
                if self._next > log_number_from:
                    yield record
            else:
                return
        raise damaged(self._path, self._next + 1) if self._next else not_a_journal(self._path, line)

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Append whole lines and wait until they are on the disk.

        Raises UserError where the disk is full, the file is gone or cannot be written; no part of a line stays then.
        """
        content = b"".join(json.dumps(log, separators=(",", ":")).encode() + b"\n" for log in logs)
        with self._locked() as descriptor:
            size = os.lseek(descriptor, 0, os.SEEK_END)
            if size and _last_bytes(descriptor, size) != _END:
                repair_end(descriptor, self._path, self._say)
                size = os.lseek(descriptor, 0, os.SEEK_END)
            try:
                _write_all(descriptor, content)
                os.fsync(descriptor)
            except OSError:
                os.ftruncate(descriptor, size)
                raise

    def _whole_lines(self, *, settled: bool) -> tuple[list[bytes], bool]:
        """The lines with a line end that were not read yet, and whether nothing follows them.

        settled: while no other process writes.
        """
        with self._locked() if settled else contextlib.nullcontext():
            try:
                with open_regular(self._path) as file:
                    file.seek(self._offset)
                    *lines, rest = file.read().split(b"\n")
            except OSError as error:
                raise _refused(self._path, error) from error
        return [line + b"\n" for line in lines], not rest

    @contextlib.contextmanager
    def _locked(self, flags: int = 0) -> Iterator[int]:
        """The journal's descriptor; within the block no other process or thread writes it."""
        try:
            # Without O_CREAT a journal that was deleted stays so: an empty one in its place would be another study.
            descriptor = os.open(self._path, os.O_RDWR | os.O_APPEND | getattr(os, "O_BINARY", 0) | flags, 0o666)
            try:
                if os.fstat(descriptor).st_size > _MOST_BYTES:
                    raise OSError(errno.EFBIG, f"it is larger than {_MOST_BYTES >> 30} GiB")
                _lock(descriptor)
                yield descriptor
            finally:
                os.close(descriptor)  # which ends the lock
        except OSError as error:
            raise _refused(self._path, error) from error


def _say_nothing(sentence: str) -> None:
    pass


def _refused(path: Path, error: OSError) -> UserError:
    shown = shown_path(path)
    if isinstance(error, FileNotFoundError):
        return UserError(f"The journal {shown} is gone: it was deleted or moved, or its disk is away; put it back.")
    if error.errno in _NO_LOCKS:
        return UserError(
            f"The journal {shown} cannot be locked: its file system has no locks between processes; name a journal on "
            "another disk, or a PostgreSQL."
        )
    if error.errno in {errno.EACCES, errno.EPERM, errno.EROFS}:
        return UserError(
            f"The journal {shown} cannot be written: {error.strerror}; a study writes to it all the time, so name one "
            "in a folder where you may write."
        )
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return UserError(f"The journal {shown} cannot be written: {error.strerror}; make room and go on.")
    return UserError(f"The journal {shown} cannot be used: {error.strerror or error}.")


def _lock(descriptor: int) -> None:
    """Wait for the lock of an open file. Raises OSError where the file system has none."""
    if os.name == "nt":
        import msvcrt

        os.lseek(descriptor, _LOCKED_BYTE, os.SEEK_SET)
        while True:
            with contextlib.suppress(PermissionError, BlockingIOError):  # it gives up after ten seconds
                msvcrt.locking(descriptor, msvcrt.LK_LOCK, 1)  # type: ignore[attr-defined,unused-ignore]
                return
    else:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX)


def _last_bytes(descriptor: int, size: int) -> bytes:
    os.lseek(descriptor, max(0, size - len(_END)), os.SEEK_SET)
    return os.read(descriptor, len(_END))


def _write_all(descriptor: int, content: bytes) -> None:
    while content:
        content = content[os.write(descriptor, content) :]

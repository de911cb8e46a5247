"""Optuna's journal as a file that a killed writer can neither lock forever nor corrupt for others.

Optuna's own lock is a file next to the journal. If `kill -9` leaves it behind, it blocks every writer for 30 seconds,
and two waiting writers may then both remove it and write at once. Here the operating system locks the journal itself,
and releases the lock when the process ends. The lines have Optuna's format, so its tools can read the file: one JSON
object per line, append-only.

An incomplete last line, left by a power cut or a killed writer, is copied to a file next to the journal and removed.
This happens under the lock, so a line that another process is still writing is never mistaken for an incomplete one.
"""

import contextlib
import errno
import json
import os
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from optuna.storages.journal import BaseJournalBackend

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.wording import counted, shown_path
from ml_pipeline.runtime.files import open_regular

_NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP})
_MOST_BYTES = 2**32
"""Largest file, which is read whole; a trial takes about 10,000 bytes."""
_END = b"}\n"  # of every whole line
_LOCKED_BYTE = 1 << 40  # on Windows, others cannot read a locked byte, so lock one far beyond the end


class JournalFile(BaseJournalBackend):
    """A journal for `JournalStorage`. The file is created if it is missing; its folder must exist.

    An incomplete last line is removed when the journal is opened and before a line is appended; `say` reports the loss.
    """

    def __init__(self, path: Path, say: Callable[[str], None]) -> None:
        """Raises UserError if the file cannot be opened, read, written or locked, or is not a journal."""
        self._path = path
        self._say = say
        self._next, self._offset = 0, 0  # the record to read next, and its position
        with self._locked(os.O_CREAT) as descriptor:
            repair_end(descriptor, path, say)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_say": _say_nothing}

    def read_logs(self, log_number_from: int) -> Iterator[dict[str, Any]]:
        """The records from this one on, counted from 0. An incomplete last line is left for later.

        Raises UserError if a line in the middle is damaged, or the file is missing.
        """
        if log_number_from != self._next:
            self._next, self._offset = 0, 0
        for settled in (False, True):  # a network disk may show zeros in place of newly appended bytes
            lines, ends_whole = self._whole_lines(settled=settled)
            for left, line in zip(reversed(range(len(lines))), lines, strict=True):
                record = record_in(line)
                if record is None:
                    if left == 0 and ends_whole:
                        return
                    break
                # Before the yield: if applying the record fails, it counts as read.
                self._next, self._offset = self._next + 1, self._offset + len(line)
                if self._next > log_number_from:
                    yield record
            else:
                return
        raise damaged(self._path, self._next + 1) if self._next else not_a_journal(self._path, line)

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Append whole lines and wait until they are on disk.

        Raises UserError if the disk is full, or the file is missing or cannot be written; no partial line is left.
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
        """The unread lines that have a line end, and whether nothing follows them.

        settled: hold the lock, so that no other process writes.
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
        """The journal's descriptor; within the block, no other process or thread writes to it."""
        try:
            # Without O_CREAT, a deleted journal is an error: an empty one in its place would be another study.
            descriptor = os.open(self._path, os.O_RDWR | os.O_APPEND | getattr(os, "O_BINARY", 0) | flags, 0o666)
            try:
                if os.fstat(descriptor).st_size > _MOST_BYTES:
                    raise OSError(errno.EFBIG, f"it is larger than {_MOST_BYTES >> 30} GiB")
                _lock(descriptor)
                yield descriptor
            finally:
                os.close(descriptor)  # releases the lock
        except OSError as error:
            raise _refused(self._path, error) from error


def _say_nothing(sentence: str) -> None:
    pass


def _refused(path: Path, error: OSError) -> UserError:
    shown = shown_path(path)
    if isinstance(error, FileNotFoundError):
        return UserError(f"The journal {shown} is missing: it was deleted or moved, or its disk is gone; restore it.")
    if error.errno in _NO_LOCKS:
        return UserError(
            f"The journal {shown} cannot be locked: its file system has no locks between processes; name a journal on "
            "another disk, or a PostgreSQL database."
        )
    if error.errno in {errno.EACCES, errno.EPERM, errno.EROFS}:
        return UserError(
            f"The journal {shown} cannot be written: {error.strerror}; a study writes to it all the time, so name one "
            "in a folder that you can write to."
        )
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return UserError(f"The journal {shown} cannot be written: {error.strerror}; make room and start again.")
    return UserError(f"The journal {shown} cannot be used: {error.strerror or error}.")


def _lock(descriptor: int) -> None:
    """Wait for the lock of an open file. Raises OSError if the file system has no locks."""
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


_BEGIN = b'{"op_code":'  # of every record that Optuna writes
_BLOCK = 1 << 16
_LONGEST_LINE = 1 << 26  # of a record; it is read whole
_MOST_SHOWN = 60
_RECORDS = {  # optuna.storages.journal.JournalOperation
    0: "the beginning of a study",
    1: "the deletion of a study",
    2: "an attribute of a study",
    3: "an attribute of a study",
    4: "a new trial",
    5: "a setting of a trial",
    6: "the state of a trial",
    7: "a value that a trial reported",
    8: "an attribute of a trial",
    9: "an attribute of a trial",
}


def record_in(line: bytes) -> dict[str, Any] | None:
    """The record of a line, with or without its line end; None if it is damaged or not a record.

    >>> record_in(b'{"op_code":6,"worker_id":"a","trial_id":3}')["trial_id"]
    3
    >>> record_in(b'{"op_code":6,"worker_')
    """
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):  # also for bytes that are not text
        return None
    return record if isinstance(record, dict) and "op_code" in record and "worker_id" in record else None


def damaged(path: Path, line: int) -> UserError:
    """The error for a journal with an unreadable line in the middle. line: counted from 1."""
    return UserError(
        f"The journal {shown_path(path)} is damaged in line {line:,}, which is not a record, and others follow it: "
        "restore a copy of the file, or delete this line and lose what it recorded."
    )


def repair_end(descriptor: int, path: Path, say: Callable[[str], None]) -> None:
    """Complete the last line of a journal, or remove it and report what is lost.

    descriptor: the journal, open for reading and writing, and locked. Raises UserError if the file is not a journal,
    and leaves it unchanged; OSError if it cannot be read or written.
    """
    size = os.fstat(descriptor).st_size
    start = _start_of_last_line(descriptor, size, path)
    line = _read(descriptor, start, size - start)
    if not line or (line.endswith(b"\n") and record_in(line) is not None):
        return
    _require_journal(descriptor, path, start, line)
    if record_in(line) is not None:  # torn just before its line end
        _write_at_end(descriptor, b"\n")
        say(f"The last line of the journal {shown_path(path)} had no line end, as after a power cut; nothing is lost.")
        return
    kept = _keep_copy(path, line)
    os.ftruncate(descriptor, start)
    os.fsync(descriptor)
    say(_notice(path, line, kept))


def _start_of_last_line(descriptor: int, size: int, path: Path) -> int:
    end = size - 1  # the line's own end does not count
    while end > 0:
        if size - end > _LONGEST_LINE:
            raise UserError(
                f"The last line of the journal {shown_path(path)} is longer than {_LONGEST_LINE / 1e6:.3g} MB, so it "
                "is not a record; restore a copy of the file, or delete the line."
            )
        begin = max(0, end - _BLOCK)
        found = _read(descriptor, begin, end - begin).rfind(b"\n")
        if found >= 0:
            return begin + found + 1
        end = begin
    return 0


def _require_journal(descriptor: int, path: Path, start: int, last_line: bytes) -> None:
    """Raise UserError unless the file begins as a journal: other files are never changed."""
    first = last_line
    if start > 0:
        first = _read(descriptor, 0, min(start, _BLOCK))
        end = first.find(b"\n")
        if end >= 0 and record_in(first[:end]) is not None:
            return
    elif last_line.startswith(_BEGIN) or _BEGIN.startswith(last_line) or not last_line.strip(b"\0\n"):
        return
    raise not_a_journal(path, first)


def not_a_journal(path: Path, begin: bytes) -> UserError:
    shown = begin.split(b"\n")[0][:_MOST_SHOWN].decode(errors="replace")
    return UserError(
        f"{shown_path(path)} is not an Optuna journal: its first line begins with {shown!r}; name another file, or a "
        "new one."
    )


def _keep_copy(path: Path, line: bytes) -> Path | None:
    """A file next to the journal with the bytes of its incomplete line; None if it cannot be written."""
    name = f"{path.name}.torn-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    for suffix in ("", *(f"-{n}" for n in range(2, 1000))):
        kept = path.with_name(name + suffix)
        try:
            with open(kept, "xb") as file:
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
        except FileExistsError:
            continue
        except OSError:  # a full disk: continue without the copy
            return None
        return kept
    return None


def _notice(path: Path, line: bytes, kept: Path | None) -> str:
    code = re.match(rb'\{"op_code":(\d+)[,}]', line)
    what = _RECORDS.get(int(code[1]), "a record") if code else "a record"
    where = "could not be saved" if kept is None else f"are saved in {kept.name}"
    return (
        f"The last line of the journal {shown_path(path)} was incomplete, as after a power cut, and was removed: "
        f"{what} is lost, but all lines before it are intact. Its {counted(len(line), 'byte')} {where}."
    )


def _read(descriptor: int, offset: int, size: int) -> bytes:
    parts = []
    while size > 0:
        os.lseek(descriptor, offset, os.SEEK_SET)
        part = os.read(descriptor, size)
        if not part:
            break
        parts.append(part)
        offset, size = offset + len(part), size - len(part)
    return b"".join(parts)


def _write_at_end(descriptor: int, content: bytes) -> None:
    os.lseek(descriptor, 0, os.SEEK_END)
    os.write(descriptor, content)
    os.fsync(descriptor)

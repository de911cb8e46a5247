"""What a power cut or a killed writer leaves at the end of a journal: found, kept beside as a copy, and cut off.

A journal is Optuna's: one JSON object per line, only ever appended to. The caller holds its lock, so that a line that
another process is writing is never taken for a torn one.
"""

import json
import os
import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.wording import counted, shown_path

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
    """The record of a line, with or without its line end; None where it is damaged or something else.

    >>> record_in(b'{"op_code":6,"worker_id":"a","trial_id":3}')["trial_id"]
    3
    >>> record_in(b'{"op_code":6,"worker_')
    """
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):  # also bytes that are no text
        return None
    return record if isinstance(record, dict) and "op_code" in record and "worker_id" in record else None


def damaged(path: Path, line: int) -> UserError:
    """What is said of a journal with a line in its middle that cannot be read. line: counted from 1."""
    return UserError(
        f"The journal {shown_path(path)} is damaged in line {line:,}, which is no record, and others follow it: put "
        "back a copy of the file, or delete this line, by which what it recorded is lost."
    )


def repair_end(descriptor: int, path: Path, say: Callable[[str], None]) -> None:
    """Make the last line of a journal whole, or cut it off and say what is lost.

    descriptor: the journal, open for reading and writing, and locked. Raises UserError where the file is no journal,
    which is then left as it is, and OSError where it cannot be read or written.
    """
    size = os.fstat(descriptor).st_size
    start = _start_of_last_line(descriptor, size, path)
    line = _read(descriptor, start, size - start)
    if not line or (line.endswith(b"\n") and record_in(line) is not None):
        return
    _require_journal(descriptor, path, start, line)
    if record_in(line) is not None:  # torn just before its line end
        _write_at_end(descriptor, b"\n")
        say(f"The last line of the journal {shown_path(path)} had no line end, as after a power cut: nothing is lost.")
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
                f"The last line of the journal {shown_path(path)} is longer than {_LONGEST_LINE / 1e6:.3g} MB, so that "
                "it is no record; put back a copy of the file, or cut the line off."
            )
        begin = max(0, end - _BLOCK)
        found = _read(descriptor, begin, end - begin).rfind(b"\n")
        if found >= 0:
            return begin + found + 1
        end = begin
    return 0


def _require_journal(descriptor: int, path: Path, start: int, last_line: bytes) -> None:
    """Raise UserError unless the file began as a journal: nothing is cut off from any other file."""
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
        f"{shown_path(path)} is no journal of Optuna: its first line begins with {shown!r}; name another file, or a "
        "new one."
    )


def _keep_copy(path: Path, line: bytes) -> Path | None:
    """A file beside the journal with the bytes of its torn line; None where it cannot be written."""
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
        except OSError:  # a full disk: the journal goes on without
            return None
        return kept
    return None


def _notice(path: Path, line: bytes, kept: Path | None) -> str:
    code = re.match(rb'\{"op_code":(\d+)[,}]', line)
    what = _RECORDS.get(int(code[1]), "a record") if code else "a record"
    where = "could not be kept" if kept is None else f"are kept in {kept.name}"
    return (
        f"The last line of the journal {shown_path(path)} was torn, as after a power cut, and is cut off: {what} is "
        f"lost, all lines before it are whole. Its {counted(len(line), 'byte')} {where}."
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

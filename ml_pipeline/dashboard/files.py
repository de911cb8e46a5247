"""Files that others wrote, named by a stranger: no name leaves the folder of runs, no link and no pipe is followed.

What a file holds may be anything, and what does not change is not read again.
"""

import json
import math
import os
import re
from collections import deque
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.json_object import finite, parse_json
from ml_pipeline.config.wording import in_one_line
from ml_pipeline.runs.folders import is_run_folder
from ml_pipeline.runtime.files import FileIdentity, GrowingFile, open_regular

_DEEPEST = 2  # folders below the root, as runs of several seeds lie in a folder of theirs
_TAIL_BYTES = 64 * 1024


class NotThere(UserError):
    """There is no run, study, session or report of this name."""


def find_run(root: Path, name: str) -> Path:
    """The folder of a run, named as `read_summaries` does: relative to `root`, or as the root that is itself a run.

    Raises NotThere, also for a name that would lead elsewhere.
    """
    unknown = NotThere(f'{root} holds no run "{in_one_line(name)}"; a run is named as its folder is.')
    if is_run_folder(root):
        if name != root.absolute().name:
            raise unknown
        return root
    parts = name.split("/")
    if len(parts) > _DEEPEST or not all(map(is_plain, parts)):
        raise unknown
    folder = root.joinpath(*parts)
    try:
        is_run, is_inside = is_run_folder(folder), folder.resolve().is_relative_to(root.resolve())
    except (OSError, ValueError, RuntimeError) as error:  # a name too long or that cannot be written, a link to itself
        raise unknown from error
    if not is_run:
        raise unknown
    if not is_inside:
        raise NotThere(f"{folder} is a link that leads out of {root}, and is not followed; open its own folder.")
    return folder


def is_plain(part: str) -> bool:
    """Whether a name is that of a visible folder, and no path."""
    forbidden = set("/\\:\0") if os.name == "nt" else set("/\\\0")
    return bool(part) and not part.startswith(".") and not set(part) & forbidden


def is_plain_file(path: Path) -> bool:
    """Whether a file lies there, and no link to one."""
    return path.is_file() and not path.is_symlink()


def open_file(path: Path) -> BinaryIO | None:
    """The file for reading; None where there is none, or something that is no plain file. Never waits.

    Raises UserError where it may not be read.
    """
    try:
        return open_regular(path, follow_links=False)
    except PermissionError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from error
    except OSError:  # missing, a link, a pipe, a folder
        return None


class Text(NamedTuple):
    """A stretch of a text file. start, end: its bytes. size: of the whole file."""

    text: str
    start: int
    end: int
    size: int


def read_text(path: Path, *, after: int | None = None, before: int | None = None, most: int = _TAIL_BYTES) -> Text:
    """At most `most` bytes: those after an offset, those before one, or the last; whole lines where lines are short.

    Where the file has become shorter than `after`, its end. Nothing where there is no such file.
    """
    file = open_file(path)
    if file is None:
        return Text("", 0, 0, 0)
    with file:
        size = os.fstat(file.fileno()).st_size
        if after is not None and 0 <= after <= size and size - after <= most:
            start, end = after, size
        else:
            end = size if before is None else max(min(before, size), 0)
            start = max(end - most, 0)
        file.seek(start)
        data = file.read(end - start)
    if start > 0 and after != start:  # begin with a line
        begin = data.find(b"\n") + 1
        start, data = start + begin, data[begin:]
    return Text(data.decode("utf-8", errors="replace"), start, start + len(data), size)


_LARGEST_FILE = 64 * 2**20
"""A study.json of 10,000 trials takes some 10 MB."""


class JsonFile:
    """values: what it held when it was last read. written_s: when that was written, in seconds since 1970."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.values: Mapping[str, Any] = {}
        self.written_s = 0.0
        self._seen: FileIdentity | None = None
        self._refusal: str | None = None

    def refresh(self) -> None:
        """Read it again where it changed. Raises ValueError, UserError or OSError where it holds no object.

        What was refused is not read again either, as long as it stays the same.
        """
        file = open_file(self.path)
        if file is None:
            self._seen = None
            raise ValueError("it is no plain file")
        with file:
            found = os.fstat(file.fileno())
            now = FileIdentity.of(found)
            if now != self._seen:
                self._seen = None  # if the disk fails, the next call looks again
                try:
                    self.values, self.written_s = _object_in(file, found.st_size), found.st_mtime
                    self._refusal = None
                except ValueError as error:
                    self._refusal = str(error)
                self._seen = now
        if self._refusal is not None:
            raise ValueError(self._refusal)


def _object_in(file: BinaryIO, n_bytes: int) -> Mapping[str, Any]:
    if n_bytes > _LARGEST_FILE:
        raise ValueError(f"it is larger than {_LARGEST_FILE // 2**20} MiB")
    values = parse_json(file.read(_LARGEST_FILE))
    if not isinstance(values, dict):
        raise ValueError("it holds no object")
    return values


_LONGEST_LINE = 2**20  # bytes; what is longer is no line of metrics


def json_value(text: str | bytes) -> object:
    """The value of a JSON text; None where it is no JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def json_line(line: str | bytes) -> dict[str, Any] | None:
    """The object of a line; None where it holds something else, or is longer than any line of a run."""
    row = json_value(line) if len(line) <= _LONGEST_LINE else None
    return row if isinstance(row, dict) else None


_ROWS = 50
"""So many last iterations tell the speed of now."""
_SCORE_NAME = b'"eval/score"'
_SCORE = re.compile(_SCORE_NAME + rb":\s*([^,}\s]+)")


class MetricsTail:
    """The latest figures of a metrics.jsonl that may be growing, cut in mid-line, or huge: no byte is read twice.

    rows: of the last 50 iterations. last_score, best_score: of all evaluations so far; None before the first.
    A last line that is not whole yet waits for its end, and lines that are no JSON objects are left out.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = GrowingFile()
        self._forget()

    def read(self) -> None:
        """Take in what is new, or everything where the file was replaced. A missing file has nothing."""
        try:
            with open_regular(self._path, follow_links=False) as file:
                if not self._file.goes_on(file):
                    self._forget()
                for lines in self._file.chunks(file):
                    self._take(lines.removesuffix(b"\n"))
        except OSError:  # it may not be read, or the disk fails
            self._file.forget()
            self._forget()

    @property
    def rows(self) -> list[Mapping[str, Any]]:
        """The last iterations, oldest first, as they are written: null is None."""
        return list(self._rows)

    def _forget(self) -> None:
        self._rows: deque[Mapping[str, Any]] = deque(maxlen=_ROWS)
        self.last_score: float | None = None
        self.best_score: float | None = None

    def _take(self, lines: bytes) -> None:
        # Most lines hold none, which takes half as long to find out without the pattern.
        first = lines.find(_SCORE_NAME)
        for match in _SCORE.finditer(lines, first) if first >= 0 else ():
            score = finite(json_value(match[1]))
            if score is not None:
                self.last_score = score
                self.best_score = score if self.best_score is None else max(score, self.best_score)
        latest = lines.rsplit(b"\n", _ROWS)[-_ROWS:]
        self._rows.extend(row for row in map(json_line, latest) if row is not None)


def moment_s(value: object) -> float:
    """An ISO time in seconds since 1970; minus infinity for anything else."""
    try:
        return datetime.fromisoformat(str(value)).timestamp()
    except (ValueError, OverflowError, OSError):
        return -math.inf

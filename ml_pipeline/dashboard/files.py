"""Safe reading of files in run folders: names from requests cannot leave the folder; links and pipes are not followed.

The content of a file may be anything. Unchanged files are not read again.
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

_DEEPEST = 2  # levels below the root: runs of several seeds share a subfolder
_TAIL_BYTES = 64 * 1024


class NotThere(UserError):
    """There is no run, study, session or report of this name."""


def find_run(root: Path, name: str) -> Path:
    """The folder of a run, by its name in `read_summaries`: its path relative to `root`, or the root's own name.

    Raises NotThere, also for a name that would leave the root.
    """
    unknown = NotThere(f'{root} has no run "{in_one_line(name)}"; the name of a run is that of its folder.')
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
    except (OSError, ValueError, RuntimeError) as error:  # the name is too long or not encodable, or a link loop
        raise unknown from error
    if not is_run:
        raise unknown
    if not is_inside:
        raise NotThere(f"{folder} is a link to a place outside of {root}, and is not followed; open that place.")
    return folder


def is_plain(part: str) -> bool:
    """True if a name is a single visible path component."""
    forbidden = set("/\\:\0") if os.name == "nt" else set("/\\\0")
    return bool(part) and not part.startswith(".") and not set(part) & forbidden


def is_plain_file(path: Path) -> bool:
    """True if the path is a file and not a link."""
    return path.is_file() and not path.is_symlink()


def open_file(path: Path) -> BinaryIO | None:
    """Open a file for reading; None if it is missing or not a regular file. Never blocks.

    Raises UserError if reading is not permitted.
    """
    try:
        return open_regular(path, follow_links=False)
    except PermissionError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from error
    except OSError:  # missing, a link, a pipe, a folder
        return None


class Text(NamedTuple):
    """A part of a text file. start, end: its byte offsets. size: of the whole file."""

    text: str
    start: int
    end: int
    size: int


def read_text(path: Path, *, after: int | None = None, before: int | None = None, most: int = _TAIL_BYTES) -> Text:
    """At most `most` bytes: after an offset, before an offset, or the last ones; complete lines if lines are short.

    If the file is now shorter than `after`, return its end. If there is no such file, return nothing.
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
    """A JSON file. values: its content at the last read. written_s: modification time, in seconds since 1970."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.values: Mapping[str, Any] = {}
        self.written_s = 0.0
        self._seen: FileIdentity | None = None
        self._refusal: str | None = None

    def refresh(self) -> None:
        """Read the file again if it changed. Raises ValueError, UserError or OSError if it has no JSON object.

        A rejected file is not read again until it changes.
        """
        file = open_file(self.path)
        if file is None:
            self._seen = None
            raise ValueError("it is not a regular file")
        with file:
            found = os.fstat(file.fileno())
            now = FileIdentity.of(found)
            if now != self._seen:
                self._seen = None  # if the disk fails, the next call tries again
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
        raise ValueError("it has no JSON object")
    return values


_LONGEST_LINE = 2**20  # bytes; longer lines are not metrics


def json_value(text: str | bytes) -> object:
    """The value of a JSON text; None if it is invalid."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def json_line(line: str | bytes) -> dict[str, Any] | None:
    """The JSON object in a line; None if there is none, or if the line is too long for metrics."""
    row = json_value(line) if len(line) <= _LONGEST_LINE else None
    return row if isinstance(row, dict) else None


_ROWS = 50
"""Number of latest iterations from which the current speed is computed."""
_SCORE_NAME = b'"eval/score"'
_SCORE = re.compile(_SCORE_NAME + rb":\s*([^,}\s]+)")


class MetricsTail:
    """The latest figures of a metrics.jsonl, which may be growing, cut off, or huge; no byte is read twice.

    rows: of the last 50 iterations. last_score, best_score: of all evaluations so far; None before the first. An
    incomplete last line is read once it is complete; lines that are not JSON objects are skipped.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = GrowingFile()
        self._forget()

    def read(self) -> None:
        """Read new lines, or everything if the file was replaced. A missing file has no rows."""
        try:
            with open_regular(self._path, follow_links=False) as file:
                if not self._file.goes_on(file):
                    self._forget()
                for lines in self._file.chunks(file):
                    self._take(lines.removesuffix(b"\n"))
        except OSError:  # not permitted, or the disk fails
            self._file.forget()
            self._forget()

    @property
    def rows(self) -> list[Mapping[str, Any]]:
        """The last iterations, oldest first; null is None."""
        return list(self._rows)

    def _forget(self) -> None:
        self._rows: deque[Mapping[str, Any]] = deque(maxlen=_ROWS)
        self.last_score: float | None = None
        self.best_score: float | None = None

    def _take(self, lines: bytes) -> None:
        # Most lines have no score; a plain search finds that out in half the time of the pattern.
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

"""Files that others wrote, named by a stranger: no name leaves the folder of runs, no link and no pipe is followed."""

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.json_object import parse_json
from ml_pipeline.config.wording import in_one_line
from ml_pipeline.runs.folders import is_run_folder
from ml_pipeline.runtime.files import FileIdentity, open_regular

_DEEPEST = 2  # folders below the root, as runs of several seeds lie in a folder of theirs
_TAIL_BYTES = 64 * 1024


class NoSuchRun(UserError):
    """The folder of runs holds no run of this name."""


def find_run(root: Path, name: str) -> Path:
    """The folder of a run, named as `read_summaries` does: relative to `root`, or as the root that is itself a run.

    Raises NoSuchRun, also for a name that would lead elsewhere.
    """
    unknown = NoSuchRun(f'{root} holds no run "{in_one_line(name)}"; a run is named as its folder is.')
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
    except (
        OSError,
        ValueError,
        RuntimeError,
    ) as error:  # a name that is too long or cannot be written, a link to itself
        raise unknown from error
    if not is_run:
        raise unknown
    if not is_inside:
        raise NoSuchRun(f"{folder} is a link that leads out of {root}, and is not followed; open its own folder.")
    return folder


def is_plain(part: str) -> bool:
    """Whether a name is that of a visible folder, and no path."""
    forbidden = set("/\\:\0") if os.name == "nt" else set("/\\\0")
    return bool(part) and not part.startswith(".") and not set(part) & forbidden


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


_LARGEST_COUNT = 2**63


def finite(value: object) -> float | None:
    """The number; None for anything else, and for one that is too large for a float."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def count(value: object) -> int | None:
    """The whole number from 0 on; None for anything else.

    >>> count(3), count(3.0), count(-1), count(True), count("3")
    (3, 3, None, None, None)
    """
    number = finite(value)
    return int(number) if number is not None and 0 <= number < _LARGEST_COUNT and number == int(number) else None


def text(value: object) -> str | None:
    """The text; None for anything else."""
    return value if isinstance(value, str) else None

"""The latest figures of a metrics.jsonl that may be growing, cut in mid-line, or huge: no byte is read twice."""

import json
import math
import os
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from ml_pipeline.runtime.regular_file import has_grown, open_regular

_CHUNK = 4_000_000
_MOST_BYTES = 2**30
"""Of a larger file only the last ones are read."""
_LONGEST_LINE = 2**20  # bytes; what is longer is no line of metrics
_COMPARED = 256  # bytes that were read last
_ROWS = 50
"""So many last iterations tell the speed of now."""
_SCORE_NAME = b'"eval/score"'
_SCORE = re.compile(_SCORE_NAME + rb":\s*([^,}\s]+)")


class MetricsTail:
    """Follows one file; `read` takes in what was added since.

    rows: of the last 50 iterations. last_score, best_score: of all evaluations so far; None before the first.
    A last line that is not whole yet waits for its end, and lines that are no JSON objects are left out.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._forget()

    def read(self) -> None:
        """Take in what is new, or everything where the file was replaced. A missing file has nothing."""
        try:
            with open_regular(self._path, follow_links=False) as file:
                self._read(file)
        except OSError:  # it may not be read, or the disk fails
            self._forget()

    @property
    def rows(self) -> list[Mapping[str, Any]]:
        """The last iterations, oldest first, as they are written: null is None."""
        return list(self._rows)

    def _forget(self) -> None:
        self._inode: int | None = None
        self._offset = 0  # up to here, the end of a line, everything was read
        self._last_bytes = b""  # before that offset
        self._rows: deque[Mapping[str, Any]] = deque(maxlen=_ROWS)
        self.last_score: float | None = None
        self.best_score: float | None = None

    def _read(self, file: BinaryIO) -> None:
        found = os.fstat(file.fileno())
        if not self._goes_on(file, found):
            self._forget()
            self._inode = found.st_ino
        self._offset = max(self._offset, found.st_size - _MOST_BYTES)
        while self._offset < found.st_size:
            file.seek(self._offset)
            chunk = file.read(_CHUNK)
            end = chunk.rfind(b"\n") + 1
            if not end and len(chunk) < _CHUNK:
                break
            read = chunk[:end] if end else chunk  # no line of ours is as long as a chunk
            self._take(read[: max(end - 1, 0)])
            self._offset += len(read)
            self._last_bytes = read[-_COMPARED:]

    def _goes_on(self, file: BinaryIO, found: os.stat_result) -> bool:
        """Whether the file is the one that was read before, with the same last line: numbers of files come again."""
        return found.st_ino == self._inode and has_grown(file, offset=self._offset, before=self._last_bytes)

    def _take(self, lines: bytes) -> None:
        # Most lines hold none, which takes half as long to find out without the pattern.
        first = lines.find(_SCORE_NAME)
        for match in _SCORE.finditer(lines, first) if first >= 0 else ():
            score = _number(match[1])
            if score is not None:
                self.last_score = score
                self.best_score = score if self.best_score is None else max(score, self.best_score)
        latest = lines.rsplit(b"\n", _ROWS)[-_ROWS:]
        self._rows.extend(_parsed(latest))


def _parsed(lines: Iterable[bytes]) -> Iterator[Mapping[str, Any]]:
    for line in lines:
        if len(line) > _LONGEST_LINE:
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict):
            yield row


def _number(text: bytes) -> float | None:
    try:
        value = float(text)
    except ValueError:  # null
        return None
    return value if math.isfinite(value) else None

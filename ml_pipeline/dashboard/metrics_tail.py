"""The latest figures of a metrics.jsonl that may be growing, cut in mid-line, or huge: no byte is read twice."""

import json
import math
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ml_pipeline.runtime.files import GrowingFile, open_regular

_LONGEST_LINE = 2**20  # bytes; what is longer is no line of metrics
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

"""metrics.jsonl: one JSON object per line, one line per iteration."""

import json
import math
from collections.abc import Mapping, Sequence
from numbers import Integral
from pathlib import Path

from ml_pipeline.monitoring.line_file import LineFile, read_lines
from ml_pipeline.monitoring.sink import EpisodeRecord

METRICS_FILE = "metrics.jsonl"
STEP = "time/global_step"


class MetricsFile:
    """Writes each iteration's figures as valid JSON: what is NaN or infinite is null."""

    def __init__(self, path: Path, *, resume_step: int | None = None) -> None:
        """Begin a new file or, where a run goes on at `resume_step`, drop the lines of later steps.

        Raises UserError where the file cannot be written, or is there already and no run is resumed.
        """
        self.last_step = 0
        """Global step of the last iteration that was kept; 0 where there is none."""
        kept = []
        if resume_step is not None:
            for line in read_lines(path):
                step = _step_of(line)
                if step is not None and step <= resume_step:
                    kept.append(line)
                    self.last_step = step
        self._path = path
        self._file = LineFile(path, kept, replace=resume_step is not None)

    def write(self, metrics: Mapping[str, float], episodes: Sequence[EpisodeRecord]) -> None:
        """Add one line."""
        self._file.append([_line(metrics)])

    def add_to_last(self, step: int, metrics: Mapping[str, float]) -> None:
        """Add figures to the last line, if it is that of this global step."""
        lines = read_lines(self._path)
        if lines and _step_of(lines[-1]) == step:
            self._file.close()
            lines[-1] = _line({**json.loads(lines[-1]), **metrics})
            self._file = LineFile(self._path, lines, replace=True)

    def close(self) -> None:
        self._file.close()


def _line(metrics: Mapping[str, float | None]) -> str:
    return json.dumps({name: _number(value) for name, value in metrics.items()}, allow_nan=False)


def _number(value: float | None) -> float | int | None:
    if value is None:
        return None
    if isinstance(value, Integral):
        return int(value)
    return float(value) if math.isfinite(value) else None


def _step_of(line: str) -> int | None:
    try:
        return int(json.loads(line)[STEP])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None

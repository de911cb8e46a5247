"""The metrics of the runs that somebody looks at, each file read once, those not asked for longest given back."""

import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ml_pipeline.dashboard.curves.chart_data import STAGES
from ml_pipeline.dashboard.curves.metrics_columns import MetricsColumns
from ml_pipeline.dashboard.files import find_run
from ml_pipeline.monitoring.sinks import METRICS_FILE

_MOST_BYTES = 512 * 2**20
_CHECKED_S = 1.0
"""For so long a run that was found is taken to be there: looking for it again takes longer than reading a new line."""


class MetricsStore:
    """Columns of runs below a root, by their names. For several threads."""

    def __init__(self, root: Path, *, most_bytes: int = _MOST_BYTES) -> None:
        self._root = root
        self._most_bytes = most_bytes
        self._known: OrderedDict[str, tuple[MetricsColumns, threading.Lock]] = OrderedDict()
        self._lock = threading.Lock()
        self._found: dict[str, tuple[Path, float]] = {}

    @contextmanager
    def opened(self, run: str) -> Iterator[MetricsColumns]:
        """The columns of a run as its file is now, for the block alone. Raises NoSuchRun."""
        path = self._find(run) / METRICS_FILE
        with self._lock:
            if run not in self._known:
                self._known[run] = MetricsColumns(path, durations=STAGES), threading.Lock()
            self._known.move_to_end(run)
            columns, lock = self._known[run]
        with lock:
            if columns.refresh():
                self._give_back(but=run)
            yield columns

    def _find(self, run: str) -> Path:
        path, until = self._found.get(run, (self._root, 0.0))
        if time.monotonic() < until:
            return path
        self._found.pop(run, None)
        path = find_run(self._root, run)
        self._found[run] = path, time.monotonic() + _CHECKED_S
        return path

    def _give_back(self, *, but: str) -> None:
        with self._lock:
            sizes = {run: columns.n_bytes for run, (columns, _) in self._known.items()}
            for run in [each for each in self._known if each != but]:
                if sum(sizes.values()) <= self._most_bytes:
                    break
                del self._known[run], sizes[run]
                self._found.pop(run, None)

"""metrics.jsonl as columns of numbers; after the first read, only new lines are read.

An incomplete last line is read once it is complete. A file that was cut or replaced, as by a resumed run, is read again
under a new generation. Rows of a huge file are merged, so memory stays bounded.
"""

import contextlib
import io
import os
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import count, islice, pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ml_pipeline.dashboard.files import find_run, json_line, json_value, open_file
from ml_pipeline.monitoring.sinks import METRICS_FILE
from ml_pipeline.runtime.files import FileIdentity, GrowingFile

Floats = NDArray[np.float64]

STAGES = tuple(f"time/{name}_s" for name in ("acting", "stepping", "waiting", "exchanging", "learning", "evaluating"))

_FEW_BYTES = 64 * 1024  # up to this size, a JSON parser in C is faster than starting a table library
_MOST_ROWS = 500_000
_MOST_COLUMNS = 500
_MOST_CELLS = 25_000_000  # 200 MB
_LONGEST_NAME = 200
_LINES_AT_ONCE = 20_000
_NAME = re.compile(rb'("[^"\\\n]{1,200}")\s*:')
_generations = count(1)


class MetricsColumns:
    """The columns of one file. For one thread at a time.

    generation: changes whenever existing rows change.
    """

    def __init__(self, path: Path, *, durations: Sequence[str] = (), most_rows: int = _MOST_ROWS) -> None:
        """durations: names of metrics in seconds that add up, such as the stages of an iteration."""
        self._path = path
        self._durations = durations
        self._most_rows = most_rows
        self._seen: FileIdentity | None = None
        self._file = GrowingFile()
        self._forget()

    @property
    def names(self) -> list[str]:
        """Names of the metrics, in order of appearance."""
        return list(self._columns)

    @property
    def n_bytes(self) -> int:
        """Memory of the columns."""
        return self._elapsed.nbytes * (len(self._columns) + 1)

    def column(self, name: str) -> Floats:
        """The values (n_rows,), NaN if a row has none; a view, valid until the next refresh."""
        column = self._columns.get(name)
        return np.full(self.n_rows, np.nan) if column is None else column[: self.n_rows]

    @property
    def elapsed(self) -> Floats:
        """Cumulative sum (n_rows,) of all durations; a view, valid until the next refresh."""
        return self._elapsed[: self.n_rows]

    def refresh(self) -> bool:
        """Read new lines; return True if anything changed. Raises UserError if reading is not permitted."""
        if not self._has_changed():
            return False
        before = self.generation, self.n_rows
        file = open_file(self._path)
        if file is None:
            self._file.forget()
            if self.n_rows:
                self._forget()
            return before != (self.generation, self.n_rows)
        with file:
            found = os.fstat(file.fileno())
            if not self._file.goes_on(file) and self.n_rows:
                self._forget()
            for lines in self._file.chunks(file):
                for piece in _pieces(lines):
                    self._add(rows_of(piece, self._columns))
            self._seen = FileIdentity.of(found)
        return before != (self.generation, self.n_rows)

    def _has_changed(self) -> bool:
        try:
            found = os.stat(self._path)
        except (OSError, ValueError):
            return self.n_rows > 0
        return FileIdentity.of(found) != self._seen

    def _forget(self) -> None:
        self.generation = next(_generations)
        self.n_rows = 0
        self._columns: dict[str, Floats] = {}  # by name (capacity,), NaN after n_rows
        self._capacity = 64
        self._elapsed = np.zeros(self._capacity)
        self._seen = None

    def _add(self, rows: Mapping[str, Floats]) -> None:
        n = len(next(iter(rows.values()), ()))
        n_columns = min(len({*self._columns, *rows}), _MOST_COLUMNS)
        while n_columns * (self.n_rows + n) > _MOST_CELLS and self.n_rows >= 4:
            self._merge_rows()
        self._make_room(self.n_rows + n)
        for name, values in rows.items():
            if name not in self._columns:
                if len(self._columns) >= _MOST_COLUMNS:
                    continue
                self._columns[name] = np.full(self._capacity, np.nan)
            self._columns[name][self.n_rows : self.n_rows + n] = values
        spent = sum((np.nan_to_num(rows[name]) for name in self._durations if name in rows), np.zeros(n))
        before = self._elapsed[self.n_rows - 1] if self.n_rows else 0.0
        self._elapsed[self.n_rows : self.n_rows + n] = before + np.cumsum(spent)
        self.n_rows += n
        while self.n_rows > self._most_rows:
            self._merge_rows()

    def _make_room(self, n_rows: int) -> None:
        if n_rows <= self._capacity:
            return
        self._capacity = max(n_rows, 3 * self._capacity // 2)
        self._columns = {name: self._enlarged(column) for name, column in self._columns.items()}
        self._elapsed = self._enlarged(self._elapsed)

    def _enlarged(self, column: Floats) -> Floats:
        enlarged = np.full(self._capacity, np.nan)
        enlarged[: self.n_rows] = column[: self.n_rows]
        return enlarged

    def _merge_rows(self) -> None:
        """Merge each four rows into two, the smallest and the largest of their values, which is what a curve shows."""
        n = self.n_rows // 4 * 4
        for name, column in (*self._columns.items(), (None, self._elapsed)):
            groups = column[:n].reshape(-1, 4)
            if name in self._durations:
                half = np.nansum(groups, axis=1) / 2
                merged = np.stack([half, half], axis=1)
            else:
                merged = np.stack([np.fmin.reduce(groups, axis=1), np.fmax.reduce(groups, axis=1)], axis=1)
            rest = column[n : self.n_rows].copy()
            column[: n // 2] = merged.reshape(-1)
            column[n // 2 : n // 2 + len(rest)] = rest
            column[n // 2 + len(rest) :] = np.nan
        self.n_rows -= n // 2
        self.generation = next(_generations)


_MOST_HELD = 512 * 2**20
_CHECKED_S = 1.0
"""A known run folder is checked again after this time: the check takes longer than reading a new line."""


class MetricsStore:
    """Columns of the runs below a root, by run name. Each file is read once; the least recently used are dropped when
    memory runs out. Thread-safe."""

    def __init__(self, root: Path, *, most_bytes: int = _MOST_HELD) -> None:
        self._root = root
        self._most_bytes = most_bytes
        self._known: OrderedDict[str, tuple[MetricsColumns, threading.Lock]] = OrderedDict()
        self._lock = threading.Lock()
        self._found: dict[str, tuple[Path, float]] = {}

    @contextlib.contextmanager
    def opened(self, run: str) -> Iterator[MetricsColumns]:
        """The current columns of a run, valid within the block. Raises NotThere."""
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


def rows_of(lines: bytes, known: Iterable[str] = ()) -> dict[str, Floats]:
    """The numbers (n,) of complete JSON lines by name, NaN if missing; lines that are not objects are skipped.

    known: names that are probably present. Values that are not numbers count as missing. At most 500 names, of at most
    200 characters, are read.
    """
    if len(lines) > _FEW_BYTES:
        rows = _read_as_table(lines, known)
        if rows is not None:
            return rows
    parsed = [row for row in map(json_line, lines.split(b"\n")) if row is not None]
    names = (name for row in parsed for name in row if len(name) <= _LONGEST_NAME)
    rows = {name: np.full(len(parsed), np.nan) for name in islice(dict.fromkeys(names), _MOST_COLUMNS)}
    for i, row in enumerate(parsed):
        for name, value in row.items():
            if name in rows:
                rows[name][i] = _number(value)
    return rows


def load_table_reader() -> None:
    """Import the library that reads long files, which takes a third of a second."""
    with contextlib.suppress(ModuleNotFoundError):
        import polars  # noqa: F401


def _pieces(lines: bytes) -> Iterator[bytes]:
    """The lines in pieces of limited size: a block of very short lines would have millions."""
    ends = np.flatnonzero(np.frombuffer(lines, np.uint8) == ord("\n"))[_LINES_AT_ONCE - 1 :: _LINES_AT_ONCE] + 1
    for begin, end in pairwise([0, *ends.tolist(), len(lines)]):
        if begin < end:
            yield lines[begin:end]


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return np.nan
    try:
        return float(value)
    except OverflowError:
        return np.nan


def _read_as_table(lines: bytes, known: Iterable[str]) -> dict[str, Floats] | None:
    """`rows_of` for many lines, ten times as fast; None if a line has values other than numbers.

    A name whose values are all null may be missing.
    """
    if b"[" in lines or lines.count(b"{") > lines.count(b"\n"):
        return None  # inferring the type of deeply nested values takes minutes
    ends = lines.find(b"\n"), lines.rfind(b"\n", 0, len(lines) - 1) + 1
    likely = [name for line in (lines[: ends[0]], lines[ends[1] :]) for name in json_line(line) or ()]
    rows = _table(lines, dict.fromkeys([*known, *likely]))
    return _table(lines, _names_in(lines)) if rows is None else rows


def _table(lines: bytes, names: Collection[str]) -> dict[str, Floats] | None:
    """The numbers of these names; None if the lines have other names or other values."""
    try:
        import polars as pl
    except ModuleNotFoundError:
        return None
    if len(names) > _MOST_COLUMNS or any(len(name) > _LONGEST_NAME for name in names):
        return None
    try:
        frame = pl.read_ndjson(io.BytesIO(lines), schema=dict.fromkeys(names, pl.Float64))
    except (pl.exceptions.PolarsError, ValueError, RuntimeError):
        return None
    # polars ignores names outside the schema, so check that each name in the text became a value or a null.
    n_keys, n_null = _keys_and_nulls(lines, names)
    n_missing = sum(frame.null_count().row(0)) if names else 0
    if n_keys != frame.height * frame.width - n_missing + n_null:
        return None
    return {name: frame[name].to_numpy() for name in frame.columns}  # NaN if missing


def _names_in(lines: bytes) -> list[str]:
    """The names in all objects, if their values are numbers; names with a backslash are skipped."""
    names = sorted({*_NAME.findall(lines)})
    return [name for each in names if isinstance(name := json_value(each), str)]


def _keys_and_nulls(lines: bytes, names: Iterable[str]) -> tuple[int, int]:
    """The number of keys in the lines, and how many of them are null, provided that all values are numbers.

    If a name contains a colon, count the colon together with its quotes. Otherwise count colons, one per key, and those
    followed by an n; an unknown name with a colon then gives one key too many. For 75 MB: 0.03 s instead of 0.28 s.
    """
    if any(":" in name for name in names):
        return lines.count(b'":'), lines.count(b'": null') + lines.count(b'":null')
    signs = np.frombuffer(lines + b"  ", np.uint8)
    colons = np.flatnonzero(signs == ord(":"))
    first, second = signs[colons + 1], signs[colons + 2]
    is_null = (first == ord("n")) | ((first == ord(" ")) & (second == ord("n")))
    return len(colons), int(np.count_nonzero(is_null))

"""metrics.jsonl as columns of numbers, read once and then only where it grew.

A last line that is torn waits for its rest. A file that was cut or replaced, as by a resumed run, is read anew, under
another generation. Of a huge file rows are merged, so that memory stays bounded.
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

_FEW_BYTES = 64 * 1024  # up to here a JSON parser in C is quicker than a table library's start
_MOST_ROWS = 500_000
_MOST_COLUMNS = 500
_MOST_CELLS = 25_000_000  # 200 MB
_LONGEST_NAME = 200
_LINES_AT_ONCE = 20_000
_NAME = re.compile(rb'("[^"\\\n]{1,200}")\s*:')
_generations = count(1)


class MetricsColumns:
    """The columns of one file. Not for several threads at once.

    generation: another number whenever rows that were read have become others.
    """

    def __init__(self, path: Path, *, durations: Sequence[str] = (), most_rows: int = _MOST_ROWS) -> None:
        """durations: names whose values are seconds that follow each other, as the stages of an iteration."""
        self._path = path
        self._durations = durations
        self._most_rows = most_rows
        self._seen: FileIdentity | None = None
        self._file = GrowingFile()
        self._forget()

    @property
    def names(self) -> list[str]:
        """In the order in which they came."""
        return list(self._columns)

    @property
    def n_bytes(self) -> int:
        """Memory of the columns."""
        return self._elapsed.nbytes * (len(self._columns) + 1)

    def column(self, name: str) -> Floats:
        """The values (n_rows,), NaN where a row has none; a view, valid until the next refresh."""
        column = self._columns.get(name)
        return np.full(self.n_rows, np.nan) if column is None else column[: self.n_rows]

    @property
    def elapsed(self) -> Floats:
        """The sum (n_rows,) of all durations up to each row's; a view, valid until the next refresh."""
        return self._elapsed[: self.n_rows]

    def refresh(self) -> bool:
        """Read what was written since; return whether anything changed. Raises UserError where it may not be read."""
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
        self._columns: dict[str, Floats] = {}  # by name (capacity,), NaN behind n_rows
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
        """Let each four rows become two: the smallest and the largest of their values, which is what a curve shows."""
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
"""For so long a run that was found is taken to be there: looking for it again takes longer than reading a new line."""


class MetricsStore:
    """Columns of runs below a root, by their names: each file is read once, and those not asked for longest are given
    back. For several threads."""

    def __init__(self, root: Path, *, most_bytes: int = _MOST_HELD) -> None:
        self._root = root
        self._most_bytes = most_bytes
        self._known: OrderedDict[str, tuple[MetricsColumns, threading.Lock]] = OrderedDict()
        self._lock = threading.Lock()
        self._found: dict[str, tuple[Path, float]] = {}

    @contextlib.contextmanager
    def opened(self, run: str) -> Iterator[MetricsColumns]:
        """The columns of a run as its file is now, for the block alone. Raises NotThere."""
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
    """The numbers (n,) of whole JSON lines by name, NaN where one has none; lines that are no objects are left out.

    known: names that are likely there. What is no number, such as a text or a list, is none. At most 500 names, of at
    most 200 letters, are read.
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
    """Import what long files are read by, which takes a third of a second."""
    with contextlib.suppress(ModuleNotFoundError):
        import polars  # noqa: F401


def _pieces(lines: bytes) -> Iterator[bytes]:
    """The lines, so many at once: of the shortest ones a block holds millions."""
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
    """`rows_of` for many lines, ten times as fast; None where a line holds anything but numbers.

    A name whose values are all null may be left out.
    """
    if b"[" in lines or lines.count(b"{") > lines.count(b"\n"):
        return None  # to find out a type for values within values takes minutes where they lie deep
    ends = lines.find(b"\n"), lines.rfind(b"\n", 0, len(lines) - 1) + 1
    likely = [name for line in (lines[: ends[0]], lines[ends[1] :]) for name in json_line(line) or ()]
    rows = _table(lines, dict.fromkeys([*known, *likely]))
    return _table(lines, _names_in(lines)) if rows is None else rows


def _table(lines: bytes, names: Collection[str]) -> dict[str, Floats] | None:
    """The numbers of these names; None where the lines hold other names or other values."""
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
    # A schema leaves out names that it does not hold: each name of the text must have become a value or a null.
    n_keys, n_null = _keys_and_nulls(lines, names)
    n_missing = sum(frame.null_count().row(0)) if names else 0
    if n_keys != frame.height * frame.width - n_missing + n_null:
        return None
    return {name: frame[name].to_numpy() for name in frame.columns}  # NaN where there is none


def _names_in(lines: bytes) -> list[str]:
    """Of all objects whose values are numbers; names with a backslash are left out."""
    names = sorted({*_NAME.findall(lines)})
    return [name for each in names if isinstance(name := json_value(each), str)]


def _keys_and_nulls(lines: bytes, names: Iterable[str]) -> tuple[int, int]:
    """How many keys the objects of the lines have, and how many of these are null, where all values are numbers.

    Of names that hold a colon themselves the signs around it decide. Otherwise colons are counted, each of which
    stands behind a key, and those with an n behind them; a name that is not known and holds a colon makes one key too
    many. Of 75 MB: 0.03 s in place of 0.28 s.
    """
    if any(":" in name for name in names):
        return lines.count(b'":'), lines.count(b'": null') + lines.count(b'":null')
    signs = np.frombuffer(lines + b"  ", np.uint8)
    colons = np.flatnonzero(signs == ord(":"))
    first, second = signs[colons + 1], signs[colons + 2]
    is_null = (first == ord("n")) | ((first == ord(" ")) & (second == ord("n")))
    return len(colons), int(np.count_nonzero(is_null))

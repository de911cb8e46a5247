"""Read market files that another program is writing, with the backtest's parser, and detect changes.

as an incomplete Parquet file, is read again later. T bars, A assets.
"""

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ml_pipeline.config.errors import UserError
from ml_pipeline.live.feeds.feed import Correction
from ml_pipeline.trading.market.bar_set import bar_sets_of
from ml_pipeline.trading.market.csv_file import find_header
from ml_pipeline.trading.market.data import MarketData
from ml_pipeline.trading.market.files import Reading, market_of_tables
from ml_pipeline.trading.market.resampling import BarForm
from ml_pipeline.trading.market.symbol_files import files_of, names_of
from ml_pipeline.trading.market.tables import Faults, Table, read_table
from ml_pipeline.trading.market.times import Times

# Bytes to read of a CSV file with more than twice as many: some 2,000 rows.
TAIL_BYTES = 1 << 17
# Bytes per symbol if that is more: some 60 rows of each.
SYMBOL_BYTES = 1 << 12
_PLAIN_TEXT = (".csv", ".tsv", ".txt")
# The header is within the first bytes of this number.
_HEAD_BYTES = 1 << 12
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
# A file may be written twice within one tick of its time.
_TICK_NS = 50_000_000

_TABLES = ("open", "high", "low", "close", "volume")

_Signature = tuple[int, int, int]
_UNREAD: _Signature = (0, 0, 0)


class _FileState(NamedTuple):
    """table: None without a complete row. problem: why it could not be read; the table is then the previous one."""

    signature: _Signature
    whole: bool
    table: Table | None
    problem: str = ""


class Readings(NamedTuple):
    """The content of files. market: of complete rows. base_times: of the bars from which longer ones are built, or of
    the market. whole: whether all rows were read, not only the latest. faults: messages about skipped rows."""

    market: MarketData
    base_times: Times
    whole: bool
    faults: tuple[str, ...]


class FileReader:
    """Reads `path`, a file or a folder with one file per symbol, when it has changed."""

    def __init__(self, path: Path, reading: Reading) -> None:
        self._path = path
        self._reading = reading
        self._states: dict[Path, _FileState] = {}
        self._tail_bytes = TAIL_BYTES
        self.makes_longer_bars = reading.form.timeframe is not None

    def changed(self) -> bool:
        """Whether a file has changed since it was read."""
        try:
            files = files_of(self._path)
            if {*files} != {*self._states}:
                return True
            return any(self._states[file].signature != _signature(file) for file in files)
        except (UserError, OSError):  # deleted, possibly at this moment
            return False

    def read(self, *, whole: bool) -> Readings:
        """The content of the files now. Raises UserError if nothing can be read."""
        files = files_of(self._path)
        self._states = {file: self._read(file, whole=whole) for file in files}
        problems = [state.problem for state in self._states.values() if state.problem]
        names = names_of(files)
        tables = [(state.table, names[file]) for file, state in self._states.items() if state.table is not None]
        if not tables:
            raise UserError(
                problems[0] if problems else f"{self._path} has no complete row yet; expected a header and bars."
            )
        faults = Faults("list")
        market = self._market(tables, self._reading, faults)
        if self._path.is_file():
            self._tail_bytes = max(TAIL_BYTES, SYMBOL_BYTES * len(market.symbols))
        base = market
        if self._reading.form.timeframe is not None:
            base = self._market(tables, self._reading._replace(form=BarForm()), Faults("list"))
        all_rows = all(state.whole for state in self._states.values())
        return Readings(market, base.times, all_rows, (*problems, *faults.sentences))

    def _read(self, file: Path, *, whole: bool) -> "_FileState":
        before = self._states.get(file)
        try:
            signature = _signature(file)
            if before is not None and before.signature == signature and before.whole >= whole:
                return before
            if file.suffix.lower() not in _PLAIN_TEXT:
                return _FileState(signature, True, read_table(file, dialect=self._reading.dialect))
            content, is_whole, n_rows = complete_lines(file, None if whole else self._tail_bytes)
            return _FileState(signature, is_whole, read_table(file, content, self._reading.dialect) if n_rows else None)
        except (UserError, OSError) as error:
            return _FileState(_UNREAD, True, None if before is None else before.table, str(error))

    def _market(self, tables: list[tuple[Table, str]], reading: Reading, faults: Faults) -> MarketData:
        """The market of all symbols, or of those that already have a usable row."""
        try:
            return market_of_tables(tables, self._path.name, reading, faults)
        except UserError:
            symbols = reading.symbols or ()
            found = [symbol for symbol in symbols if self._has(symbol, tables, reading)]
            if not 0 < len(found) < len(symbols):
                raise
        return market_of_tables(tables, self._path.name, reading._replace(symbols=found), faults)

    def _has(self, symbol: str, tables: list[tuple[Table, str]], reading: Reading) -> bool:
        try:
            market_of_tables(tables, self._path.name, reading._replace(symbols=[symbol]), Faults("list"))
        except UserError:
            return False
        return True


def complete_lines(file: Path, most_bytes: int | None) -> tuple[bytes, bool, int]:
    """(the complete lines of a text file in UTF-8, whether they start at its first, their number without the header).

    most_bytes: of a file with more than twice as many, read the header and the lines within this number of last bytes.
    """
    with file.open("rb") as opened:
        size = os.fstat(opened.fileno()).st_size
        content = opened.read(_HEAD_BYTES)
        if (len(content) > 1 and b"\0" in content[:4]) or content[:2] in _UTF16_MARKS:
            content, is_whole = _of_utf16(content + opened.read()), True
        elif most_bytes is None or size <= 2 * most_bytes:
            content, is_whole = content + opened.read(), True
        else:
            header = b"".join(content.splitlines(keepends=True)[: _header_lines(content)])
            opened.seek(size - most_bytes)
            opened.readline()
            content, is_whole = header + opened.read(), False
    content = content[: content.rfind(b"\n") + 1]
    return content, is_whole, content.count(b"\n") - _header_lines(content)


def _header_lines(content: bytes) -> int:
    lines = content[:_HEAD_BYTES].decode("utf-8-sig", errors="ignore").splitlines()[:4]
    return find_header(lines).line


def _of_utf16(content: bytes) -> bytes:
    encoding = "utf-16" if content[:2] in _UTF16_MARKS else "utf-16-le" if content[1] == 0 else "utf-16-be"
    return content[: len(content) // 2 * 2].decode(encoding, errors="ignore").removeprefix("\ufeff").encode()


def _signature(file: Path) -> _Signature:
    """A value that is equal while the file is unchanged, and never equal if it was written just now."""
    found = file.stat()
    just_now = abs(time.time_ns() - found.st_mtime_ns) < _TICK_NS
    return found.st_ino, found.st_size, -time.monotonic_ns() if just_now else found.st_mtime_ns


def of_symbols(market: MarketData, symbols: Sequence[str]) -> MarketData:
    """The market with these symbols, in this order; a symbol that it lacks has no bar."""
    if market.symbols == tuple(symbols):
        return market
    columns = [market.symbols.index(symbol) if symbol in market.symbols else -1 for symbol in symbols]

    def selected(table: NDArray[Any], empty: Any) -> NDArray[Any]:
        return np.where(np.array(columns) >= 0, table[:, columns], empty)

    tables: dict[str, Any] = {name: selected(getattr(market, name), np.nan) for name in _TABLES}
    tables["volume"] = np.nan_to_num(tables["volume"], nan=0.0)
    tables["tradable"] = selected(market.tradable, False)
    tables["half_spread"] = None if market.half_spread is None else selected(market.half_spread, 0.0)
    tables["outside"] = None if market.outside is None else selected(market.outside, False)
    own = {name: selected(values, np.nan) for name, values in market.columns.items()}
    return replace(market, symbols=tuple(symbols), columns=own, **tables)


def trusted_from(market: MarketData, *, longer: bool) -> int:
    """The first complete row of a partial reading: before it, an asset may lack rows that were not read.

    longer: bars are built from shorter ones, so an asset's first bar may be incomplete.
    """
    first = int(np.argmax(market.tradable, axis=0)[market.tradable.any(axis=0)].max(initial=0))
    return first + longer


def changed_bars(before: MarketData, now: MarketData, *, first: int, last: np.datetime64) -> Iterator[Correction]:
    """The bars up to the time `last` that have changed, from the row `first` of `now` on, oldest first.

    Removed bars are not corrections, because files may be truncated at the beginning.
    """
    stop = int(np.searchsorted(now.times, last, side="right"))
    if stop <= first:
        return
    times = now.times[first:stop]
    rows = np.searchsorted(before.times, times)
    known = rows < before.n_bars
    known[known] = before.times[rows[known]] == times[known]
    was_there = np.zeros((len(times), len(now.symbols)), dtype=bool)
    was_there[known] = before.tradable[rows[known]]
    is_there = now.tradable[first:stop]
    differs = is_there & ~was_there
    for name, table in _values_of(now).items():
        old = _values_of(before).get(name)
        if old is not None:
            new = table[first:stop][known]
            same = (new == old[rows[known]]) | (np.isnan(new) & np.isnan(old[rows[known]]))
            differs[known] |= was_there[known] & is_there[known] & ~same
    earliest = times < before.times[0]  # bars before the earlier reading are not changes
    for i in np.flatnonzero(differs.any(axis=1) & ~earliest):
        (bars,) = bar_sets_of(now.bars(first + int(i), first + int(i) + 1))
        symbols = tuple(symbol for symbol, changed in zip(now.symbols, differs[i], strict=True) if changed)
        yield Correction(bars, symbols, late=bool((is_there[i] & ~was_there[i]).any()))


def _values_of(market: MarketData) -> dict[str, NDArray[np.float64]]:
    tables = {name: getattr(market, name) for name in _TABLES}
    if market.half_spread is not None:
        tables["half_spread"] = market.half_spread
    return tables | dict(market.columns)

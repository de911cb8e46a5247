"""Reads one file into a table of cells, and says where a row stands in the file."""

import gzip
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from ml_pipeline.config.errors import UserError

if TYPE_CHECKING:
    import polars as pl

_SEPARATORS = (",", ";", "\t", "|")
# At most this many rows are listed.
_MOST_LISTED = 20


@dataclass(frozen=True, eq=False)
class Table:
    """frame: text cells of a CSV file, or typed cells of a Parquet file. header_line: 0 if the file has no lines."""

    name: str
    frame: "pl.DataFrame"
    header_line: int

    def place(self, row: int) -> str:
        """The place of a row (from 0) in the file: data rows from 1, and the line of a text file."""
        return _place(self.name, row, self.header_line)

    def numbers(self, rows: Sequence[int]) -> str:
        """The first of these rows (from 0), as lines of a text file or as row numbers from 1.

        >>> Table("prices.csv", frame=None, header_line=1).numbers([1, 4])
        'lines 3, 6'
        """
        first, what = (self.header_line + 1, "lines") if self.header_line else (1, "rows")
        more = len(rows) - _MOST_LISTED
        listed = ", ".join(f"{row + first:,}" for row in rows[:_MOST_LISTED])
        return f"{what} {listed}{f' and {more:,} more' if more > 0 else ''}"


def read_table(path: Path) -> Table:
    """The cells of the file. Raises UserError if it is empty, unreadable, or no table."""
    import polars as pl

    if path.stat().st_size == 0:
        raise UserError(f"{path.name} is empty; expected a header and one row per bar.")
    try:
        is_parquet = path.suffix.lower() in (".parquet", ".pq")
        table = Table(path.name, pl.read_parquet(path), 0) if is_parquet else _read_csv(path)
    except (pl.exceptions.PolarsError, UnicodeDecodeError, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(f"{path.name} cannot be read as a table: {reason}; expected CSV or Parquet.") from error
    if table.frame.height == 0:
        raise UserError(f"{path.name} has a header and no rows; expected one row per bar.")
    return table


def _read_csv(path: Path) -> Table:
    import polars as pl

    with _open(path) as file:
        first, second = file.readline(), file.readline()
    # A first line without a separator, above a line with one, is a title and not the header.
    header_line = 2 if not any(s in first for s in _SEPARATORS) and any(s in second for s in _SEPARATORS) else 1
    separator = max(_SEPARATORS, key=(first, second)[header_line - 1].count)
    try:
        frame = pl.read_csv(path, separator=separator, skip_rows=header_line - 1, infer_schema=False)
    except pl.exceptions.ComputeError:
        _raise_where_ragged(path, separator, header_line)
        raise
    blank = frame.select(pl.all_horizontal(pl.all().is_null())).to_series()
    filled = (~blank).arg_true()
    return Table(path.name, frame.head(filled[-1] + 1 if len(filled) else 0), header_line)  # no blank lines at the end


def _raise_where_ragged(path: Path, separator: str, header_line: int) -> None:
    """Raise UserError about the first line that has more cells than the header, if there is one."""
    with _open(path) as file:
        counts = [line.count(separator) + 1 for line in file][header_line - 1 :]
    for row, count in enumerate(counts[1:]):
        if count > counts[0]:
            place = _place(path.name, row, header_line)
            raise UserError(f"{place}: {count} cells, but the header has {counts[0]}; fix or drop the row.")


def _place(name: str, row: int, header_line: int) -> str:
    line = f" (line {header_line + row + 1:,})" if header_line else ""
    return f"{name} row {row + 1:,}{line}"


def _open(path: Path) -> TextIO:
    if path.suffix.lower() == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig")
    return path.open(encoding="utf-8-sig")

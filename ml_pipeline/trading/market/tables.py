"""Read one file into a table of cells, and locate rows in the file for messages."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.wording import in_one_line
from ml_pipeline.trading.market.columns import Dialect, Layout, Source, find_layout, source_of
from ml_pipeline.trading.market.csv_file import CsvFile

if TYPE_CHECKING:
    import polars as pl


# Most rows that a message lists.
_MOST_LISTED = 20
# The formats of files with typed columns, as polars calls them.
_TYPED = {".parquet": "parquet", ".pq": "parquet", ".feather": "ipc", ".arrow": "ipc"}
_PLAIN = Dialect()


@dataclass(frozen=True, eq=False)
class Table:
    """frame: cells of a CSV file as numbers or as text, or typed cells of a Parquet or Feather file.

    header_line: the last line of the header; 0 if the file has no lines or no header. has_titles: whether the titles
    come from the file.
    """

    name: str
    frame: "pl.DataFrame"
    header_line: int
    dialect: Dialect = _PLAIN
    has_titles: bool = True

    @property
    def layout(self) -> Layout:
        """The meaning of the columns. Raises UserError if the dialect names a missing column."""
        try:
            layout = find_layout(self.frame.columns, dict(self.dialect.columns))
        except UserError as error:
            raise UserError(f"{self.name}: {error}") from error
        source = self.source
        if source is None:
            return layout
        fields = layout.fields
        if source.volume is not None and "volume" not in dict(self.dialect.columns):
            fields = {symbol: {**titles, "volume": source.volume} for symbol, titles in fields.items()}
        return replace(layout, fields=fields, documented_bar_time=source.bar_time)

    @property
    def source(self) -> Source | None:
        """The source of the file, if its layout is known."""
        return source_of(self.frame.columns, has_header=self.has_titles)

    def place(self, row: int) -> str:
        """The place of a row (from 0) in the file: the data row from 1, and the line of a text file."""
        return _place(self.name, row, self.header_line)

    def numbers(self, rows: Sequence[int] | NDArray[np.int64], *, all_of_them: bool = False) -> str:
        """The first of these rows (from 0), or all of them, as lines of a text file or row numbers from 1.

        >>> Table("prices.csv", frame=None, header_line=1).numbers([1, 4])
        'lines 3, 6'
        """
        first, what = (self.header_line + 1, "lines") if self.header_line else (1, "rows")
        shown = len(rows) if all_of_them else min(len(rows), _MOST_LISTED)
        more = len(rows) - shown
        listed = ", ".join(f"{row + first:,}" for row in rows[:shown])
        return f"{what} {listed}{f' and {more:,} more' if more > 0 else ''}"


def head_of(path: Path, dialect: Dialect = _PLAIN) -> Table:
    """The table of a file that `read_table` can read, without its rows."""
    import polars as pl

    if (kind := _TYPED.get(path.suffix.lower())) is not None:
        return Table(path.name, pl.DataFrame(schema=getattr(pl, f"read_{kind}_schema")(path)), 0, dialect)
    file = CsvFile(path, dialect=dialect)
    return Table(
        path.name,
        pl.DataFrame(schema=dict.fromkeys(file.titles, pl.String)),
        file.header.line,
        dialect,
        file.header.has_titles,
    )


def read_table(path: Path, content: bytes | None = None, dialect: Dialect = _PLAIN) -> Table:
    """The cells of the file. Raises UserError if it is empty, unreadable, or not a table.

    content: UTF-8 text to read in place of a CSV file that is still being written.
    """
    import polars as pl

    try:
        if (path.stat().st_size if content is None else len(content)) == 0:
            raise UserError(f"{path.name} is empty; expected a header and one row per bar.")
        kind = _TYPED.get(path.suffix.lower())
        if kind is not None:
            table = Table(path.name, getattr(pl, f"read_{kind}")(path), 0, dialect)
        else:
            table = _read_csv(path, content, dialect)
    except pl.exceptions.NoDataError:
        raise UserError(f"{path.name} is empty; expected a header and one row per bar.") from None
    except (pl.exceptions.PolarsError, UnicodeDecodeError, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(
            f"{path.name} cannot be read as a table: {reason}; expected CSV, Parquet or Feather."
        ) from error
    if table.frame.height == 0 and table.frame.width == 1 and table.header_line:
        text = in_one_line(table.frame.columns[0], 80)
        raise UserError(f'{path.name} holds the text "{text}" and not a table; expected a header and one row per bar.')
    if table.frame.height == 0:
        raise UserError(f"{path.name} has a header and no rows; expected one row per bar.")
    return table


def _read_csv(path: Path, content: bytes | None, dialect: Dialect) -> Table:
    import polars as pl

    file = CsvFile(path, content, dialect)
    try:
        return Table(path.name, file.read(), file.header.line, dialect, file.header.has_titles)
    except pl.exceptions.ComputeError:
        if (ragged := file.ragged_row()) is None:
            raise
        place = _place(path.name, ragged.row, file.header.line)
        first = "header" if file.header.has_titles else "first row"
        raise UserError(
            f"{place}: {ragged.n_cells} cells, but the {first} has {ragged.n_expected}; fix or drop the row."
        ) from None


def _place(name: str, row: int, header_line: int) -> str:
    line = f" (line {header_line + row + 1:,})" if header_line else ""
    return f"{name} row {row + 1:,}{line}"


@dataclass
class Faults:
    """Handling of invalid rows.

    policy: "refuse" raises on the first; "drop" leaves them out and collects sentences; "list" also collects problems
    that dropping rows does not solve. Optional cells are emptied, and their rows stay.
    all_rows: name every row instead of the first twenty. sentences: about the rows.
    """

    policy: Literal["refuse", "drop", "list"] = "refuse"
    all_rows: bool = False
    sentences: list[str] = field(default_factory=list)

    def report(
        self, table: Table, rows: NDArray[np.int64], sentence: str, *, droppable: bool = True, emptied: bool = False
    ) -> None:
        """Report rows of the table, in order; the sentence describes the first. Raises UserError by `policy`.

        emptied: the rows are valid without the cell.
        """
        message = f"{table.place(int(rows[0]))}: {sentence}"
        if len(rows) > 1 and self.policy != "refuse":
            message += f" {len(rows):,} rows have this problem: {table.numbers(rows, all_of_them=self.all_rows)}."
        self.add(message, droppable=droppable, emptied=emptied)

    def add(self, message: str, *, droppable: bool = True, emptied: bool = False) -> None:
        """Collect a sentence about invalid bars, or raise UserError with it, by `policy`."""
        if self.policy == "list":
            self.sentences.append(message)
        elif self.policy == "drop" and droppable:
            self.sentences.append(f"{'emptied' if emptied else 'left out'}: {message}")
        elif droppable:
            done = "empties such cells" if emptied else "leaves such rows out"
            raise UserError(f"{message} --drop-bad-rows {done} and lists them.")
        else:
            raise UserError(message)

"""Find the header of a CSV file and read the file into a data frame, as numbers if possible and otherwise as text.

A clean file is read as numbers directly. If any cell needs more (decimal commas, currency signs, errors), the whole
file is read as text, which `numbers` parses.
"""

import csv
import gzip
import re
import zipfile
import zlib
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.wording import counted, in_one_line
from ml_pipeline.trading.market.columns import Dialect, find_layout, headerless, is_usual
from ml_pipeline.trading.market.times import read_plain_times

if TYPE_CHECKING:
    import polars as pl


_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
# A file above this many bytes is read in pieces, and the bytes of a piece.
_LARGE = 1 << 25
_PIECE = 1 << 23
# The header is within these first bytes and lines of a file.
_HEAD_BYTES = 1 << 16
_HEAD_LINES = 8
# Most bytes of a packed file that are unpacked in memory.
_MOST_UNPACKED = 1 << 30
_PACKED = (".gz", ".zip")
_AS_CSV = "write its table as CSV and use that"
# Files that are not CSV: (first bytes, what they are, remedy).
_OTHER_FORMATS = (
    (rb"PK\x03\x04", "an Excel workbook or a ZIP archive", "save the sheet as CSV, or name the archive .zip"),
    (rb"\xd0\xcf\x11\xe0", "an Excel workbook", "save the sheet as CSV, in Excel by File, Save As"),
    (rb"\x1f\x8b", "gzipped", "name it .csv.gz"),
    (rb"PAR1", "in Parquet", "name it .parquet"),
    (rb"ARROW1|FEA1", "in Arrow's format", "name it .feather"),
    (rb"BZh|\xfd7zXZ|7z\xbc\xaf|Rar!|\x28\xb5\x2f\xfd", "packed", "unpack it"),
    (rb"(?i)\s*<(!doctype|html|head|body|\?xml)\b", "a web page", "download the data again, perhaps after signing in"),
    (rb"\s*(\{|\[\s*[\[{\"\d\]])", "JSON", _AS_CSV),
    (rb"(?s).{0,15}\x00", "a binary file", _AS_CSV),
)
_PLAIN = Dialect()
# Exceptions of unpacking a damaged or encrypted file.
_DAMAGED: tuple[type[Exception], ...] = (EOFError, ValueError, RuntimeError, zlib.error, zipfile.BadZipFile)
_DAMAGED += (gzip.BadGzipFile,)
with suppress(ImportError):  # some builds of Python lack it
    from lzma import LZMAError

    _DAMAGED += (LZMAError,)


class RaggedRow(NamedTuple):
    """The first row (from 0) that has more cells than the header."""

    row: int
    n_cells: int
    n_expected: int


class CsvFile:
    """A CSV file: plain, gzipped, or alone in a ZIP archive.

    The text is UTF-8, UTF-16 or, if it is neither, Windows-1252. A file that starts with valid non-ASCII UTF-8 and
    becomes invalid after the first 64 KiB is refused.

    header: where the titles are. titles: the column names in polars. content: UTF-8 text to read in place of the file.
    dialect: if it names columns of a file without a header, they are named 1, 2, ...
    """

    def __init__(self, path: Path, content: bytes | None = None, dialect: Dialect = _PLAIN) -> None:
        self._dialect = dialect
        self._source = _source(path) if content is None else content
        try:
            self._first_lines = _first_lines(self._source)
        except UnicodeDecodeError:  # non-ASCII text of a Windows program
            self._source = _of_windows(self._source)
            self._first_lines = _first_lines(self._source)
        self.header = find_header(self._first_lines)
        if not self.header.has_titles and any(title.isdecimal() for _, title in dialect.columns):
            numbers = [str(i + 1) for i in range(len(self.header.titles or ()))]
            self.header = self.header._replace(titles=numbers)
        self._options: dict[str, Any] = {"separator": self.header.separator, "infer_schema": False}
        if self.header.titles is None:  # polars reads them from the header line
            self._options |= {"skip_rows": self.header.line - 1}
        else:
            self._options |= {"skip_rows": self.header.line, "has_header": False, "new_columns": self.header.titles}

    @cached_property
    def titles(self) -> list[str]:
        import polars as pl

        return pl.read_csv("\n".join(self._first_lines).encode(), **self._options).columns

    def read(self) -> "pl.DataFrame":
        """All rows. Raises polars' ComputeError if the file is not a table."""
        import polars as pl

        try:
            return self._read()
        except pl.exceptions.ComputeError as error:
            if "utf-8" not in str(error) or not _head(self._source).isascii():
                raise
        self._source = _of_windows(self._source)
        return self._read()

    def _read(self) -> "pl.DataFrame":
        import polars as pl

        frame = self._as_numbers()
        return _without_blank_end(pl.read_csv(self._source, **self._options) if frame is None else frame)

    def ragged_row(self) -> RaggedRow | None:
        """The first row with more cells than the header, if there is one."""
        with BytesIO(self._source) if isinstance(self._source, bytes) else self._source.open("rb") as file:
            counts = [line.count(self.header.separator.encode()) + 1 for line in file][self.header.line :]
        titles = self.header.titles or cells_of(self._first_lines[self.header.line - 1], self.header.separator)
        expected = len(titles)
        rows = (RaggedRow(row, count, expected) for row, count in enumerate(counts) if count > expected)
        return next(rows, None)

    def _as_numbers(self) -> "pl.DataFrame | None":
        """The file with prices and volumes as numbers; None if some of them are not plain numbers.

        2,000,000 rows of six columns: 0.4 s instead of 13 s as text, on two cores.
        """
        import polars as pl

        try:
            layout = find_layout(self.titles, dict(self._dialect.columns))
        except UserError:  # a missing column; the caller reports it with the file name
            return None
        numeric = {title for fields in layout.fields.values() for title in fields.values()}
        numeric |= {title for title in self.titles if title.lower().startswith("volume")}
        if not numeric:
            return None
        types = {title: pl.Float64 if title in numeric else pl.String for title in self.titles}
        try:
            if isinstance(self._source, Path) and self._source.stat().st_size > _LARGE:
                return self._in_pieces(self._source, types, layout.time)
            return pl.read_csv(self._source, **self._options, schema_overrides=[*types.values()])
        except pl.exceptions.PolarsError:
            return None

    def _in_pieces(self, path: Path, types: dict[str, Any], times: tuple[str, ...]) -> "pl.DataFrame | None":
        """A large file, read piece by piece into arrays; None if a cell may contain a line break.

        polars alone also keeps the file and the text of every cell, which takes three times the memory.
        """
        import polars as pl

        gathered: dict[str, _Gathered] = {}
        texts: list[pl.DataFrame] = []
        spelling = None
        with path.open("rb") as file:
            for _ in range(self.header.line):
                file.readline()
            while block := file.read(_PIECE) + file.readline():
                if b'"' in block:
                    return None
                piece = pl.read_csv(
                    block,
                    separator=self.header.separator,
                    has_header=False,
                    new_columns=[*types],
                    schema_overrides=[*types.values()],
                )
                if len(times) == 1 and (spelling or not gathered):
                    if (plain := read_plain_times(piece[times[0]], spelling)) is not None:
                        piece, spelling = piece.with_columns(plain[0].alias(times[0])), plain[1]
                    elif spelling:
                        return None
                in_file = path.stat().st_size / len(block)
                for title in types:
                    if piece[title].dtype != pl.String:
                        column = gathered.setdefault(title, _Gathered(int(1.1 * in_file * piece.height) + 1))
                        column.append(piece[title].to_physical().fill_null(float("nan")).to_numpy())
                texts.append(piece.select(pl.col(pl.String)))
        frame = pl.concat(texts, rechunk=False)
        columns = [pl.Series(title, column.values) for title, column in gathered.items()]
        if spelling:
            columns = [c.cast(pl.Datetime("us")) if c.name == times[0] else c for c in columns]
        return (frame.with_columns(columns) if frame.width else pl.DataFrame(columns)).select(*types)


class _Gathered:
    """An array that grows; unused capacity takes no memory."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._array: NDArray[Any] | None = None
        self._n = 0

    def append(self, values: NDArray[Any]) -> None:
        if self._array is None:
            self._array = np.empty(self._capacity, dtype=values.dtype)
        if self._n + len(values) > len(self._array):
            more = np.empty(self._capacity // 4 + len(values), dtype=values.dtype)
            self._array = np.concatenate([self._array[: self._n], more])
        self._array[self._n : self._n + len(values)] = values
        self._n += len(values)

    @property
    def values(self) -> NDArray[Any]:
        assert self._array is not None, "a file has at least one piece"
        return self._array[: self._n]


def _without_blank_end(frame: "pl.DataFrame") -> "pl.DataFrame":
    """The rows up to the last row that is not empty."""
    import polars as pl

    blank = pl.all_horizontal(pl.all().is_null() | (pl.all().cast(pl.String) == "NaN"))
    for size in (1_000, frame.height):
        filled = frame.tail(size).select(~blank).to_series().arg_true()
        if len(filled):
            return frame.head(frame.height - min(size, frame.height) + filled[-1] + 1)
    return frame.clear()


def _source(path: Path) -> Path | bytes:
    """The source for polars: the path, or the content in UTF-8 with line feeds. Raises UserError if it is not text."""
    packed = path.suffix.lower() in _PACKED
    if packed:
        content = _unpacked(path)
    else:
        with path.open("rb") as file:
            content = file.read(_HEAD_BYTES)
    encoding = _utf16_encoding(content[:4])
    if encoding is None:
        _check_is_text(path.name, content)
        if b"\r" not in content or b"\n" in content:
            return content if packed else path
    content = content if packed else path.read_bytes()
    text = content.decode(encoding).removeprefix("\ufeff").encode() if encoding else content
    return text if b"\n" in text else text.replace(b"\r", b"\n")


def _unpacked(path: Path) -> bytes:
    """The content of a gzipped file, or of the only file in a ZIP archive. Raises UserError if it is too large."""
    try:
        if path.suffix.lower() == ".gz":
            with gzip.open(path) as file:
                content = file.read(_MOST_UNPACKED + 1)
        else:
            with zipfile.ZipFile(path) as archive:
                names = names_in(archive)
                if len(names) != 1:
                    raise UserError(
                        f"{path.name} holds {counted(len(names), 'file')}, but one is expected; unpack it into a "
                        "folder, and pass the folder."
                    )
                with archive.open(names[0]) as file:
                    content = file.read(_MOST_UNPACKED + 1)
    except UserError:
        raise
    except _DAMAGED as error:
        if isinstance(error, NotImplementedError) or "(missing)" in str(error):  # an optional module of Python
            raise UserError(
                f"{path.name} uses a compression method that this Python does not support; unpack it, and pass the "
                "file."
            ) from error
        raise UserError(f"{path.name} cannot be unpacked: it is truncated, damaged or encrypted.") from error
    if len(content) > _MOST_UNPACKED:
        raise UserError(f"{path.name} unpacks to more than {_MOST_UNPACKED >> 30} GiB; unpack it, and pass the file.")
    return content


def names_in(archive: zipfile.ZipFile) -> list[str]:
    """The files of an archive, without those that macOS adds."""
    return [name for name in archive.namelist() if not name.endswith("/") and not name.startswith("__MACOSX/")]


def _check_is_text(name: str, content: bytes) -> None:
    for start, what, remedy in _OTHER_FORMATS:
        if re.match(start, content):
            page = content[:200].decode(errors="ignore")
            said = f" that begins with {in_one_line(page, 80)}" if page.isprintable() or what == "JSON" else ""
            raise UserError(f"{name} is {what}{said}, and not CSV; {remedy}.")


def _utf16_encoding(start: bytes) -> str | None:
    """The encoding of a UTF-16 file, with or without a byte order mark: every other byte of plain text is 0."""
    if start[:2] in _UTF16_MARKS:
        return "utf-16"
    if len(start) == 4 and start[1] == start[3] == 0 < min(start[0], start[2]):
        return "utf-16-le"
    if len(start) == 4 and start[0] == start[2] == 0 < min(start[1], start[3]):
        return "utf-16-be"
    return None


def _of_windows(source: Path | bytes) -> bytes:
    """Windows-1252 text as UTF-8, converted piece by piece to save memory."""
    with BytesIO(source) if isinstance(source, bytes) else source.open("rb") as file:
        pieces = iter(lambda: file.read(_PIECE), b"")
        return b"".join(piece.decode("cp1252", errors="replace").encode() for piece in pieces)


def _head(source: Path | bytes) -> bytes:
    if isinstance(source, bytes):
        return source[:_HEAD_BYTES]
    with source.open("rb") as file:
        return file.read(_HEAD_BYTES)


def _first_lines(source: Path | bytes) -> list[str]:
    content = _head(source)
    if len(content) == _HEAD_BYTES:  # drop the line that is cut off
        content = content[: content.rfind(b"\n") + 1] or content
    lines = content.decode("utf-8-sig").splitlines()
    return lines[:_HEAD_LINES]


_SEPARATORS = (",", ";", "\t", "|")
# Cells that are not a symbol: empty, a number, or a word for a missing value.
_NO_NAME = re.compile(r"|[-+$]?[\d.,]+|nan|n/?a|null|none|-", re.IGNORECASE)


class Header(NamedTuple):
    """The header of a file.

    line: its last line, from 1; without a header, the title line or 0. titles: the column titles, if that line does
    not hold them. has_titles: whether the file has a header.
    """

    line: int
    separator: str
    titles: list[str] | None = None
    has_titles: bool = True


def find_header(lines: Sequence[str]) -> Header:
    """The header of a file with these first lines.

    >>> find_header(["Price,Close,Volume", "Ticker,AAPL,AAPL", "Date,,", "2024-01-02,185.64,82488700"])
    Header(line=3, separator=',', titles=['Date', 'Close:AAPL', 'Volume:AAPL'], has_titles=True)
    >>> find_header(["1704067200,4,5,3,4.5,10,7", "1704067260,4.5,5,3,4,11,2"]).titles
    ['unix', 'open', 'high', 'low', 'close', 'volume', 'trades']
    """
    first, second = (*lines, "", "")[:2]
    # A first line without a separator, above a line with one, is a title and not the header.
    line = 2 if not any(s in first for s in _SEPARATORS) and any(s in second for s in _SEPARATORS) else 1
    separator = max(_SEPARATORS, key=(first, second)[line - 1].count)
    rows = [cells_of(each, separator) for each in lines[line - 1 :]]
    if (titles := headerless(rows, separator)) is not None:
        return Header(line - 1, separator, [*titles], has_titles=False)
    header = _of_two_levels(lines, separator)
    return header or Header(line, separator)


def cells_of(line: str, separator: str) -> list[str]:
    """The cells of a line, without quotation marks and surrounding blanks."""
    return [cell.strip() for cell in next(csv.reader([line], delimiter=separator), [])]


def _of_two_levels(lines: Sequence[str], separator: str) -> Header | None:
    """A header with price names above symbols or the reverse; None if it is not such a header.

    pandas writes the name of the index, such as Date, into a third line.
    """
    rows = [cells_of(line, separator) for line in lines[:3]]
    if len(rows) < 2 or len(rows[0]) < 2 or len(rows[0]) != len(rows[1]):
        return None
    above, below = rows[0][1:], rows[1][1:]
    if not all(map(_is_name, (*above, *below))) or re.search(r"\d", rows[1][0]):
        return None
    levels = (above, below) if all(map(is_usual, above)) else (below, above)
    titles = [f"{field}:{symbol}" for field, symbol in zip(*levels, strict=True)]
    if not all(map(is_usual, levels[0])) or not find_layout(["time", *titles]).fields:
        return None
    if len(rows) == 3 and rows[2][0] and not any(rows[2][1:]):
        return Header(3, separator, [rows[2][0], *titles])
    return Header(2, separator, ["Date", *titles])


def _is_name(cell: str) -> bool:
    return not _NO_NAME.fullmatch(cell)

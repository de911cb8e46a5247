"""Finds the header of a CSV file in its first lines: below a title, in two or three lines as yfinance writes it.

A file may also have none.
"""

import csv
import re
from collections.abc import Sequence
from typing import NamedTuple

from ml_pipeline.trading.market.columns import find_layout, is_usual
from ml_pipeline.trading.market.sources import headerless

_SEPARATORS = (",", ";", "\t", "|")
# What a cell of a symbol is not: empty, a number, or a word for a missing value.
_NO_NAME = re.compile(r"|[-+$]?[\d.,]+|nan|n/?a|null|none|-", re.IGNORECASE)


class Header(NamedTuple):
    """line: the last line of the header, from 1; that of the title or 0 if there is no header.

    titles: of the columns, if they are not what that line holds. has_titles: whether the file has a header.
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
    """The cells of a line, without quotation marks and the blanks around them."""
    return [cell.strip() for cell in next(csv.reader([line], delimiter=separator), [])]


def _of_two_levels(lines: Sequence[str], separator: str) -> Header | None:
    """The header of a table with names of prices above symbols, or the other way round; None if it is none.

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

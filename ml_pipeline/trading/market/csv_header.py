"""Finds the header of a CSV file in its first lines: below a title, or in two or three lines as yfinance writes it."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from ml_pipeline.trading.market.columns import find_layout, is_usual

_SEPARATORS = (",", ";", "\t", "|")
# What a cell of a symbol is not: empty, a number, or a word for a missing value.
_NO_NAME = re.compile(r"|[-+$]?[\d.,]+|nan|n/?a|null|none|-", re.IGNORECASE)


class Header(NamedTuple):
    """line: the last line of the header, from 1. titles: of the columns, if they are not what that line holds."""

    line: int
    separator: str
    titles: list[str] | None = None


def find_header(lines: Sequence[str]) -> Header:
    """The header of a file with these first lines.

    >>> find_header(["Price,Close,Volume", "Ticker,AAPL,AAPL", "Date,,", "2024-01-02,185.64,82488700"])
    Header(line=3, separator=',', titles=['Date', 'Close:AAPL', 'Volume:AAPL'])
    """
    first, second = (*lines, "", "")[:2]
    # A first line without a separator, above a line with one, is a title and not the header.
    line = 2 if not any(s in first for s in _SEPARATORS) and any(s in second for s in _SEPARATORS) else 1
    separator = max(_SEPARATORS, key=(first, second)[line - 1].count)
    header = _of_two_levels(lines, separator)
    return header or Header(line, separator)


def _of_two_levels(lines: Sequence[str], separator: str) -> Header | None:
    """The header of a table with names of prices above symbols, or the other way round; None if it is none.

    pandas writes the name of the index, such as Date, into a third line.
    """
    rows = [[cell.strip().strip('"') for cell in line.split(separator)] for line in lines[:3]]
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

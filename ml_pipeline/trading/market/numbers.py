"""Parse the numbers of market files: with a decimal point or comma, thousands separators, or K, M, B and T."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ml_pipeline.trading.market.data import FloatArray

if TYPE_CHECKING:
    import polars as pl

_EMPTY = ("", "na", "n/a", "#n/a", "null", "none", "-", "--")
# Suffixes of volumes on web pages: 3.43M.
_FACTORS = {"k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}
# The comma in 1,234 may separate thousands or decimals. A number has a decimal point for certain if the digits around
# it differ from those of 1.234, or if it has several commas, as 1,234,567. Decimal commas are the mirror image.
_SURELY_POINTS = (
    r"^[-+]?(\d+\.\d{1,2}|\d+\.\d{4,}|0*\.\d+|\d{4,}\.\d+|\d*\.\d+e[-+]?\d+|\d{1,3}(,\d{3})+\.\d+|\d{1,3}(,\d{3}){2,})$"
)
_GROUPED = r"^[-+]?\d{1,3}(,\d{3})+(\.\d+)?$"
_SHORT = r"^([-+]?\d[\d.,]*)\s?([kmbt])$"
_EITHER = r"[-+]?[1-9]\d{0,2},\d{3}"


def parse_numbers(columns: "Sequence[pl.Series]") -> list[tuple[FloatArray, NDArray[np.bool_]]]:
    """For each column of a table: (numbers, NaN for an empty cell; which cells are neither a number nor empty).

    All columns have the same decimal sign: the point, unless some cell can only be read with a comma and none only with
    a point. A cell like 1,234 is a number only if another cell settles the sign.
    """
    import polars as pl

    cleaned = {i: _cleaned(column) for i, column in enumerate(columns) if not column.dtype.is_numeric()}
    texts = {i: text.str.replace(_SHORT, "${1}") for i, text in cleaned.items()}
    points = any(_any(text, _SURELY_POINTS) for text in texts.values())
    commas = not points and any(_any(_mirrored(text), _SURELY_POINTS) for text in texts.values())
    parsed = []
    for i, column in enumerate(columns):
        numbers, unread = column, np.full(len(column), False)
        if i in texts:
            text = _mirrored(texts[i]) if commas else texts[i]
            if points or commas:
                grouped = text.str.contains(_GROUPED).fill_null(False)
                text = text.zip_with(~grouped, text.str.replace_all(",", "", literal=True))
            numbers = text.cast(pl.Float64, strict=False)
            unread = (numbers.is_null() & text.is_not_null()).to_numpy()
            factors = cleaned[i].str.extract(_SHORT, 2).replace_strict(_FACTORS, default=1.0, return_dtype=pl.Float64)
            numbers *= factors
        parsed.append((numbers.cast(pl.Float64).fill_null(float("nan")).to_numpy(), unread))
    return parsed


def why_unread(cell: str) -> str:
    """Why a cell cannot be read, and the remedy.

    >>> why_unread("12$")
    'which is not a number like 1234.56; fix or drop the row'
    >>> why_unread("1,234")
    'which may be 1234 or 1.234, and no other cell shows which; write one of the two'
    """
    if re.fullmatch(_EITHER, cell.strip()):
        grouped, pointed = (cell.strip().replace(",", sign) for sign in ("", "."))
        return f"which may be {grouped} or {pointed}, and no other cell shows which; write one of the two"
    return "which is not a number like 1234.56; fix or drop the row"


def _cleaned(column: "pl.Series") -> "pl.Series":
    """Text without blanks and currency signs; null for a missing value."""
    import polars as pl

    if column.dtype.is_nested() or column.dtype in (pl.Binary, pl.Duration, pl.Object):  # not text, in a typed file
        cells = [None if is_empty else str(column.dtype) for is_empty in column.is_null()]
        column = pl.Series(column.name, cells, dtype=pl.String)
    text = column.cast(pl.String).str.strip_chars().str.strip_chars_start("$€£¥").str.to_lowercase()
    text = text.str.replace_all(r"(\d)[ \u{a0}\u{202f}'’](\d{3})", "${1}${2}")
    return text.set(text.is_in(_EMPTY), None)


def _any(text: "pl.Series", pattern: str) -> bool:
    return bool(text.str.contains(pattern).any())


def _mirrored(text: "pl.Series") -> "pl.Series":
    """Text with points and commas exchanged."""
    for sign, other in ((".", "\0"), (",", "."), ("\0", ",")):
        text = text.str.replace_all(sign, other, literal=True)
    return text

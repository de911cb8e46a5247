"""Reads times as market files write them, as UTC without a time zone."""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import polars as pl

EXPECTED_TIMES = "2024-01-31 13:00, 31.01.2024 13:00 or Unix seconds"

_DATES = ("%Y-%m-%d", "%Y/%m/%d", "%Y.%m.%d", "%Y%m%d", "%d.%m.%Y", "%d %b %Y", "%b %d, %Y")
# A day past the 12th shows which of the two spellings is meant.
_AMBIGUOUS_DATES = (("%d/%m/%Y", "%m/%d/%Y"), ("%d-%m-%Y", "%m-%d-%Y"))
_CLOCKS = ("", " %H:%M:%S%.f", " %H:%M", " %I:%M:%S %p", " %I:%M %p", " %H%M%S")
_OFFSET = r"[+-]\d\d:?\d\d$"
# Units of Unix times by size: (below, unit). Times since 1973 fit exactly one unit.
_EPOCHS = ((1e8, None), (1e11, "s"), (1e14, "ms"), (1e17, "us"), (float("inf"), "ns"))


class AmbiguousTimesError(ValueError):
    """The column can be read with the day first or the month first."""


def parse_times(column: "pl.Series") -> NDArray[np.datetime64]:
    """The times of a column, datetime64[ns] (T,); NaT where a cell is empty or not a time.

    Takes dates and times of any type, Unix times in s, ms, µs or ns, and text: ISO with or without an offset (converted
    to UTC), DD.MM.YYYY, YYYY.MM.DD, YYYYMMDD, and slashes if a day past the 12th tells day from month.
    Raises AmbiguousTimesError if none does.
    """
    import polars as pl

    if column.dtype == pl.Date:
        column = column.cast(pl.Datetime("ns"))
    elif isinstance(column.dtype, pl.Datetime):
        column = _without_zone(column)
    elif column.dtype.is_numeric():
        return _from_epoch(column.cast(pl.Float64).to_numpy())
    else:
        return _from_text(column.cast(pl.String))
    return column.cast(pl.Datetime("ns")).to_numpy().astype("datetime64[ns]")


def _from_text(column: "pl.Series") -> NDArray[np.datetime64]:
    import polars as pl

    text = column.str.strip_chars().str.replace(r"(\d)T(\d)", "${1} ${2}").str.replace(r"\s*(Z|UTC|GMT)$", "")
    known = text.filter(text.is_not_null() & (text != ""))
    if known.is_empty():
        return np.full(len(column), "NaT", dtype="datetime64[ns]")
    numbers = text.cast(pl.Float64, strict=False)
    if numbers.is_not_null().any() and not known.str.contains(r"^(19|20)\d{6}$").all():
        return _from_epoch(numbers.to_numpy())

    has_offset = bool(known.str.contains(_OFFSET).all() and known.str.contains(":").all())
    suffix = "%:z" if has_offset else ""
    best = pl.Series([None] * len(text), dtype=pl.Datetime("ns"))
    for date in (*_DATES, *_AMBIGUOUS_DATES):
        pair = (date, date) if isinstance(date, str) else date
        for clock in _CLOCKS:
            readings = [_read(text, known[0], spelling + clock + suffix) for spelling in dict.fromkeys(pair)]
            counts = [reading.count() for reading in readings]
            if len(readings) == 2 and min(counts) == len(known) and not readings[0].equals(readings[1]):
                raise AmbiguousTimesError(known[0])
            best = max([best, *readings], key=lambda reading: reading.count())
    return best.to_numpy().astype("datetime64[ns]")


def _read(text: "pl.Series", first: str, spelling: str) -> "pl.Series":
    """The column read with one spelling; all null, which is faster, if the first cell does not have that spelling."""
    import polars as pl

    def read(series: "pl.Series") -> "pl.Series":
        if "%H" in spelling or "%I" in spelling:
            return _without_zone(series.str.to_datetime(spelling, strict=False, time_unit="ns"))
        return series.str.to_date(spelling, strict=False).cast(pl.Datetime("ns"))

    ambiguous = "/" in spelling or spelling.startswith(("%d-", "%m-"))
    if not ambiguous and read(pl.Series([first])).null_count():
        return pl.Series([None] * len(text), dtype=pl.Datetime("ns"))
    return read(text)


def _without_zone(column: "pl.Series") -> "pl.Series":
    zone = getattr(column.dtype, "time_zone", None)
    return column.dt.convert_time_zone("UTC").dt.replace_time_zone(None) if zone else column


def _from_epoch(numbers: NDArray[np.float64]) -> NDArray[np.datetime64]:
    known = np.isfinite(numbers)
    largest = np.abs(numbers[known]).max(initial=0.0)
    unit = next(unit for below, unit in _EPOCHS if largest < below)
    times = np.full(len(numbers), "NaT", dtype="datetime64[ns]")
    if unit is not None:
        times[known] = numbers[known].astype(np.int64).astype(f"datetime64[{unit}]")
    return times

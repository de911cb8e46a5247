"""Parse the times of market files as UTC without a time zone, or as dates of an exchange."""

import re
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ml_pipeline.config.errors import UserError

if TYPE_CHECKING:
    import polars as pl

EXPECTED_TIMES = "2024-01-31 13:00, 31.01.2024 13:00 or Unix seconds"

Times = NDArray[np.datetime64]
BarTime = Literal["open", "close"]
DateOrder = Literal["dmy", "mdy", "ymd"]

_DATES = (
    *("%Y-%m-%d", "%Y/%m/%d", "%Y.%m.%d", "%Y%m%d", "%d.%m.%Y", "%d %b %Y", "%b %d, %Y", "%d-%b-%Y"),
    *("%d.%m.%y", "%d-%b-%y", "%d %b %y"),
)
# A day after the 12th, or a year after 31, shows which format is meant.
_AMBIGUOUS_DATES = (
    *(("%d/%m/%Y", "%m/%d/%Y"), ("%d-%m-%Y", "%m-%d-%Y")),
    *(("%d/%m/%y", "%m/%d/%y"), ("%y-%m-%d", "%d-%m-%y", "%m-%d-%y")),
)
_CLOCKS = ("", " %H:%M:%S%.f", " %H:%M", " %I:%M:%S %p", " %I:%M %p", " %H%M%S", " %H%M")
_PLAIN_SPELLINGS = tuple(
    date + written
    for date in _DATES
    for clock in _CLOCKS
    for written in dict.fromkeys((clock, clock.replace(" %H", "T%H")))
)
_OFFSET = r"\s*[+-]\d\d:?\d\d$"
# A named time zone, as in Interactive Brokers' 20240102 09:30:00 US/Eastern.
_ZONE = r"\s([A-Z][A-Za-z]+(?:/[A-Za-z_]+)+)$"
# Time zones by abbreviations in column titles. EET, CET and WET follow the daylight saving time of the EU, as in the
# time zone database (iana.org/time-zones, file europe), which Java programs such as Dukascopy's JForex also use.
_ZONES = {
    **dict.fromkeys(("utc", "gmt"), "UTC"),
    **{zone: zone.upper() for zone in ("eet", "cet", "wet")},
    **{"et": "America/New_York", "jst": "Asia/Tokyo", "msk": "Europe/Moscow"},
}
# Ambiguous abbreviations: fixed offset or daylight saving time, or two places.
_TWO_ZONES = (
    *("est", "edt", "cst", "cdt", "mst", "mdt", "pst", "pdt", "ast", "aest", "aedt", "bst", "ist", "sst"),
    *("cest", "eest", "west"),
)
# Summer names in titles such as CET/CEST.
_SUMMER_OF = {"cest": "cet", "eest": "eet", "west": "wet"}
# First parts of names in the time zone database (iana.org/time-zones), to tell them from titles such as Date/Time.
_REGIONS = (
    *("Africa", "America", "Antarctica", "Arctic", "Asia", "Atlantic", "Australia", "Brazil", "Canada", "Chile"),
    *("Etc", "Europe", "Indian", "Mexico", "Pacific", "US"),
)
_BEGINS = r"(?:(?<![A-Za-z])|(?<=[a-z])(?=[A-Z]))"
_TITLE_ZONE = re.compile(
    rf"{_BEGINS}(?P<place>(?:{'|'.join(_REGIONS)})(?:/[A-Z][A-Za-z_]*(?:[+-][A-Za-z\d]+)*)+)"
    rf"|{_BEGINS}(?P<offset>(?i:UTC|GMT)\s*(?P<sign>[+\-\u2212])\s*"
    r"(?P<hours>\d+?)(?::?(?P<minutes>\d\d))?(?P<rest>[.,]\d+)?(?!\d))"
    rf"|{_BEGINS}(?P<short>(?i:{'|'.join((*_ZONES, *_TWO_ZONES))}))(?![A-Za-z])"
)
_MOST_HOURS = 14  # Kiribati
# Dates, and times to the minute or second, as digits only; Unix times of this century have other lengths.
_DIGITS = r"^(19|20)\d\d(0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01])(([01]\d|2[0-3])[0-5]\d([0-5]\d)?)?$"
# Years that nanosecond times can hold; a two-digit year read as four digits is outside.
_YEARS = (1678, 2261)
# Units of Unix times: (smallest value, unit, units per second). Times since 1973 fit exactly one unit.
_EPOCHS = ((1e8, "s", 1.0), (1e11, "ms", 1e3), (1e14, "us", 1e6), (1e17, "ns", 1e9))
# Neighbouring rows have Unix times in two units if they differ by more than this factor, but by less than these seconds
# once each is read in its unit.
_OTHER_UNIT = 100.0
_NEIGHBOURS_S = 2 * 365.25 * 86_400


class AmbiguousTimesError(ValueError):
    """The column can be read with the day first or the month first."""


class UnitChange(NamedTuple):
    """Unix times change their unit at `row` (from 0)."""

    row: int
    before: str
    after: str


class ReadTimes(NamedTuple):
    """The times of a column.

    utc: datetime64[ns] (T,), NaT if a cell is empty or not a time.
    days: datetime64[ns] (T,), local midnights without the offset, if every time is a local midnight of the exchange and
    not of UTC; otherwise None.
    unit_change: the first change of unit in a column of Unix times; None if all have the same.
    zone: name of the time zone that they were converted from; None for times with offsets and times in UTC.
    """

    utc: Times
    days: Times | None = None
    unit_change: UnitChange | None = None
    zone: str | None = None


def zone_in(title: str) -> str | None:
    """The time zone in a title: a name of the time zone database, or an offset; None if there is none.

    Raises UserError for an ambiguous abbreviation and for an impossible offset.

    >>> zone_in("Time (EET)"), zone_in("Gmt time"), zone_in("Time (UTC+2)"), zone_in("Date (America/New_York)")
    ('EET', 'UTC', '+02:00', 'America/New_York')
    """
    if (found := _TITLE_ZONE.search(title)) is None:
        return None
    if found["offset"]:
        return _offset_of(found, title)
    if found["place"]:
        return found["place"]
    short = found["short"].lower()
    named = {other["short"].lower() for other in _TITLE_ZONE.finditer(title) if other["short"]}
    if _SUMMER_OF.get(short) in named:
        short = _SUMMER_OF[short]
    if short in _ZONES:
        return _ZONES[short]
    raise UserError(
        f'the zone {found["short"]} in the title "{title}" is ambiguous, with and without daylight saving time; write '
        "another one in the title, such as (America/New_York) or (UTC-5)."
    )


def _offset_of(found: re.Match[str], title: str) -> str:
    hours, minutes = int(found["hours"]), int(found["minutes"] or 0)
    if found["rest"] or minutes > 59 or hours * 60 + minutes > _MOST_HOURS * 60:
        raise UserError(
            f'the offset {found["offset"]} in the title "{title}" must be hours, or hours and minutes, of at most '
            f"{_MOST_HOURS} hours; write it like (UTC-5) or (UTC+05:30)."
        )
    return f"{'+' if found['sign'] == '+' else '-'}{hours:02}:{minutes:02}"


def without_zone(title: str) -> str:
    """A title without its time zone.

    >>> without_zone("Time (UTC+2)"), without_zone("Volume")
    ('Time ()', 'Volume')
    """
    return _TITLE_ZONE.sub("", title)


def parse_times(column: "pl.Series", date_order: DateOrder | None = None, zone: str | None = None) -> ReadTimes:
    """The times of a column.

    date_order: order of day, month and year in dates such as 01/02/2024; None: inferred. zone: for times without a
    zone, as in `zone_in`.

    Accepts dates and times of any type, Unix times in s, ms, µs or ns, and text: ISO with or without an offset
    (converted to UTC) or a named zone, DD.MM.YYYY, YYYY.MM.DD, YYYYMMDD, and slashes if a day after the 12th shows the
    order. A year may have two digits. Raises AmbiguousTimesError if no row shows the order.
    """
    import polars as pl

    if isinstance(column.dtype, pl.Datetime) and column.dtype.time_zone:
        wall = column.dt.replace_time_zone(None)
        return _with_days(_array(column.dt.convert_time_zone("UTC").dt.replace_time_zone(None)), _array(wall))
    if isinstance(column.dtype, pl.Date | pl.Datetime):
        return _in_zone(column.cast(pl.Datetime("ns")), zone)
    if column.dtype.is_numeric():
        text = column.drop_nulls().cast(pl.String) if column.dtype.is_integer() else column.clear().cast(pl.String)
        if not (len(text) and text.str.contains(_DIGITS).all()):
            return _from_epoch(column)
    return _from_text(column.cast(pl.String), date_order, zone)


def join_clock(day: "pl.Series", clock: "pl.Series") -> "pl.Series":
    """Dates and times of day (9:30, 093000 or 930) joined as text; if the second holds full times, that alone."""
    import polars as pl

    days, clocks = (column.cast(pl.String).str.strip_chars() for column in (day, clock))
    if clocks.str.contains(r"^\d{1,2}:\d\d").all():
        return days + " " + clocks
    if clocks.str.contains(r"^\d{1,6}$").all() and (clocks.cast(pl.Int64) < 240_000).all():
        n_digits = 6 if (clocks.str.len_chars() > 4).any() else 4
        return days + " " + clocks.str.zfill(n_digits)
    return clock


def as_text(time: np.datetime64) -> str:
    """A time as text to the second, or only the date at midnight.

    >>> as_text(np.datetime64("2024-01-31T00:00", "ns")), as_text(np.datetime64("2024-01-31T13:00", "ns"))
    ('2024-01-31', '2024-01-31 13:00:00')
    """
    return str(time.astype("datetime64[s]")).replace("T", " ").removesuffix(" 00:00:00")


def usual_spacing(times: Times) -> int:
    """The usual time between bars in ns, unaffected by stray bars and gaps; a day if there is only one bar."""
    if len(times) < 2:
        return 86_400 * 10**9
    return int(np.quantile(np.diff(times).astype(np.int64), 0.25, method="lower"))


def _from_text(column: "pl.Series", date_order: DateOrder | None, zone: str | None) -> ReadTimes:
    import polars as pl

    if (plain := read_plain_times(column)) is not None:
        return _in_zone(plain[0], zone)
    if column.str.contains(r"(Z|UTC|GMT)\s*$").any():
        zone = None
    text = column.str.strip_chars().str.replace_all(r"\s+", " ").str.replace(r"(\d)T(\d)", "${1} ${2}")
    text = text.str.replace(r"\s*(Z|UTC|GMT)$", "").str.replace(r"\s*(?:UTC|GMT)([+-]\d)", "${1}")
    text = text.str.replace(r"(:\d\d(?:\.\d+)?\s*[+-]\d\d)$", "${1}:00").str.replace(r"^(\d{8})-(\d\d:)", "${1} ${2}")
    known = text.filter(text.is_not_null() & (text != ""))
    if known.is_empty():
        return ReadTimes(np.full(len(column), "NaT", dtype="datetime64[ns]"))
    numbers = text.cast(pl.Float64, strict=False)
    if known.str.contains(_DIGITS).all():
        text = text.str.replace(r"^(\d{8})(\d{4,6})$", "${1} ${2}")
    elif numbers.is_not_null().any():
        whole = text.cast(pl.Int64, strict=False)
        return _from_epoch(whole if whole.null_count() == numbers.null_count() else numbers)
    if known.str.contains(_OFFSET).all() and known.str.contains(":").all():
        wall = _array(_in_best_spelling(text.str.replace(_OFFSET, ""), "", date_order))
        return _with_days(_array(_in_best_spelling(text, "%:z", date_order)), wall)
    zones = known.str.extract(_ZONE).unique()
    if len(zones) == 1 and zones[0] is not None:
        return _in_zone(_in_best_spelling(text.str.replace(_ZONE, ""), "", date_order), zones[0])
    return _in_zone(_in_best_spelling(text, "", date_order), zone)


def _in_zone(wall: "pl.Series", zone: str | None) -> ReadTimes:
    """Local times of a zone in UTC; NaT for a time skipped by daylight saving time, or for an unknown zone.

    zone: None means UTC. A repeated local time becomes the later one if the previous row is not earlier.
    """
    import polars as pl

    if zone is None:
        return ReadTimes(_array(wall))
    if offset := re.fullmatch(r"([+-])(\d\d):(\d\d)", zone):
        minutes = int(f"{offset[1]}1") * (60 * int(offset[2]) + int(offset[3]))
        return _with_days(_array(wall) - np.timedelta64(minutes, "m"), _array(wall), zone)
    try:
        earlier, later = (
            _array(local.dt.convert_time_zone("UTC").dt.replace_time_zone(None))
            for which in ("earliest", "latest")
            for local in [wall.dt.replace_time_zone(zone, ambiguous=which, non_existent="null")]
        )
    except pl.exceptions.ComputeError:  # no such zone
        return ReadTimes(np.full(len(wall), "NaT", dtype="datetime64[ns]"))
    repeated = (earlier != later) & ~np.isnat(earlier)
    earlier, cells = earlier.copy(), _array(wall)
    shared = bool(((cells[1:] == cells[:-1]) & ~repeated[1:]).any())  # several symbols at each time
    step = -1 if len(earlier) > 1 and earlier[-1] < earlier[0] else 1
    for i in np.flatnonzero(repeated)[::step]:
        before = earlier[i - step] if 0 <= i - step < len(earlier) else earlier[i] - 1
        if later[i] >= before > earlier[i] or (before == earlier[i] and not shared):
            earlier[i] = later[i]
    return _with_days(earlier, cells, zone)


def read_plain_times(column: "pl.Series", spelling: str | None = None) -> "tuple[pl.Series, str] | None":
    """(times, format) if an unambiguous format, or this one, reads every cell; otherwise None.

    Most files are read here; the rest of `parse_times` takes ten times as long.
    """
    first = column[0] if len(column) else None
    if first is None or first.strip().isdecimal():  # YYYYMMDD looks like a Unix time
        return None
    for written in (spelling,) if spelling else _PLAIN_SPELLINGS:
        times = _read(column, first, written)
        if times.null_count() == 0:
            return times, written
    return None


def _in_best_spelling(text: "pl.Series", suffix: str, date_order: DateOrder | None) -> "pl.Series":
    """The column in the format that reads most cells; if formats differ in the order of the date, in `date_order`.

    Raises AmbiguousTimesError if two formats read all cells differently and not exactly one of them gives sorted times.
    """
    import polars as pl

    known = text.filter(text.is_not_null() & (text != ""))
    best = pl.Series([None] * len(text), dtype=pl.Datetime("ns"))
    for date in (*_DATES, *_AMBIGUOUS_DATES):
        group: tuple[str, ...] = (date,) if isinstance(date, str) else date
        if date_order is not None and len(group) > 1:
            group = tuple(each for each in group if "".join(re.findall("[dmy]", each.lower())) == date_order)
        for clock in _CLOCKS:
            readings = [_read(text, known[0], spelling + clock + suffix) for spelling in group]
            full = [reading for reading in readings if reading.count() == len(known)]
            if any(not full[0].equals(other) for other in full[1:]):
                readings = [reading for reading in full if _in_order(reading)]
                if len(readings) != 1:
                    raise AmbiguousTimesError(known[0])
            best = max([best, *readings], key=lambda reading: reading.count())
    return best


def _in_order(times: "pl.Series") -> bool:
    known = times.drop_nulls()
    return known.is_sorted() or known.is_sorted(descending=True)


def _read(text: "pl.Series", first: str, spelling: str) -> "pl.Series":
    """The column read in one format; all null, which is faster, if the first cell does not have it."""
    import polars as pl

    def read(series: "pl.Series") -> "pl.Series":
        if "%H" in spelling or "%I" in spelling:
            times = series.str.to_datetime(spelling, strict=False, time_unit="us")
            if getattr(times.dtype, "time_zone", None):
                times = times.dt.convert_time_zone("UTC").dt.replace_time_zone(None)
        else:
            times = series.str.to_date(spelling, strict=False).cast(pl.Datetime("us"))
        years = times.dt.year()
        return times if years.is_between(*_YEARS).all() else times.set(~years.is_between(*_YEARS), None)

    ambiguous = any(spelling.startswith(date) for group in _AMBIGUOUS_DATES for date in group)
    if not ambiguous and read(pl.Series([first])).null_count():
        return pl.Series([None] * len(text), dtype=pl.Datetime("us"))
    return read(text)


def _array(column: "pl.Series") -> Times:
    import polars as pl

    return column.cast(pl.Datetime("ns")).to_numpy().astype("datetime64[ns]", copy=False)


def _with_days(utc: Times, wall: Times, zone: str | None = None) -> ReadTimes:
    """`utc`, and the exchange's dates if the local time `wall` is midnight in every row and UTC is not."""
    known = ~np.isnat(utc)
    midnight = wall[known] == wall[known].astype("datetime64[D]")
    is_days = midnight.size > 0 and midnight.all() and not np.array_equal(wall[known], utc[known])
    return ReadTimes(utc, wall if is_days else None, zone=zone)


def _from_epoch(column: "pl.Series") -> ReadTimes:
    import polars as pl

    numbers = column.cast(pl.Float64).fill_null(float("nan")).to_numpy()
    # Integers stay integers: floats hold today's nanoseconds only to a quarter of a microsecond.
    exact = column.cast(pl.Int64).fill_null(0).to_numpy() if column.dtype.is_integer() else None
    known = np.isfinite(numbers)
    sizes = np.abs(numbers)
    times = np.full(len(numbers), "NaT", dtype="datetime64[ns]")
    largest = sizes[known].max(initial=0.0)
    if largest < _EPOCHS[0][0]:
        return ReadTimes(times)
    change = _unit_change(numbers, np.flatnonzero(known & (sizes >= _EPOCHS[0][0])))
    lowest = [low for low, *_ in _EPOCHS]
    for (low, unit, _), high in zip(_EPOCHS, (*lowest[1:], np.inf), strict=True):
        rows = known & (low <= largest < high) if change is None else known & (sizes >= low) & (sizes < high)
        values = numbers[rows].astype(np.int64) if exact is None else exact[rows]
        times[rows] = values.astype(f"datetime64[{unit}]")
    return ReadTimes(times, unit_change=change)


def _unit_change(numbers: NDArray[np.float64], rows: NDArray[np.int64]) -> UnitChange | None:
    """The first of `rows` whose unit differs from the row before: in their units, both times are close together."""
    values = numbers[rows]
    with np.errstate(all="ignore"):
        ratio = np.abs(values[1:] / values[:-1])
    borders = np.flatnonzero((ratio > _OTHER_UNIT) | (ratio < 1 / _OTHER_UNIT))
    for i in borders:
        (before, per_second), (after, per_second_after) = _unit(values[i]), _unit(values[i + 1])
        apart_s = abs(values[i + 1] / per_second_after - values[i] / per_second)
        if before != after and apart_s < _NEIGHBOURS_S:
            return UnitChange(int(rows[i + 1]), before, after)
    return None


def _unit(number: float) -> tuple[str, float]:
    """The unit of a Unix time, and units per second."""
    return next((unit, per_second) for low, unit, per_second in reversed(_EPOCHS) if abs(number) >= low)

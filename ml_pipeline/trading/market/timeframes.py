"""Build longer bars from shorter ones: which bars belong together, when a longer bar is known, and its prices.

`infer_calendar` finds the number of bars per year, which annualizes metrics.

T bars of one asset, in order. A longer bar is known at the close of the first of its bars that reaches its end or, if
that bar is missing, once a later bar begins. So a value from longer bars depends on no later bar.
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ml_pipeline.config.errors import UserError
from ml_pipeline.trading.market.times import BarTime, Times

Nanoseconds = NDArray[np.int64]

_SECOND = 10**9
DAY = 86_400 * _SECOND
_UNITS = {"s": _SECOND, "m": 60 * _SECOND, "h": 3_600 * _SECOND, "d": DAY, "w": 7 * DAY}
_MONDAY = 4  # 1970-01-05, in days


@dataclass(frozen=True)
class Clock:
    """When a day begins and its session is open.

    zone: name of a time zone, such as America/New_York; None: UTC. opens, open_for: start of the session in ns from
    midnight, and its length; a whole day from midnight if there is no session.
    """

    zone: str | None = None
    opens: int = 0
    open_for: int = DAY

    @property
    def has_session(self) -> bool:
        return self.open_for < DAY

    def days(self, times: Times) -> tuple[Nanoseconds, Nanoseconds, Nanoseconds]:
        """(days since 1970, ns since the opening, offset from UTC in ns) of each time, in local time."""
        utc = times.astype("datetime64[ns]").astype(np.int64)
        offset = self._offsets(times)
        wall = utc + offset - self.opens
        days = wall // DAY
        return days, wall - days * DAY, offset

    def _offsets(self, times: Times) -> Nanoseconds:
        if self.zone is None:
            return np.zeros(len(times), dtype=np.int64)
        utc = times.astype("datetime64[ns]")
        if len(utc) == 1:  # called once per bar for each length of longer bars
            return np.array([_offset_of(self.zone, int(utc.astype(np.int64)[0]))])
        return _offsets_of(self.zone, utc)


def _offsets_of(zone: str, utc: Times) -> Nanoseconds:
    """The offset of a zone from UTC at each time, in ns."""
    import polars as pl

    of_zone = pl.Series(utc).dt.replace_time_zone("UTC").dt.convert_time_zone(zone)
    wall = of_zone.dt.replace_time_zone(None).to_numpy().astype("datetime64[ns]")
    return (wall - utc).astype(np.int64)


@lru_cache(maxsize=8)
def _offset_of(zone: str, utc: int) -> int:
    return int(_offsets_of(zone, np.array([utc], dtype="datetime64[ns]"))[0])


def make_clock(session: str | None, timezone: str | None) -> Clock:
    """The clock of a session such as 09:30-16:00 in a time zone; 18:00-17:00 ends on the next day.

    Raises UserError if either is invalid.

    >>> make_clock("18:00-17:00", None).open_for // 3_600 // 10**9
    23
    """
    if timezone is not None:
        from zoneinfo import ZoneInfo

        try:
            ZoneInfo(timezone)
        except (ValueError, OSError, KeyError) as error:
            raise UserError(f'timezone must be a name like America/New_York or UTC, but got "{timezone}".') from error
    if session is None:
        return Clock(timezone)
    match = re.fullmatch(r"(\d\d?):(\d\d)-(\d\d?):(\d\d)", session)
    minutes = [60 * int(match[i]) + int(match[i + 1]) for i in (1, 3)] if match else [0, 0]
    if match is None or max(minutes) > 1440 or minutes[0] == minutes[1] or int(match[2]) > 59 or int(match[4]) > 59:
        raise UserError(f'session must be two different times of day like 09:30-16:00, but got "{session}".')
    return Clock(timezone, minutes[0] * _UNITS["m"], ((minutes[1] - minutes[0]) % 1440 or 1440) * _UNITS["m"])


def timeframe_ns(timeframe: str) -> int:
    """The length in ns of a bar such as 5m, 1h or 1d. Raises UserError if it does not divide a day.

    >>> timeframe_ns("15m") // 10**9
    900
    """
    match = re.fullmatch(r"([1-9]\d*)([smhdw])", timeframe)
    length = int(match[1]) * _UNITS[match[2]] if match else 0
    if not length or (length < DAY and DAY % length) or (length > DAY and length != _UNITS["w"]):
        raise UserError(
            f'timeframe must be a part of a day like 5m, 15m, 1h or 4h, or 1d or 1w, but got "{timeframe}".'
        )
    return length


def length_in_words(length: int) -> str:
    """The text of a bar length in ns, the inverse of `timeframe_ns`.

    >>> length_in_words(4 * 3_600 * 10**9), length_in_words(90 * 10**9)
    ('4h', '90s')
    """
    unit, size = next((unit, size) for unit, size in reversed(_UNITS.items()) if length % size == 0 or unit == "s")
    return f"{length / size:g}{unit}"


class Timing(NamedTuple):
    """Timing of a market's bars: their usual length in ns, whether times mark the open or the close, and the clock."""

    length: int
    stamped: BarTime
    clock: Clock = Clock()

    def opens(self, times: Times) -> Times:
        """When each bar opens."""
        return times if self.stamped == "open" else times - np.timedelta64(self.length, "ns")

    def closes(self, times: Times) -> Times:
        """When each bar closes, at the latest at the end of its session."""
        if self.stamped == "close":
            return times
        lengths = np.full(len(times), self.length, dtype=np.int64)
        if self.clock.has_session and self.length <= DAY:
            until_end = self.clock.open_for - self.clock.days(times)[1]
            lengths = np.where(until_end > 0, np.minimum(lengths, until_end), lengths)
        return times + lengths.astype("timedelta64[ns]")


class LongBars(NamedTuple):
    """The longer bar of each bar.

    group: int64 (T,), its index from 0. starts, ends: its start and end, UTC in ns. closes: bool (T,), whether the bar
    reaches the end of its longer bar.
    """

    group: Nanoseconds
    starts: Nanoseconds
    ends: Nanoseconds
    closes: NDArray[np.bool_]

    @property
    def first(self) -> Nanoseconds:
        """The first bar of each longer bar."""
        return np.flatnonzero(np.diff(self.group, prepend=-1))

    def latest_known(self) -> Nanoseconds:
        """The latest longer bar known at the close of each bar, (T,); -1 before the first."""
        return self.group - ~self.closes


def long_bars(times: Times, timing: Timing, length: int, *, causal: bool) -> LongBars:
    """The longer bars of `length` ns.

    causal: a bar after one that reached the end begins another longer bar, even within the same period (irregular
    bars). Otherwise all bars of a period form one longer bar.
    """
    places = long_places(times, timing, length)
    changes = (np.diff(places.key, axis=0) != 0).any(axis=1)
    if causal:
        changes = changes | places.closes[:-1]
    group = np.concatenate([[0], np.cumsum(changes)]) if len(times) else np.empty(0, dtype=np.int64)
    return LongBars(group, *places[1:])


class LongPlaces(NamedTuple):
    """The period of each bar. key: int64 (T, K), equal for bars of the same period; for the rest see `LongBars`."""

    key: Nanoseconds
    starts: Nanoseconds
    ends: Nanoseconds
    closes: NDArray[np.bool_]


def long_places(times: Times, timing: Timing, length: int) -> LongPlaces:
    """The period of `length` ns that holds each bar, independent of other bars."""
    opens = timing.opens(times)
    clock = timing.clock
    days, since, offset = clock.days(opens)
    day_start = days * DAY + clock.opens - offset
    if length < DAY:
        part = since // length
        starts = day_start + part * length
        ends = np.minimum(starts + length, day_start + clock.open_for) if clock.has_session else starts + length
        key = np.stack([days, part, offset], axis=1)
    elif length == DAY:
        starts, ends = day_start, day_start + clock.open_for
        key = days[:, None]
    else:
        week = (days - _MONDAY) // 7
        starts = (week * 7 + _MONDAY) * DAY + clock.opens - offset
        ends = starts + length
        key = week[:, None]
    closes = opens.astype("datetime64[ns]").astype(np.int64) + timing.length >= ends
    return LongPlaces(key, starts, ends, closes)


def together(fields: dict[str, NDArray[np.float64]], bars: LongBars) -> dict[str, NDArray[np.float64]]:
    """Fields of the longer bars: first open, highest high, lowest low, sum of volumes, and the last of other fields."""
    first = bars.first
    last = np.append(first[1:], len(bars.group)) - 1
    made = {name: values[last] for name, values in fields.items()}
    made["open"] = fields["open"][first]
    for name, reduction in (("high", np.maximum), ("low", np.minimum), ("volume", np.add)):
        made[name] = reduction.reduceat(fields[name], first)
    return made


_DAY_S = 86_400.0
_HOUR_S = 3_600.0
# Futures exchanges close for an hour a day and on holidays; forex does neither.
_ROUND_THE_CLOCK_S = 23 * _HOUR_S
_DAYS_WITH_SUNDAY = 6
_WEEK = 7
_WORKDAYS = 5
_DAYS = ("Mondays", "Tuesdays", "Wednesdays", "Thursdays", "Fridays", "Saturdays", "Sundays")
# Least share of the bars on a weekday for a market to count as open: 1/7 each round the clock; 0.02 on Sundays for
# hourly forex; 1/5 for an exchange open from Sunday to Thursday.
_OPEN = 0.075
# Bars longer than a day: (name, shortest and longest spacing in days, bars per year).
_LONG_BARS = (("weekly", 5, 9, 52), ("monthly", 25, 35, 12), ("quarterly", 80, 100, 4), ("yearly", 350, 380, 1))


class Calendar(NamedTuple):
    """When a market trades. periods_per_year: bars per year. reason: an explanation for reports."""

    name: str
    periods_per_year: float
    reason: str


def infer_calendar(times: NDArray[np.datetime64]) -> Calendar:
    """The calendar of bars at `times`, datetime64 (T,), increasing.

    The spacing is the median difference. A market with as many bars on weekends as on weekdays has 365 days a year; so
    has one with a Saturday bar if the data are shorter than a week. Round-the-clock weekday markets such as forex have
    260 days, without exchange holidays: hourly bars 260 x 24, daily bars with a Sunday evening bar 52 x 6. Other
    markets have 252 days with the bars of their median weekday: an exchange that is open for seven hours has 252 x 7
    hourly bars.
    Daily forex bars from Monday to Friday cannot be distinguished from stocks and count as such.

    >>> infer_calendar(np.arange("2024-01-01", "2024-03-01", dtype="datetime64[D]")).periods_per_year
    365.0
    """
    if len(times) < 3:
        return Calendar("weekdays", 252.0, "fewer than 3 bars, taken as daily: 252 a year")
    seconds = times.astype("datetime64[s]").astype(np.int64)
    spacing_s = float(np.median(np.diff(seconds)))
    days = (seconds // 86_400).astype(np.int32)
    del seconds
    weekday = ((days + 3) % 7).astype(np.int8)  # 1970-01-01 was a Thursday
    shares = np.bincount(weekday, minlength=7) / len(days)
    is_whole_week = bool(days[-1] - days[0] >= _WEEK - 1)
    n_open = int(np.sum(shares > _OPEN))
    # An exchange that is open from Saturday to Wednesday is not open round the clock.
    weekend = bool(min(shares[5:]) > _OPEN and n_open > _WORKDAYS) if is_whole_week else bool(shares[5] > 0)
    name = "24/7" if weekend else "weekdays"

    if spacing_s > 1.5 * _DAY_S:
        return _long_bars(name, spacing_s)
    if spacing_s >= 20 * _HOUR_S:
        if n_open == _DAYS_WITH_SUNDAY and not weekend:
            return Calendar(name, 312.0, "daily bars, Sundays included, as forex: 52 x 6 a year")
        per_year = 365.0 if weekend else 252.0
        where = "on weekends" if weekend else _on_days(shares)
        told = "" if is_whole_week else "; less than a week of bars"
        return Calendar(name, per_year, f"daily bars {where}: {per_year:g} a year{told}")
    weekdays = days[weekday < 5]
    per_day = float(np.median(np.unique(weekdays if weekdays.size else days, return_counts=True)[1]))
    calendar = _short_bars(name, spacing_s, per_day, _on_days(shares))
    if is_whole_week:
        return calendar
    if weekend:  # part of a day does not show how long trading lasts
        per_day = _DAY_S / spacing_s
        calendar = Calendar(
            name, 365.0 * per_day, f"{_duration(spacing_s)} bars, taken as round the clock: 365 x {per_day:g} a year"
        )
    return calendar._replace(reason=f"{calendar.reason}; less than a week of bars")


def _on_days(shares: NDArray[np.float64]) -> str:
    """The weekdays of a market that is closed on some, by the share of bars on each day from Monday on."""
    there = np.flatnonzero(shares > _OPEN)
    if {*there} <= {*range(_WORKDAYS)}:
        return "on weekdays"
    return f"on {', '.join(_DAYS[i] for i in there)}"


def _short_bars(name: str, spacing_s: float, per_day: float, where: str) -> Calendar:
    """The calendar of bars shorter than a day. per_day: bars on a weekday."""
    bar = _duration(spacing_s)
    if name == "24/7" and per_day * spacing_s <= _ROUND_THE_CLOCK_S:
        return Calendar(name, 365.0 * per_day, f"{bar} bars in a part of every day: 365 x {per_day:g} a year")
    if name == "24/7":
        per_day = _DAY_S / spacing_s
        return Calendar(name, 365.0 * per_day, f"{bar} bars round the clock: 365 x {per_day:g} a year")
    if per_day * spacing_s > _ROUND_THE_CLOCK_S:
        reason = f"{bar} bars round the clock on weekdays (24x5): 260 x {per_day:g} a year"
        return Calendar(name, 260.0 * per_day, reason)
    return Calendar(name, 252.0 * per_day, f"{bar} bars {where}: 252 x {per_day:g} a year")


def _long_bars(name: str, spacing_s: float) -> Calendar:
    spacing_days = spacing_s / _DAY_S
    for label, shortest, longest, bars in _LONG_BARS:
        if shortest <= spacing_days <= longest:
            return Calendar(name, float(bars), f"{label} bars: {bars} a year")
    per_year = 365.25 / spacing_days
    return Calendar(name, per_year, f"a bar every {spacing_days:g} days: {per_year:.4g} a year")


def _duration(seconds: float) -> str:
    if seconds % _HOUR_S == 0:
        hours = int(seconds // _HOUR_S)
        return "hourly" if hours == 1 else f"{hours}-hour"
    return f"{seconds / 60:g}-minute" if seconds >= 60 else f"{seconds:g}-second"

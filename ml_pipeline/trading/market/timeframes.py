"""Longer bars out of shorter ones: which bars belong together, when each longer bar is known, and its prices.

`infer_calendar` finds the number of bars per year, with which metrics are annualized.

T bars of one asset, in order. A longer bar is known at the close of the first of its bars that reaches its end or,
where bars are missing there, once a later bar begins. So a value made of longer bars depends on no later bar.
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
    """Where a day begins and when its session is open.

    zone: name of a time zone, such as America/New_York; None: UTC. opens, open_for: the session in ns, from midnight,
    and its length; a whole day from midnight where there is no session.
    """

    zone: str | None = None
    opens: int = 0
    open_for: int = DAY

    @property
    def has_session(self) -> bool:
        return self.open_for < DAY

    def days(self, times: Times) -> tuple[Nanoseconds, Nanoseconds, Nanoseconds]:
        """(days since 1970, ns since the opening, offset from UTC in ns) of each time, by the clock of the zone."""
        utc = times.astype("datetime64[ns]").astype(np.int64)
        offset = self._offsets(times)
        wall = utc + offset - self.opens
        days = wall // DAY
        return days, wall - days * DAY, offset

    def _offsets(self, times: Times) -> Nanoseconds:
        if self.zone is None:
            return np.zeros(len(times), dtype=np.int64)
        utc = times.astype("datetime64[ns]")
        if len(utc) == 1:  # bar by bar, for each length of longer bars
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
    """The clock of a session such as 09:30-16:00, in a time zone. One that ends before it begins ends the next day.

    Raises UserError if either cannot be understood.

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
    """The length of a bar in ns, of a text like 5m, 1h or 1d. Raises UserError if a day is no multiple of it.

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
    """A length of bars in ns, as a text like those of `timeframe_ns`.

    >>> length_in_words(4 * 3_600 * 10**9), length_in_words(90 * 10**9)
    ('4h', '90s')
    """
    unit, size = next((unit, size) for unit, size in reversed(_UNITS.items()) if length % size == 0 or unit == "s")
    return f"{length / size:g}{unit}"


class Timing(NamedTuple):
    """How the bars of a market stand in time: their usual length in ns, and whether times are when they open."""

    length: int
    stamped: BarTime
    clock: Clock = Clock()

    def opens(self, times: Times) -> Times:
        """When each bar opens."""
        return times if self.stamped == "open" else times - np.timedelta64(self.length, "ns")

    def closes(self, times: Times) -> Times:
        """When each bar closes: at the end of its session, where that comes first."""
        if self.stamped == "close":
            return times
        lengths = np.full(len(times), self.length, dtype=np.int64)
        if self.clock.has_session and self.length <= DAY:
            until_end = self.clock.open_for - self.clock.days(times)[1]
            lengths = np.where(until_end > 0, np.minimum(lengths, until_end), lengths)
        return times + lengths.astype("timedelta64[ns]")


class LongBars(NamedTuple):
    """group: int64 (T,), the longer bar of each bar, counted from 0. starts, ends: when each bar's longer bar does, in
    ns of UTC. closes: bool (T,), whether the bar reaches the end of its longer bar."""

    group: Nanoseconds
    starts: Nanoseconds
    ends: Nanoseconds
    closes: NDArray[np.bool_]

    @property
    def first(self) -> Nanoseconds:
        """The first bar of each longer bar."""
        return np.flatnonzero(np.diff(self.group, prepend=-1))

    def latest_known(self) -> Nanoseconds:
        """The latest longer bar that is known at the close of each bar, (T,); -1 before the first."""
        return self.group - ~self.closes


def long_bars(times: Times, timing: Timing, length: int, *, causal: bool) -> LongBars:
    """The longer bars, of `length` ns, that these bars make.

    causal: a bar after one that reached the end begins another longer bar, even if it lies in the same time, as bars
    between the usual times do. Otherwise all bars of the same time are one.
    """
    places = long_places(times, timing, length)
    changes = (np.diff(places.key, axis=0) != 0).any(axis=1)
    if causal:
        changes = changes | places.closes[:-1]
    group = np.concatenate([[0], np.cumsum(changes)]) if len(times) else np.empty(0, dtype=np.int64)
    return LongBars(group, *places[1:])


class LongPlaces(NamedTuple):
    """Where each bar lies among longer ones. key: int64 (T, K), equal for bars in the same time; the rest: see
    `LongBars`."""

    key: Nanoseconds
    starts: Nanoseconds
    ends: Nanoseconds
    closes: NDArray[np.bool_]


def long_places(times: Times, timing: Timing, length: int) -> LongPlaces:
    """Where each bar lies among longer bars of `length` ns; each by itself, whatever comes before or after it."""
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
    """The fields of the longer bars: first open, highest high, lowest low, sum of volumes, last of all others."""
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
# The least share of the bars on a day of the week that a market is open: 1/7 each round the clock; hourly forex shows
# 0.02 on Sundays, and an exchange open from Sunday to Thursday 1/5.
_OPEN = 0.075
# Bars longer than a day: (name, shortest and longest spacing in days, bars per year).
_LONG_BARS = (("weekly", 5, 9, 52), ("monthly", 25, 35, 12), ("quarterly", 80, 100, 4), ("yearly", 350, 380, 1))


class Calendar(NamedTuple):
    """When a market trades: `periods_per_year` is its number of bars, `reason` explains it in a phrase for reports."""

    name: str
    periods_per_year: float
    reason: str


def infer_calendar(times: NDArray[np.datetime64]) -> Calendar:
    """The calendar of bars at `times`, datetime64 (T,), increasing.

    The spacing is the median difference. A market with as many bars on Saturdays and Sundays as on other days is open
    round the clock, 365 days a year; a session of it has the bars of its median weekday. So is one with bars on a
    Saturday, as long as there is no whole week of bars to tell. One that is open round the
    clock on weekdays, as forex, has 260 days a year, since it keeps no holidays of an exchange: hourly, 260 x 24; daily
    bars that count Sunday evening as a day, 52 x 6. Any other has 252 days a year, each with the bars of its median
    weekday: a stock exchange that opens for seven hours has 252 x 7. Daily forex bars from Monday to Friday look like
    those of a stock, and are taken as such.

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
    if weekend:  # a part of one day does not tell how long a day is
        per_day = _DAY_S / spacing_s
        calendar = Calendar(
            name, 365.0 * per_day, f"{_duration(spacing_s)} bars, taken as round the clock: 365 x {per_day:g} a year"
        )
    return calendar._replace(reason=f"{calendar.reason}; less than a week of bars")


def _on_days(shares: NDArray[np.float64]) -> str:
    """Where the bars of a market are that is not open all week, by the share of each day from Monday on."""
    there = np.flatnonzero(shares > _OPEN)
    if {*there} <= {*range(_WORKDAYS)}:
        return "on weekdays"
    return f"on {', '.join(_DAYS[i] for i in there)}"


def _short_bars(name: str, spacing_s: float, per_day: float, where: str) -> Calendar:
    """Bars shorter than a day, of which a weekday has `per_day`."""
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

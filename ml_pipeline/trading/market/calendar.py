"""Infers the number of bars per year of a market from its bars; metrics are annualized with it."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

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

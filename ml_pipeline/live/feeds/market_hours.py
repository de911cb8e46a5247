"""When bars are due: which times come next, and whether bars that do not come should have.

A calendar of an exchange knows holidays and half days. Without one, the session and the weekdays tell; then only hours
of a session that has begun count as open, so that no holiday looks like a loss of data.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ml_pipeline.live.brokers.broker import TradingSession
from ml_pipeline.trading.market.calendar import Calendar
from ml_pipeline.trading.market.timeframes import DAY, Clock, Timing

# So many days of trading a year are round the clock on weekdays, as forex is, and not those of an exchange.
_ROUND_THE_CLOCK_DAYS = 200
# A calendar is asked for so many days at a time, and holidays last no longer.
_DAYS_AHEAD = 14
# Forex closes on Friday evening, at an hour that differs by broker and season.
_FRIDAY_ENDS_NS = 20 * 3_600 * 10**9
_FRIDAY, _SATURDAY = 4, 5


Sessions = Callable[[np.datetime64, np.datetime64], list[TradingSession]]
"""The sessions that lie between two times, in order."""


class MarketHours:
    """The hours of a market whose bars stand as `timing` says.

    sessions: of the exchange's calendar; None: by the clock and the calendar that was inferred from the bars.
    """

    def __init__(self, timing: Timing, calendar: Calendar, sessions: Sessions | None = None) -> None:
        self._timing = timing
        self._always = calendar.name == "24/7" and not timing.clock.has_session
        in_a_year = calendar.periods_per_year * timing.length / DAY
        self._weekdays = not self._always and not timing.clock.has_session and in_a_year > _ROUND_THE_CLOCK_DAYS
        self._sessions = sessions
        self._on_weekends = calendar.name == "24/7"

    def times_after(self, time: np.datetime64, n: int) -> NDArray[np.datetime64]:
        """The times of the next `n` bars after this one."""
        length = np.timedelta64(self._timing.length, "ns")
        if self._always or (self._sessions is None and not self._timing.clock.has_session):
            found: list[np.datetime64] = []
            while len(found) < n:
                time = time + length
                if self._on_weekends or self._timing.length > DAY or _weekday(time) < _SATURDAY:
                    found.append(time)
            return np.array(found, dtype="datetime64[ns]")
        times = self._daily_after(time, n) if self._timing.length >= DAY else self._within_sessions_after(time, n)
        return np.array(times, dtype="datetime64[ns]")

    def open_between(self, last_closed: np.datetime64, now: np.datetime64) -> np.timedelta64:
        """How long the market has been open, for certain, since the last bars closed."""
        nothing = np.timedelta64(0, "ns")
        if now <= last_closed or (self._timing.length >= DAY and not self._always):
            return nothing
        if self._always:
            return now - last_closed
        if self._weekdays and self._sessions is None:
            sessions = _weeks(last_closed, now)
        elif self._sessions is not None or self._timing.clock.has_session:
            sessions = self._between(last_closed - _days(1), now)
        else:
            return nothing
        if self._sessions is None and not self._weekdays:  # another day may be a holiday
            sessions = [each for each in sessions if each.opens < last_closed]
        overlaps = [min(now, each.closes) - max(last_closed, each.opens) for each in sessions]
        return sum((each for each in overlaps if each > nothing), start=nothing)

    def _between(self, first: np.datetime64, last: np.datetime64) -> list[TradingSession]:
        if self._sessions is not None:
            return self._sessions(first, last)
        return sessions_of_clock(self._timing.clock, first, last, weekends=self._on_weekends)

    def _within_sessions_after(self, time: np.datetime64, n: int) -> list[np.datetime64]:
        length = np.timedelta64(self._timing.length, "ns")
        at_close = self._timing.stamped == "close"
        found: list[np.datetime64] = []
        first = time - _days(2)
        while len(found) < n:
            sessions = self._between(first, first + _days(_DAYS_AHEAD))
            if not sessions:
                break
            for each in sessions:
                opens = np.arange(each.opens, each.closes, length, dtype="datetime64[ns]")
                stamps = np.minimum(opens + length, each.closes) if at_close else opens
                found += [t for t in stamps if t > time and (not found or t > found[-1])]
            first = sessions[-1].closes
        return found[:n]

    def _daily_after(self, time: np.datetime64, n: int) -> list[np.datetime64]:
        step = np.timedelta64(self._timing.length, "ns")
        found: list[np.datetime64] = []
        days = None
        if self._timing.length == DAY and self._sessions is not None:
            sessions = self._between(time - _days(2), time + _days(_DAYS_AHEAD + 2 * n))
            days = {each.closes.astype("datetime64[D]") for each in sessions}
        while len(found) < n:
            time = time + step
            day = time.astype("datetime64[D]")
            if days is not None and day > max(days, default=day - 1):
                break
            if self._timing.length > DAY or (day in days if days is not None else _weekday(time) < _SATURDAY):
                found.append(time)
        return found


def sessions_of_clock(
    clock: Clock, first: np.datetime64, last: np.datetime64, *, weekends: bool
) -> list[TradingSession]:
    """By the session's times of day, each day, or on weekdays."""
    day = np.timedelta64(1, "D")
    days = np.arange(first.astype("datetime64[D]") - day, last.astype("datetime64[D]") + 2 * day, dtype="datetime64[D]")
    middays = (days.astype("datetime64[h]") + np.timedelta64(12, "h")).astype("datetime64[ns]")
    number, since, _ = clock.days(middays)
    ending = number + (clock.opens + clock.open_for > DAY)  # Monday's session may begin on Sunday evening
    opens = middays - since.astype("timedelta64[ns]")
    sessions = []
    for ends_on, opening in zip(ending, opens, strict=True):
        closing = opening + np.timedelta64(clock.open_for, "ns")
        if (weekends or (ends_on + 3) % 7 < _SATURDAY) and closing > first and opening < last:
            sessions.append(TradingSession(opening, closing))
    return sessions


def _weeks(first: np.datetime64, last: np.datetime64) -> list[TradingSession]:
    """From Monday to Friday evening, when every forex market is open."""
    day = first.astype("datetime64[D]")
    monday = day - np.timedelta64(_weekday(first), "D")
    weeks = []
    while monday <= last:
        opens = monday.astype("datetime64[ns]")
        weeks.append(TradingSession(opens, opens + _days(_FRIDAY) + np.timedelta64(_FRIDAY_ENDS_NS, "ns")))
        monday = monday + np.timedelta64(7, "D")
    return weeks


def _weekday(time: np.datetime64) -> int:
    """0 on Mondays."""
    return int((time.astype("datetime64[D]").astype(np.int64) + 3) % 7)


def _days(n: int) -> np.timedelta64:
    return np.timedelta64(n * DAY, "ns")

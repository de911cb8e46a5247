"""Market hours: which bars come next, whether missing bars were due, and when a market session ends.

An exchange's calendar has holidays and half days. Without one, session and weekdays are used, and only hours of a
session that has begun count as open, so that a holiday does not look like missing data.
"""

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from ml_pipeline.live.brokers.broker import Broker, TradingSession
from ml_pipeline.trading.market.timeframes import DAY, Calendar, Clock, Timing

# With more than this many days of bars a year, a market is open around the clock on weekdays, like forex.
_ROUND_THE_CLOCK_DAYS = 200

# Days to request from a calendar at a time; no holiday is longer.
_DAYS_AHEAD = 14

# Forex closes on Friday evening, at an hour that differs by broker and season.
_FRIDAY_ENDS_NS = 20 * 3_600 * 10**9

_FRIDAY, _SATURDAY = 4, 5


Sessions = Callable[[np.datetime64, np.datetime64], list[TradingSession]]

"""The market sessions between two times, in order."""


TimesAfter = Callable[[np.datetime64, int], NDArray[np.datetime64]]

"""The times of the next n bars after a time; fewer at the end of recorded bars."""


class MarketHours:
    """The hours of a market with bars as in `timing`.

    sessions: of the exchange's calendar; None: use the clock and the calendar inferred from the bars.
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
        """How long the market has certainly been open since the last bars closed."""
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
    """Sessions at the clock's times of day, on weekdays or every day."""
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


class BarCalendar:
    """Days and sessions of a market, from the times of its next bars, as in `PreparedMarket`."""

    def __init__(self, times_after: TimesAfter, timing: Timing) -> None:
        self._times_after, self._timing = times_after, timing

    def interest_days(self, time: np.datetime64) -> float:
        """Calendar days, by the market's clock, from the bar of this time to the next one; 0 after the last bar."""
        days = self._days(time, 1)
        return float(days[1] - days[0]) if len(days) > 1 else 0.0

    def last_fill_of_session(self, time: np.datetime64, *, at_close: bool) -> bool:
        """Whether orders of this bar are the last to be filled in its market session.

        at_close: orders are filled at the close of their decision; otherwise at the next open.
        """
        days = self._days(time, 1 if at_close else 2)
        filled, after = (0, 1) if at_close else (1, 2)
        if filled >= len(days):
            return False
        return after >= len(days) or bool(days[after] != days[filled])

    def _days(self, time: np.datetime64, n: int) -> NDArray[np.int64]:
        times = np.concatenate([np.array([time], dtype="datetime64[ns]"), self._times_after(time, n)[:n]])
        return self._timing.clock.days(self._timing.opens(times))[0]


def session_near(sessions: Iterable[TradingSession], time: np.datetime64) -> TradingSession | None:
    """The session that contains `time`, its close included, or the nearest one; None if there is none.

    >>> day = TradingSession(np.datetime64("2026-11-27T14:30"), np.datetime64("2026-11-27T18:00"))
    >>> session_near([day], np.datetime64("2026-11-27T20:00")) == day
    True
    """

    def distance(session: TradingSession) -> np.timedelta64:
        return max(session.opens - time, time - session.closes, np.timedelta64(0, "ns"))

    return min(sessions, key=distance, default=None)


class SessionTimes:
    """`session_near` among the broker's sessions, which are requested for a week at a time."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._known: tuple[np.datetime64, np.datetime64] | None = None
        self._sessions: list[TradingSession] = []

    def __call__(self, time: np.datetime64) -> TradingSession | None:
        """The session of a time; None if the market never closes. Raises BrokerUnavailable."""
        day = time.astype("datetime64[D]")
        if self._known is None or not self._known[0] < day < self._known[1]:
            first, last = day - np.timedelta64(7, "D"), day + np.timedelta64(7, "D")
            self._sessions = self._broker.sessions(first, last)
            self._known = first, last
        return session_near(self._sessions, time)


def _weeks(first: np.datetime64, last: np.datetime64) -> list[TradingSession]:
    """The weeks from Monday to Friday evening, when every forex market is open."""
    day = first.astype("datetime64[D]")
    monday = day - np.timedelta64(_weekday(first), "D")
    weeks = []
    while monday <= last:
        opens = monday.astype("datetime64[ns]")
        weeks.append(TradingSession(opens, opens + _days(_FRIDAY) + np.timedelta64(_FRIDAY_ENDS_NS, "ns")))
        monday = monday + np.timedelta64(7, "D")
    return weeks


def _weekday(time: np.datetime64) -> int:
    """The weekday, 0 for Monday."""
    return int((time.astype("datetime64[D]").astype(np.int64) + 3) % 7)


def _days(n: int) -> np.timedelta64:
    return np.timedelta64(n * DAY, "ns")

"""The interface of a feed, a source of bars: a recorded file, a growing file, or the stream of a broker.

Times are as in the data: `timing` defines whether they are opens or closes. Clocks are UTC.
"""

import time
from collections.abc import Sequence
from enum import Enum
from typing import Final, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ml_pipeline.trading.market.bar_set import BarSet
from ml_pipeline.trading.market.timeframes import Calendar, Timing, length_in_words


class BarsUnavailable(Exception):
    """The source of bars cannot be reached, or did not answer in time."""


class Gap(NamedTuple):
    """Expected bars that could not be obtained, from the time `first` to `last`. why: a sentence."""

    first: np.datetime64
    last: np.datetime64
    symbols: tuple[str, ...]
    why: str


class Correction(NamedTuple):
    """New values of bars that were delivered before. symbols: whose bars have changed.

    late: True if a bar arrived that was missing before, False if prices have changed.
    """

    bars: BarSet
    symbols: tuple[str, ...] = ()
    late: bool = False


class CorporateAction(NamedTuple):
    """A split, dividend, change of symbol or the like, from the time `begins` on.

    kind: "unknown" if its source cannot say. factor: of prices, such as 0.5 for a split of 2 for 1; otherwise 1. what:
    a sentence.
    """

    action_id: str
    symbol: str
    kind: str
    begins: np.datetime64
    factor: float
    what: str


class End(Enum):
    END = "the end of the bars"


END: Final = End.END
"""No more bars will arrive."""

FeedEvent = BarSet | Gap | Correction | CorporateAction | Literal[End.END]


class Feed(Protocol):
    """Bars of `symbols`, one set at a time, in order of time, each after it has closed."""

    symbols: tuple[str, ...]
    timing: Timing
    calendar: Calendar
    notices: tuple[str, ...]
    """Sentences to print at the start: the source of the bars, changes to them, and the meaning of their times."""

    def history(self, before: np.datetime64 | None = None) -> Sequence[BarSet]:
        """The closed bars before this time, oldest first, to warm features up; None: before the first of `next`.

        A feed without an end returns the latest, as many as configured. Raises BarsUnavailable.
        """

    def start(self, after: np.datetime64 | None = None) -> None:
        """Start, after this time if it is given: missed bars come first, marked as `late`."""

    def next(self, timeout_s: float | None = None) -> FeedEvent | None:
        """The next bars, a Gap, a Correction or a CorporateAction; None if nothing arrived within `timeout_s`, END
        after the last bars.

        It never raises for errors of a connection or file: it retries, and returns a Gap.
        """

    def times_after(self, time: np.datetime64, n: int) -> NDArray[np.datetime64]:
        """The times of the next `n` bars after this time by the calendar; fewer at the end of recorded bars.

        A feed reveals nothing else about the future. They show whether a bar is the last of its market session, and the
        days to the next one.
        """

    def now(self) -> np.datetime64:
        """The time by the feed's clock, which in a replay follows the bars.

        A session in real time compares it with the broker's, unless the feed has `has_clock = False`, because
        it follows the bars.
        """

    def close(self) -> None:
        """Close connections and files, and end threads; may be called twice."""


def stamp_sentence(time: np.datetime64, timing: Timing) -> str:
    """The meaning of bar times, to print, with a bar of the data as an example: a wrong guess would trade too early.

    >>> stamp_sentence(np.datetime64("2024-03-01T14:30", "ns"), Timing(60 * 10**9, "open"))
    'times are UTC and when bars open: the 1m bar of 2024-03-01 14:30 closes at 14:31'
    >>> stamp_sentence(np.datetime64("2024-03-01T14:30", "ns"), Timing(60 * 10**9, "close"))
    'times are UTC and when bars close: the 1m bar of 2024-03-01 14:30 opens at 14:29'
    """
    stamps = np.array([time], dtype="datetime64[ns]")
    other, verb = (timing.closes(stamps), "closes") if timing.stamped == "open" else (timing.opens(stamps), "opens")
    this_day, other_day = (str(t[0].astype("datetime64[m]")).replace("T", " ") for t in (stamps, other))
    at = other_day.removeprefix(this_day[:11]) if timing.length < 86_400 * 10**9 else other_day
    length = length_in_words(timing.length)
    return f"times are UTC and when bars {timing.stamped}: the {length} bar of {this_day} {verb} at {at}"


def utc_now() -> np.datetime64:
    """The time by this machine's clock."""
    return np.datetime64(time.time_ns(), "ns")

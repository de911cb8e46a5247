"""What the trading loop needs of a source of bars: a recorded file, a file that grows, or the stream of a broker.

Times are as in the data, by `timing`: when bars open or when they close. Clocks are UTC.
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
    """The source of bars cannot be reached now, or does not answer in time."""


class Gap(NamedTuple):
    """Bars that should be there and could not be had, from the time `first` to `last`. why: in a sentence."""

    first: np.datetime64
    last: np.datetime64
    symbols: tuple[str, ...]
    why: str


class Correction(NamedTuple):
    """The bars of a time that was given out before, as they are known now. symbols: whose bars have changed.

    late: a bar came that was missing when the others were given out; otherwise one has other prices than it had.
    """

    bars: BarSet
    symbols: tuple[str, ...] = ()
    late: bool = False


class End(Enum):
    END = "the end of the bars"


END: Final = End.END
"""There will be no more bars."""

FeedEvent = BarSet | Gap | Correction | Literal[End.END]


class Feed(Protocol):
    """Bars of `symbols`, one set at a time, in order of time, each once it has closed."""

    symbols: tuple[str, ...]
    timing: Timing
    calendar: Calendar
    notices: tuple[str, ...]
    """Sentences to print at the start: where the bars come from, what was changed, and what their times mean."""

    def history(self, before: np.datetime64 | None = None) -> Sequence[BarSet]:
        """The closed bars before this time, oldest first, to warm features up; None: before the first of `next`.

        A feed that goes on for ever gives the latest, as many as are configured. Raises BarsUnavailable.
        """

    def start(self, after: np.datetime64 | None = None) -> None:
        """Begin with the first bars after this time, if it is given: those that were missed come first, as `late`."""

    def next(self, timeout_s: float | None = None) -> FeedEvent | None:
        """The next bars, or what happened to them; None if nothing came within `timeout_s`, END after the last bars.

        It never raises for what a connection or a file does: it tries again, and tells a Gap.
        """

    def times_after(self, time: np.datetime64, n: int) -> NDArray[np.datetime64]:
        """The times of the next `n` bars after this time by the calendar; fewer at the end of recorded bars.

        This is all that a feed knows of the future: whether a bar is the last of its session, and the days to the next.
        """

    def now(self) -> np.datetime64:
        """The time by the feed's clock: that of the bars in a replay."""

    def close(self) -> None:
        """Let go of connections, files and threads; again, it does nothing."""


def stamp_sentence(time: np.datetime64, timing: Timing) -> str:
    """What the time of a bar means, to print, with a bar of the data as the example: a wrong guess trades too early.

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

"""What may be known ahead of the market: when its next bars will be, and so days of interest and ends of sessions."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ml_pipeline.trading.market.timeframes import Timing

TimesAfter = Callable[[np.datetime64, int], NDArray[np.datetime64]]
"""The times of the next bars after a time, as many as are asked for; fewer at the end of recorded bars."""


class BarCalendar:
    """Days and sessions of a market whose next bars are known by their times, as `PreparedMarket` has them."""

    def __init__(self, times_after: TimesAfter, timing: Timing) -> None:
        self._times_after, self._timing = times_after, timing

    def interest_days(self, time: np.datetime64) -> float:
        """Calendar days, by the market's clock, from the bar of this time to the next one; 0 after the last bar."""
        days = self._days(time, 1)
        return float(days[1] - days[0]) if len(days) > 1 else 0.0

    def last_fill_of_session(self, time: np.datetime64, *, at_close: bool) -> bool:
        """Whether what is decided at the close of this bar is the last to be filled in its session.

        at_close: orders are filled at the close that they are decided on; otherwise at the next open.
        """
        days = self._days(time, 1 if at_close else 2)
        filled, after = (0, 1) if at_close else (1, 2)
        if filled >= len(days):
            return False
        return after >= len(days) or bool(days[after] != days[filled])

    def _days(self, time: np.datetime64, n: int) -> NDArray[np.int64]:
        times = np.concatenate([np.array([time], dtype="datetime64[ns]"), self._times_after(time, n)[:n]])
        return self._timing.clock.days(self._timing.opens(times))[0]

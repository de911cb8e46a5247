"""When a retraining is due: by the times of bars, so that a replay at any speed retrains on the same bars."""

import numpy as np
from numpy.typing import NDArray

from ml_pipeline.live.retraining.retrain_config import Interval

Times = NDArray[np.datetime64]


def due_bar(times: Times, since: np.datetime64, interval: Interval) -> int | None:
    """The index of the bar at which the latest retraining after `since` is due; None where none is due yet.

    times: datetime64 (T,) of the bars so far, in order. Where several are due, as after a stop of weeks, the latest
    takes their place: it has all bars that they would have had.

    >>> days = np.arange("2024-01-01", "2024-01-11", dtype="datetime64[D]")
    >>> due_bar(days, days[0], Interval(np.timedelta64(4, "D"), None))
    8
    >>> due_bar(days, days[0], Interval(None, 6))
    6
    >>> due_bar(days, days[8], Interval(None, 6))
    """
    after = int(np.searchsorted(times, since, side="right"))  # of the first bar that came since
    if interval.bars is not None:
        n_times = (len(times) - after) // interval.bars
        return after + n_times * interval.bars - 1 if n_times else None
    assert interval.span is not None
    if after == len(times):
        return None
    n_times = int((times[-1] - since) / interval.span)
    return int(np.searchsorted(times, since + n_times * interval.span)) if n_times else None

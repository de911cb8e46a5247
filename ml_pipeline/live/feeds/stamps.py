"""What the time of a bar means, as a sentence to print: a wrong guess trades on bars that have not closed."""

import numpy as np

from ml_pipeline.trading.market.timeframes import Timing, length_in_words


def stamp_sentence(time: np.datetime64, timing: Timing) -> str:
    """With a bar of the data as the example.

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

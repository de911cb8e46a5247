"""Times as Alpaca writes them."""

from datetime import UTC, datetime

import numpy as np


def time_of(text: str) -> np.datetime64:
    """A time that Alpaca writes, to the nanosecond where it is in UTC.

    >>> time_of("2024-03-01T14:30:00.123456789Z"), time_of("2024-03-01T09:30:00-05:00")
    (np.datetime64('2024-03-01T14:30:00.123456789'), np.datetime64('2024-03-01T14:30:00.000000000'))
    """
    if text.endswith("Z"):
        return np.datetime64(text[:-1], "ns")
    moment = datetime.fromisoformat(text)
    return np.datetime64(moment.astimezone(UTC).replace(tzinfo=None), "ns")

"""Times as Alpaca writes them."""

import numpy as np

from ml_pipeline.live.alpaca.client import time_of


def test_times_are_utc_whatever_they_were_written_in():
    expected = np.datetime64("2024-03-01T14:30", "ns")
    assert time_of("2024-03-01T14:30:00Z") == time_of("2024-03-01T09:30:00-05:00") == expected

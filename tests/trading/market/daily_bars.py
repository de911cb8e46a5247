"""Files of daily bars whose prices wander by 1 % a day."""

import numpy as np

N = 300
CLOSES = 100 * np.exp(np.random.default_rng(0).normal(0, 0.01, N).cumsum())
OPENS = np.r_[100.0, CLOSES[:-1]] * 1.001


def write_bars(path, opens=OPENS, closes=CLOSES, *, high=None, low=None):
    """A file of daily bars whose range holds open and close, unless given."""
    high = np.maximum(opens, closes) * 1.002 if high is None else high
    low = np.minimum(opens, closes) * 0.998 if low is None else low
    days = np.datetime64("2023-01-02") + np.arange(len(closes))
    rows = zip(days, opens, high, low, closes, strict=True)
    lines = [f"{day},{o},{h},{low_},{c},1000" for day, o, h, low_, c in rows]
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(["time,open,high,low,close,volume", *lines]))
    return path

"""An exponential moving average of a curve, as TensorBoard's slider: without a bias towards 0 at the beginning."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

# Within a block weights fall to this at most, far above where float64 would lose the newest values.
_LEAST_WEIGHT = 1e-9


class Smoothed(NamedTuple):
    """values: (n,). sum and weight: what goes on from here, `(sum * w + (1 - w) * y) / (weight * w + 1 - w)` next."""

    values: NDArray[np.float64]
    sum: float
    weight: float


def smooth(y: NDArray[np.float64], w: float) -> Smoothed:
    """The average of the values (n,) so far, in which each weighs `w` times as much as the next; 0 <= w < 1.

    >>> smooth(np.array([1.0, 3.0]), 0.5).values.round(4).tolist()
    [1.0, 2.3333]
    """
    n = len(y)
    if w <= 0:
        return Smoothed(y, float(y[-1]) if n else 0.0, 1.0 if n else 0.0)
    size = max(int(np.log(_LEAST_WEIGHT) / np.log(w)), 1)
    falling = w ** np.arange(1, size + 1)
    sums = np.empty(n)
    total = 0.0
    for first in range(0, n, size):
        part = y[first : first + size]
        powers = falling[: len(part)]
        sums[first : first + size] = powers * (total + (1 - w) * np.cumsum(part / powers))
        total = float(sums[first + len(part) - 1])
    weights = -np.expm1(np.arange(1, n + 1) * np.log(w))
    return Smoothed(sums / weights, total, float(weights[-1]) if n else 0.0)

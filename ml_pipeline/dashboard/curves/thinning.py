"""Curves with as many points as a screen shows: of each bin along x the smallest and the largest value.

A point that is left out is never missed: a column of pixels shows the range of its values.
Legend: n points, sorted by x.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def thinned(x: Floats, y: Floats, *, low: float, high: float, n_bins: int) -> NDArray[np.intp]:
    """Which of the points (n,) are drawn between x = low and high, in n_bins columns; ascending indices.

    x is sorted; NaN is in neither. Few points are all drawn, with the nearest on either side, so that the curve runs
    to the edge. Of many, each bin keeps the first of its smallest and the first of its largest values.
    """
    first = max(int(np.searchsorted(x, low, "left")) - 1, 0)
    end = min(int(np.searchsorted(x, high, "right")) + 1, len(x))
    if end - first <= 2 * n_bins or not high > low:
        return np.arange(first, end)
    x, y = x[first:end], y[first:end]
    bins = bins_of(x, low=low, high=high, n_bins=n_bins)
    starts = np.flatnonzero(np.diff(bins, prepend=-1))
    sizes = np.diff(starts, append=len(x))
    chosen = [np.array([0, len(x) - 1])]
    for extreme in (np.minimum.reduceat(y, starts), np.maximum.reduceat(y, starts)):
        reached = np.flatnonzero(y == np.repeat(extreme, sizes))
        _, which = np.unique(bins[reached], return_index=True)
        chosen.append(reached[which])
    return np.unique(np.concatenate(chosen)) + first


def bins_of(x: Floats, *, low: float, high: float, n_bins: int) -> NDArray[np.int64]:
    """The bin (n,) of each point among n_bins equally wide ones from low to high; what lies outside is in the outer."""
    return np.clip((x - low) * (n_bins / (high - low)), 0, n_bins - 1).astype(np.int64)


def sums_per_bin(
    x: Floats, columns: Mapping[str, Floats], *, low: float, high: float, n_bins: int
) -> tuple[Floats, dict[str, Floats]]:
    """(the last x of each bin that holds points, and the sum of each column there); NaN counts as nothing."""
    inside = (x >= low) & (x <= high)
    x = x[inside]
    if not len(x):
        return x, dict.fromkeys(columns, x)
    if len(x) <= n_bins or not high > low:
        starts = np.arange(len(x))
    else:
        starts = np.flatnonzero(np.diff(bins_of(x, low=low, high=high, n_bins=n_bins), prepend=-1))
    last = np.append(starts[1:], len(x)) - 1
    return x[last], {name: np.add.reduceat(np.nan_to_num(column[inside]), starts) for name, column in columns.items()}

"""Chart data of a run's metrics: downsampled curves, time per stage, and new rows."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from ml_pipeline.config.errors import UserError
from ml_pipeline.dashboard.curves.metrics_columns import STAGES, Floats, MetricsColumns
from ml_pipeline.monitoring.sinks import STEP

Axis = Literal["step", "time"]

_MOST_NEW_ROWS = 1000
"""With more new rows than this, the page requests downsampled curves instead."""


def check_axis(name: str) -> Axis:
    for axis in get_args(Axis):
        if axis == name:
            return axis
    raise UserError(f'axis must be one of {", ".join(get_args(Axis))}, but got "{name}".')


def x_of(columns: MetricsColumns, axis: Axis) -> Floats:
    """Environment steps, or seconds of training and evaluation, per row (n_rows,); NaN if unknown."""
    return columns.column(STEP) if axis == "step" else columns.elapsed


def curve(
    columns: MetricsColumns,
    metric: str,
    *,
    x: Floats,
    low: float | None = None,
    high: float | None = None,
    n_bins: int = 1000,
    smoothing: float = 0.0,
) -> dict[str, Any]:
    """A metric over x (n_rows,) between low and high, downsampled: {"x", "y", "n_points"} and, smoothed, "smooth".

    "smooth" has the "x" and "y" of the moving average, and its state "sum" and "weight" for further rows.
    """
    y = columns.column(metric)
    known = np.isfinite(x) & np.isfinite(y)
    x, y = x[known], y[known]
    if np.any(np.diff(x) < 0):
        order = np.argsort(x, kind="stable")
        x, y = x[order], y[order]
    if not len(x):
        return {"x": [], "y": [], "n_points": 0}
    left, right = float(x[0]) if low is None else low, float(x[-1]) if high is None else high
    drawn = thinned(x, y, low=left, high=right, n_bins=n_bins)
    found: dict[str, Any] = {"x": x[drawn].tolist(), "y": y[drawn].tolist(), "n_points": len(x)}
    if smoothing:
        averages = smooth(y, smoothing)
        drawn = thinned(x, averages.values, low=left, high=right, n_bins=n_bins)
        found["smooth"] = {
            "x": x[drawn].tolist(),
            "y": averages.values[drawn].tolist(),
            "sum": averages.sum,
            "weight": averages.weight,
        }
    return found


def time_spent(
    columns: MetricsColumns, *, x: Floats, low: float | None = None, high: float | None = None, n_bins: int = 200
) -> dict[str, Any]:
    """Seconds in each stage, per bin of x (n_rows,) as {"x", "stages"}, and of the whole run as {"total"}."""
    stages = {stage: columns.column(stage) for stage in STAGES if stage in columns.names}
    known = np.isfinite(x)
    total = {stage: float(np.nansum(values)) for stage, values in stages.items()}
    if not known.any() or not stages:
        return {"x": [], "stages": {stage: [] for stage in stages}, "total": total}
    bounds = float(np.nanmin(x)) if low is None else low, float(np.nanmax(x)) if high is None else high
    at, sums = sums_per_bin(
        x[known], {name: values[known] for name, values in stages.items()}, low=bounds[0], high=bounds[1], n_bins=n_bins
    )
    return {"x": at.tolist(), "stages": {name: values.tolist() for name, values in sums.items()}, "total": total}


def new_rows(columns: MetricsColumns, metrics: Sequence[str], *, since: int) -> dict[str, Any] | None:
    """The rows from number `since` on: {"from", "to", "step", "time", "metrics"}; None if there are too many."""
    if columns.n_rows - since > _MOST_NEW_ROWS:
        return None
    new = slice(since, columns.n_rows)
    return {
        "from": since,
        "to": columns.n_rows,
        "step": plain_numbers(x_of(columns, "step")[new]),
        "time": plain_numbers(x_of(columns, "time")[new]),
        "metrics": {name: plain_numbers(columns.column(name)[new]) for name in metrics},
    }


def plain_numbers(values: Floats) -> list[float | None]:
    """The values for JSON, with None for NaN and infinity."""
    return [value if math.isfinite(value) else None for value in values.tolist()]


# Smallest weight within a block: far larger than float64's precision, so the newest values are not lost.
_LEAST_WEIGHT = 1e-9


class Smoothed(NamedTuple):
    """values: (n,). sum, weight: state; the next value is `(sum * w + (1 - w) * y) / (weight * w + 1 - w)`."""

    values: NDArray[np.float64]
    sum: float
    weight: float


def smooth(y: NDArray[np.float64], w: float) -> Smoothed:
    """Debiased exponential moving average of the values (n,): each weighs `w` times as much as the next; 0 <= w < 1.

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


def thinned(x: Floats, y: Floats, *, low: float, high: float, n_bins: int) -> NDArray[np.intp]:
    """Indices of the points (n,) to draw between x = low and high, in n_bins columns of pixels; ascending.

    x is sorted, and neither x nor y has NaN. Few points are all drawn, with the nearest point on either side, so that
    the curve reaches the edge. Of many points, each bin keeps its first smallest and its first largest value, which is
    the range that a column of pixels shows.
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
    """The bin (n,) of each point among n_bins equal bins from low to high; points outside are in the outermost bins."""
    return np.clip((x - low) * (n_bins / (high - low)), 0, n_bins - 1).astype(np.int64)


def sums_per_bin(
    x: Floats, columns: Mapping[str, Floats], *, low: float, high: float, n_bins: int
) -> tuple[Floats, dict[str, Floats]]:
    """(the last x of each bin with points, the sum of each column in that bin); NaN counts as 0."""
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

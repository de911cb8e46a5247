"""What the page draws of a run's metrics: thinned curves, shares of time, and the rows that came since."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from ml_pipeline.config.errors import UserError
from ml_pipeline.dashboard.curves.metrics_columns import MetricsColumns
from ml_pipeline.dashboard.curves.smoothing import smooth
from ml_pipeline.dashboard.curves.thinning import sums_per_bin, thinned
from ml_pipeline.monitoring.metrics_file import STEP

Axis = Literal["step", "time"]
Floats = NDArray[np.float64]

STAGES = tuple(f"time/{name}_s" for name in ("acting", "stepping", "waiting", "exchanging", "learning", "evaluating"))
_MOST_NEW_ROWS = 1000
"""Of more new rows than this, thinned curves are asked for anew."""


def check_axis(name: str) -> Axis:
    for axis in get_args(Axis):
        if axis == name:
            return axis
    raise UserError(f'axis must be one of {", ".join(get_args(Axis))}, but got "{name}".')


def x_of(columns: MetricsColumns, axis: Axis) -> Floats:
    """Environment steps, or seconds of training (evaluations included), of each row (n_rows,); NaN where not known."""
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
    """A metric over x (n_rows,) between low and high, thinned: {"x", "y", "n_points"} and, smoothed, "smooth".

    "smooth" holds the average's own {"x", "y"}, and its "sum" and "weight" from which it goes on.
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
    """Seconds in each stage per bin of x (n_rows,), {"x", "stages"}; and of the whole run, {"total"}."""
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
    """The rows from number `since` on: {"from", "to", "step", "time", "metrics"}; None where they are too many."""
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
    """For JSON, which has no NaN and no infinity."""
    return [value if math.isfinite(value) else None for value in values.tolist()]


def plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """The same, with None in place of NaN and infinity."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in values.items()
    }

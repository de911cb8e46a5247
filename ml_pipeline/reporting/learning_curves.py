"""Reads the learning curve of a run from its metrics.jsonl, and averages several. T iterations, R runs."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ml_pipeline.config.errors import UserError
from ml_pipeline.monitoring.sinks import METRICS_FILE, STEP, read_lines

FloatArray = NDArray[np.float64]
By = Literal["steps", "time"]

TRAINING_STAGES = ("time/acting_s", "time/stepping_s", "time/waiting_s", "time/learning_s", "time/exchanging_s")
# Student's t for a 95 % interval, two-sided, by degrees of freedom from 1. Beyond, 1.96 + 2.4 / degrees: within 0.5 %.
_T_95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
_LAST_PART = 0.05


@dataclass(frozen=True)
class LearningCurve:
    """Values per iteration, float64 (T,); NaN if an iteration has none.

    steps: environment steps so far. seconds: time since training began. training_s: the same without evaluations.
    returns: mean return of the n_episodes episodes that ended in the iteration. scores: of the evaluation after it.
    """

    steps: FloatArray
    seconds: FloatArray
    training_s: FloatArray
    returns: FloatArray
    n_episodes: FloatArray
    scores: FloatArray

    @property
    def steps_per_second(self) -> float:
        """Training speed from the second iteration on, since a curve may begin mid-run; NaN for fewer than two."""
        if len(self.steps) < 2 or self.training_s[-1] == self.training_s[0]:
            return math.nan
        return float((self.steps[-1] - self.steps[0]) / (self.training_s[-1] - self.training_s[0]))

    @property
    def best_score(self) -> float:
        """The best score of all evaluations; NaN if there are none."""
        return float(np.nanmax(self.scores)) if np.isfinite(self.scores).any() else math.nan

    @property
    def last_score(self) -> float:
        scores = self.scores[np.isfinite(self.scores)]
        return float(scores[-1]) if len(scores) else math.nan

    def last_return(self) -> float:
        """Mean return of the episodes that ended in the last 5 % of the steps; NaN if none did."""
        late = self.steps > (1 - _LAST_PART) * self.steps[-1] if len(self.steps) else np.zeros(0, bool)
        return float(_mean_return(self.returns[late], self.n_episodes[late]))

    def at(self, by: By) -> FloatArray:
        """The horizontal axis of the curve: environment steps or seconds, (T,)."""
        return self.steps if by == "steps" else self.seconds

    def smoothed(self, window: int) -> FloatArray:
        """Mean of the returns of the last `window` iterations, (T,); NaN if no episode ended in any of them."""
        known = np.isfinite(self.returns)
        sums = _window_sums(np.where(known, self.returns, 0.0), window)
        counts = _window_sums(known.astype(np.float64), window)
        return np.divide(sums, counts, out=np.full(len(sums), math.nan), where=counts > 0)


def read_learning_curve(folder: Path) -> LearningCurve:
    """The curve so far in a run folder's metrics.jsonl. Incomplete lines and lines without metrics are skipped.

    Raises UserError if the file does not exist.
    """
    path = folder / METRICS_FILE
    if not path.is_file():
        what = "is not a run folder" if folder.is_dir() else "does not exist"
        raise UserError(f"{folder} {what}: {path} is missing; name run folders, such as checkpoints/RUN.")
    rows = [row for line in read_lines(path) if (row := _metrics_in(line)) is not None]
    training_s = np.cumsum(sum((np.nan_to_num(_column(rows, name)) for name in TRAINING_STAGES), np.zeros(len(rows))))
    evaluating_s = np.cumsum(np.nan_to_num(_column(rows, "time/evaluating_s")))
    return LearningCurve(
        steps=_column(rows, STEP),
        seconds=training_s + evaluating_s,
        training_s=training_s,
        returns=_column(rows, "rollout/episode_return"),
        n_episodes=_column(rows, "rollout/n_completed_episodes"),
        scores=_column(rows, "eval/score"),
    )


@dataclass(frozen=True)
class MeanCurve:
    """The mean of several runs at points x, and half the width of its 95 % confidence interval; (X,) each."""

    x: FloatArray
    mean: FloatArray
    half_width: FloatArray


def mean_curve(curves: Sequence[tuple[FloatArray, FloatArray]], *, n_points: int = 300) -> MeanCurve:
    """The interpolated mean of R curves (x, y) over the range of x that all of them cover; NaN in y is skipped.

    Empty if the curves have no common range.
    """
    known = [(x[np.isfinite(y)], y[np.isfinite(y)]) for x, y in curves]
    if not all(len(x) for x, _ in known):
        return MeanCurve(*(np.empty(0) for _ in range(3)))
    first, last = max(x[0] for x, _ in known), min(x[-1] for x, _ in known)
    points = np.linspace(first, last, n_points) if last > first else np.full(int(last == first), last)
    mean, half_width = mean_and_interval(np.stack([np.interp(points, x, y) for x, y in known]))
    return MeanCurve(points, mean, half_width)


def mean_and_interval(values: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Means of values (R, ...) over R runs, and half the width of their 95 % intervals by Student's t; NaN for R = 1.

    >>> mean, half_width = mean_and_interval(np.array([1.0, 2.0, 3.0]))
    >>> float(mean), round(float(half_width), 3)  # 4.303 * 1 / sqrt(3)
    (2.0, 2.484)
    """
    n = len(values)
    mean = np.mean(values, axis=0)
    if n == 1:
        return mean, np.full_like(mean, math.nan)
    t = _T_95[n - 2] if n - 2 < len(_T_95) else 1.96 + 2.4 / (n - 1)
    return mean, t * np.std(values, axis=0, ddof=1) / math.sqrt(n)


def _metrics_in(line: str) -> Mapping[str, Any] | None:
    try:
        row = json.loads(line)
        return row if float(row[STEP]) >= 0 else None
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None


def _column(rows: Sequence[Mapping[str, Any]], name: str) -> FloatArray:
    return np.array([_number(row.get(name)) for row in rows], dtype=np.float64)


def _number(value: object) -> float:
    """The number as a float; NaN for null and for invalid values: strings, lists, integers too large for a float."""
    try:
        return float(value) if isinstance(value, int | float) else math.nan
    except OverflowError:
        return math.nan


def _mean_return(returns: FloatArray, n_episodes: FloatArray) -> float:
    known = np.isfinite(returns)
    return float(np.average(returns[known], weights=n_episodes[known])) if known.any() else math.nan


def _window_sums(values: FloatArray, window: int) -> FloatArray:
    """Sums of the last `window` values; at the beginning of all values so far."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    ends = np.arange(1, len(values) + 1)
    return sums[ends] - sums[np.maximum(ends - window, 0)]

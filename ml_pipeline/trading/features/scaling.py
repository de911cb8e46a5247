"""Scaling of features to mean 0 and deviation 1, by statistics of the training split."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ml_pipeline.config.errors import UserError
from ml_pipeline.trading.market.data import FloatArray

# A column whose deviation is below this fraction of its mean is constant, and is scaled to 0.
_CONSTANT = 1e-12
# Rows that are scaled at a time, so that a large market needs no second copy of its features.
_CHUNK = 1 << 16


@dataclass(frozen=True, eq=False)
class FeatureScaler:
    """Scales features. mean, deviation: float64 (D,), of the fitted rows. clip: the largest absolute scaled value."""

    mean: FloatArray
    deviation: FloatArray
    clip: float = 5.0

    @classmethod
    def fit(cls, values: FloatArray, *, clip: float = 5.0) -> "FeatureScaler":
        """The scaler for `values` (T, D), which must be the rows of the training split; NaN cells are ignored.

        A column without any value (an asset that is listed later) gets mean 0 and deviation 1.
        """
        known = ~np.isnan(values)
        count = np.maximum(known.sum(axis=0), 1)
        mean = np.where(known, values, 0.0).sum(axis=0) / count
        distances = values - mean
        distances *= distances
        distances[~known] = 0.0
        deviation = np.sqrt(distances.sum(axis=0) / count)
        varies = deviation > _CONSTANT * np.maximum(np.abs(mean), 1e-300)
        return cls(mean, np.where(varies, deviation, 1.0), clip)

    def __call__(self, values: FloatArray) -> NDArray[np.float32]:
        """Scaled and clipped values, float32 (T, D); NaN becomes 0, which is the mean."""
        result = np.empty(values.shape, dtype=np.float32)
        for start in range(0, len(values), _CHUNK):
            rows = slice(start, start + _CHUNK)
            with np.errstate(over="ignore"):  # overflow is clipped too
                scaled = np.clip((values[rows] - self.mean) / self.deviation, -self.clip, self.clip)
            result[rows] = np.nan_to_num(scaled, nan=0.0)
        return result

    def state(self) -> dict[str, Any]:
        """The scaler as numbers and lists, for a checkpoint."""
        return {"mean": self.mean.tolist(), "deviation": self.deviation.tolist(), "clip": self.clip}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "FeatureScaler":
        """The scaler with this `state()`. Raises UserError if it is not one."""
        try:
            mean, deviation = np.array(state["mean"], dtype=float), np.array(state["deviation"], dtype=float)
            if mean.ndim != 1 or mean.shape != deviation.shape:
                raise ValueError(f"means {mean.shape}, deviations {deviation.shape}")
            return cls(mean, deviation, float(state["clip"]))
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"This is not the state of a feature scaler: {error!r}.") from error


class OutOfRange(NamedTuple):
    """A value outside low..high, the range of its column in training."""

    column: str
    value: float
    low: float
    high: float


@dataclass(frozen=True, eq=False)
class FeatureRanges:
    """Ranges of features. low, high: float64 (D,); NaN for a column without values."""

    low: FloatArray
    high: FloatArray

    @classmethod
    def of(cls, values: FloatArray) -> "FeatureRanges":
        """The ranges of `values` (T, D), NaN ignored."""
        known = ~np.isnan(values)
        some = known.any(axis=0)
        low = np.where(known, values, np.inf).min(axis=0, initial=np.inf)
        high = np.where(known, values, -np.inf).max(axis=0, initial=-np.inf)
        return cls(np.where(some, low, np.nan), np.where(some, high, np.nan))

    @classmethod
    def of_scaler(cls, scaler: FeatureScaler) -> "FeatureRanges":
        """The range that a scaler does not clip, for checkpoints without ranges."""
        reach = scaler.clip * scaler.deviation
        return cls(scaler.mean - reach, scaler.mean + reach)

    def outside(self, row: FloatArray, columns: tuple[str, ...]) -> list[OutOfRange]:
        """The values of a row (D,) that lie outside, in the order of the columns."""
        places = np.flatnonzero((row < self.low) | (row > self.high))
        return [OutOfRange(columns[i], float(row[i]), float(self.low[i]), float(self.high[i])) for i in places.tolist()]

    def state(self) -> dict[str, Any]:
        """The ranges as numbers and lists, for a checkpoint; None for a column without values."""
        return {name: [None if np.isnan(v) else float(v) for v in getattr(self, name)] for name in ("low", "high")}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "FeatureRanges":
        """The ranges with this `state()`. Raises UserError if it is not one."""
        try:
            low, high = (np.array([np.nan if v is None else v for v in state[name]], float) for name in ("low", "high"))
            if low.shape != high.shape:
                raise ValueError(f"lows {low.shape}, highs {high.shape}")
            return cls(low, high)
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"This is not the state of feature ranges: {error!r}.") from error

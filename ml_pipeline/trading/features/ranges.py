"""The range of each feature in the training split: what a policy has seen.

D columns.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ml_pipeline.config.errors import UserError
from ml_pipeline.trading.features.scaling import FeatureScaler
from ml_pipeline.trading.market.data import FloatArray


class OutOfRange(NamedTuple):
    """A value outside low..high, the range in which its column was seen."""

    column: str
    value: float
    low: float
    high: float


@dataclass(frozen=True, eq=False)
class FeatureRanges:
    """low, high: float64 (D,); NaN where a column had no value."""

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
        """The values that a scaler does not clip: all that is known where a checkpoint holds no ranges."""
        reach = scaler.clip * scaler.deviation
        return cls(scaler.mean - reach, scaler.mean + reach)

    def outside(self, row: FloatArray, columns: tuple[str, ...]) -> list[OutOfRange]:
        """The values of a row (D,) that lie outside, in the order of the columns."""
        places = np.flatnonzero((row < self.low) | (row > self.high))
        return [OutOfRange(columns[i], float(row[i]), float(self.low[i]), float(self.high[i])) for i in places.tolist()]

    def state(self) -> dict[str, Any]:
        """The ranges as numbers and lists, for a checkpoint; None where a column had no value."""
        return {name: [None if np.isnan(v) else float(v) for v in getattr(self, name)] for name in ("low", "high")}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "FeatureRanges":
        """The ranges with this `state()`. Raises UserError if they are none."""
        try:
            low, high = (np.array([np.nan if v is None else v for v in state[name]], float) for name in ("low", "high"))
            if low.shape != high.shape:
                raise ValueError(f"lows {low.shape}, highs {high.shape}")
            return cls(low, high)
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"This is not the state of feature ranges: {error!r}.") from error

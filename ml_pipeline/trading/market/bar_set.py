"""The bars that close together: what a feed gives, and what a decision is made on."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ml_pipeline.trading.market.data import FloatArray


@dataclass(frozen=True, eq=False)
class BarSet:
    """One bar of each of A symbols, in a fixed order; NaN prices where a symbol has none.

    time: as in the data, when the bars open or close as the market's timing says. closed_at: UTC, when they closed.
    open, high, low, close, volume: float64 (A,). fillable: bool (A,), whether an order can be filled in the bar: the
    symbol has one, and its prices are possible. half_spread: float64 (A,), half the quoted spread at the close as a
    fraction of the mid price; None without quotes.
    columns: the `feature_*` columns of the data by name, (A,).
    late: it came after the bar that follows had opened, so that nothing can be ordered on it any more.
    """

    time: np.datetime64
    closed_at: np.datetime64
    open: FloatArray
    high: FloatArray
    low: FloatArray
    close: FloatArray
    volume: FloatArray
    fillable: NDArray[np.bool_]
    half_spread: FloatArray | None = None
    columns: Mapping[str, FloatArray] = field(default_factory=dict)
    late: bool = False

    @property
    def present(self) -> NDArray[np.bool_]:
        """bool (A,), whether the symbol has a bar."""
        return ~np.isnan(self.close)


def bid_and_ask(close: FloatArray, half_spread: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Quotes around closes, of the same shape. half_spread: as a fraction of the close."""
    return close * (1 - half_spread), close * (1 + half_spread)

"""A market made ready for environments: prices and scaled features, computed once and shared by all of them."""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ml_pipeline.trading.features import FeatureTable
from ml_pipeline.trading.market_data import FloatArray, MarketData
from ml_pipeline.trading.scaling import FeatureScaler


@dataclass(frozen=True, eq=False)
class PreparedMarket:
    """What an environment reads and never changes.

    T bars, A assets, D features of a bar. times: (T,). open, close: float64 (T, A). tradable: bool (T, A).
    features: float32 (T, D), scaled and clipped to -clip..clip. Before an asset's first bar its prices are 0: there it
    is neither held nor traded, and no NaN can get into the accounts.
    """

    symbols: tuple[str, ...]
    times: NDArray[np.datetime64]
    open: FloatArray
    close: FloatArray
    tradable: NDArray[np.bool_]
    features: NDArray[np.float32]
    clip: float
    periods_per_year: float

    shared_between_environments: ClassVar[bool] = True

    @property
    def n_bars(self) -> int:
        return len(self.times)

    def bars(self, start: int, stop: int) -> "PreparedMarket":
        """A copy of the bars start..stop-1 alone, so that who gets it has seen nothing else."""
        rows = slice(start, stop)
        arrays = {name: getattr(self, name)[rows].copy() for name in ("times", "open", "close", "tradable", "features")}
        return replace(self, **arrays)

    def assets(self, columns: NDArray[np.int64]) -> "PreparedMarket":
        """The market of these assets alone; the features stay as they are."""
        arrays = {name: getattr(self, name)[:, columns] for name in ("open", "close", "tradable")}
        return replace(self, symbols=tuple(self.symbols[i] for i in columns), **arrays)


def prepare_market(market: MarketData, features: FeatureTable, scaler: FeatureScaler) -> PreparedMarket:
    """Bar by bar what `market` and `features` hold, scaled by `scaler`."""
    return PreparedMarket(
        symbols=market.symbols,
        times=market.times,
        open=np.nan_to_num(market.open, nan=0.0),
        close=np.nan_to_num(market.close, nan=0.0),
        tradable=market.tradable,
        features=scaler(features.values),
        clip=scaler.clip,
        periods_per_year=market.periods_per_year,
    )

"""The bars that a feature of one asset is computed on: its own, longer ones made of them, and those of all symbols."""

from collections.abc import Mapping
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ml_pipeline.config.errors import UserError
from ml_pipeline.trading.features.formulas import Bars
from ml_pipeline.trading.market.data import MarketData
from ml_pipeline.trading.market.timeframes import LongBars, Timing, long_bars, together

_FIELDS = ("open", "high", "low", "close", "volume")


def require_longer(name: str, length: int, timing: Timing, *, source: str) -> None:
    """Raise UserError, with the name of the feature, if the bars are longer than `length` ns."""
    if length < timing.length:
        minutes = timing.length / 60e9
        raise UserError(
            f"Feature {name} needs bars that are no longer than it says, but those of {source} have {minutes:g} "
            "minutes; name a longer timeframe."
        )


def bars_of(market: MarketData, asset: int) -> Bars:
    """The own bars of the asset with this index."""
    return BarsOf(market, asset).own


class BarsOf:
    """The bars of the asset with this index, or the longer bars that they make."""

    def __init__(self, market: MarketData, asset: int, made: LongBars | None = None) -> None:
        self.symbol = market.symbols[asset]
        self._market = market
        self._asset = asset
        self._made = made
        rows = market.tradable[:, asset]
        self._rows: slice | NDArray[np.bool_] = slice(None) if rows.all() else rows
        self._longer: dict[int, tuple[BarsOf, NDArray[np.int64]]] = {}

    @cached_property
    def own(self) -> Bars:
        return self._bars(self._asset)

    def everyone(self) -> Mapping[str, Bars]:
        """The bars of all symbols at the times of this asset's bars.

        Where a symbol has no bar, its prices are its last close, with volume 0; before its first bar they are NaN.
        """
        return {symbol: self._bars(a) for a, symbol in enumerate(self._market.symbols)}

    def longer(self, name: str, length: int) -> "tuple[BarsOf, NDArray[np.int64]]":
        """Bars of `length` ns, and the latest of them that is known at the close of each own bar; -1 before the first.

        Raises UserError, with the name of the feature, if the asset's bars are longer than that.
        """
        if length not in self._longer:
            timing = self._market.timing
            require_longer(name, length, timing, source=self._market.source)
            made = long_bars(self.own.times, timing, length, causal=True)
            self._longer[length] = BarsOf(self._market, self._asset, made), made.latest_known()
        return self._longer[length]

    def _bars(self, asset: int) -> Bars:
        market = self._market
        times = market.times[self._rows]
        fields = {name: getattr(market, name)[self._rows, asset] for name in _FIELDS}
        fields |= {name: values[self._rows, asset] for name, values in market.columns.items()}
        if self._made is not None:
            times = self._made.starts[self._made.first].astype("datetime64[ns]")
            fields = together(fields, self._made)
        columns = {name: fields[name] for name in market.columns}
        return Bars(times, *(fields[name] for name in _FIELDS), columns=columns)  # type: ignore[misc]

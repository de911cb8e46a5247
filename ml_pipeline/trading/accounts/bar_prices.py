"""The prices of a bar as accounts read them: where a symbol has no bar, its last close, and 0 before its first.

A symbols. Bars come one set at a time, as in live trading; `MarketData` holds the same of a whole market.
"""

from typing import Any, NamedTuple

import numpy as np

from ml_pipeline.trading.market.bar_set import BarSet

Prices = list[float]


class BarPrices(NamedTuple):
    """Prices of one bar, each of A numbers. half_spreads: at the close; 0 where none is known."""

    opens: Prices
    highs: Prices
    lows: Prices
    closes: Prices
    half_spreads: Prices
    fillable: list[bool]


class CarriedPrices:
    """The latest `closes` and `half_spreads` of A symbols, by which the next bar is completed."""

    def __init__(self, n_symbols: int) -> None:
        self.closes: Prices = [0.0] * n_symbols
        self.half_spreads: Prices = [0.0] * n_symbols
        self._is_quoted = False

    def take(self, bars: BarSet) -> BarPrices:
        """The next bars, whose closes and half-spreads are the latest ones from now on."""
        present = bars.present
        fillable = (bars.fillable & present).tolist()
        if present.all():
            opens, highs, lows, closes = (each.tolist() for each in (bars.open, bars.high, bars.low, bars.close))
        else:
            last = np.array(self.closes)
            each_price = (bars.open, bars.high, bars.low, bars.close)
            opens, highs, lows, closes = (np.where(present, price, last).tolist() for price in each_price)
        if bars.half_spread is not None:
            known = ~np.isnan(bars.half_spread)
            if self._is_quoted:  # as in `market_from_arrays`, the first row holds until a symbol's first quote
                known &= present
            self._is_quoted = True
            self.half_spreads = np.where(known, bars.half_spread, self.half_spreads).tolist()
        self.closes = closes
        return BarPrices(opens, highs, lows, closes, self.half_spreads, fillable)

    def state(self) -> dict[str, Any]:
        """As plain data, for `set_state`."""
        return {"closes": self.closes, "half_spreads": self.half_spreads, "is_quoted": self._is_quoted}

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue where `state` was taken."""
        self.closes, self.half_spreads = list(state["closes"]), list(state["half_spreads"])
        self._is_quoted = state["is_quoted"]

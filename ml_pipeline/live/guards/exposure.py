"""The account as orders would leave it, so that the orders of one decision are judged together."""

import math
from collections.abc import Mapping, Sequence

from ml_pipeline.live.brokers.broker import OrderRequest

# Weights and values are quotients and sums of floats: a limit that is met exactly is not broken by their last bits.
ROUNDING = 1e-9


class Exposure:
    """Positions at the last closes, and what orders would make of them.

    A symbol may have several orders. What an order leads to is estimated at the close that it was decided on; the fill
    may come at another price.
    """

    def __init__(self, equity: float, holdings: Mapping[str, float], closes: Mapping[str, float]) -> None:
        """equity: in money. holdings: signed quantities. closes: the last price of each symbol, NaN or missing where
        there is none.
        """
        self.equity = equity
        self._holdings = dict(holdings)
        self._closes = dict(closes)
        self._worth = {symbol: self._value(symbol, quantity) for symbol, quantity in holdings.items()}
        self._gross = math.fsum(map(abs, self._worth.values()))

    def knows(self, symbol: str) -> bool:
        """Whether the symbol has a price by which an order can be judged."""
        price = self._closes.get(symbol, math.nan)
        return math.isfinite(price) and price > 0.0

    def price(self, symbol: str) -> float:
        """The last close; NaN where there is none."""
        return self._closes.get(symbol, math.nan)

    def holding(self, symbol: str) -> float:
        """The signed quantity, the orders that were taken included."""
        return self._holdings.get(symbol, 0.0)

    def reduces(self, order: OrderRequest) -> bool:
        """Whether the order only makes a position smaller: never larger, and never one on the other side."""
        before = self.holding(order.symbol)
        if order.quantity == 0.0:
            return order.weight * before >= 0.0 and self.position_after(order) <= self.worth(order.symbol)
        return before * order.quantity < 0.0 and abs(order.quantity) <= abs(before) * (1 + ROUNDING)

    def order_value(self, order: OrderRequest) -> float:
        """What the order trades, in money; by its weight where its quantity is known at the fill only."""
        if order.quantity == 0.0:
            signed = self._value(order.symbol, self.holding(order.symbol))
            return abs(order.weight * self.equity - signed)
        return abs(self._value(order.symbol, order.quantity))

    def worth(self, symbol: str) -> float:
        """The absolute value of a position."""
        return abs(self._worth.get(symbol, 0.0))

    def position_after(self, order: OrderRequest) -> float:
        """The absolute value of the position that the order leads to; never below what is there if its quantity is
        known at the fill only, since it may come to nothing."""
        if order.quantity == 0.0:
            target = 0.0 if order.closing else abs(order.weight * self.equity)
            return max(self.worth(order.symbol), target)
        return abs(self._value(order.symbol, self.holding(order.symbol) + order.quantity))

    def gross_after(self, order: OrderRequest) -> float:
        """The sum of absolute values of all positions that the order leads to."""
        return self._gross - self.worth(order.symbol) + self.position_after(order)

    def take(self, order: OrderRequest) -> None:
        """Count an order as if it were filled."""
        after = self.position_after(order)
        self._gross += after - self.worth(order.symbol)
        self._holdings[order.symbol] = self.holding(order.symbol) + order.quantity
        self._worth[order.symbol] = after

    def _value(self, symbol: str, quantity: float) -> float:
        return quantity * self.price(symbol) if quantity else 0.0


def by_symbol(symbols: Sequence[str], values: object) -> dict[str, float]:
    """Numbers by symbol, of a mapping or of a sequence in the order of the symbols."""
    if isinstance(values, Mapping):
        return {symbol: float(value) for symbol, value in values.items()}
    return {symbol: float(value) for symbol, value in zip(symbols, values, strict=True)}  # type: ignore[call-overload]

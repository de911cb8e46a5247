"""An account bar by bar, as in live trading: the prices that it reads, and its sums after fills and charges.

A symbols. `CarriedPrices` completes bars that come one set at a time as `MarketData` does for a whole market. The sums
are those of the kernel, in its order, so with its bits; `execution` and `within_bar` decide what is filled.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ml_pipeline.trading.accounts.orders import PLAIN_OPS, Terms, order_steps
from ml_pipeline.trading.market.bar_set import BarSet

Prices = list[float]


class BarPrices(NamedTuple):
    """Prices of one bar, each of A numbers. half_spreads: at the close; 0 if unknown."""

    opens: Prices
    highs: Prices
    lows: Prices
    closes: Prices
    half_spreads: Prices
    fillable: list[bool]


class CarriedPrices:
    """The latest `closes` and `half_spreads` of A symbols, which complete the next bar."""

    def __init__(self, n_symbols: int) -> None:
        self.closes: Prices = [0.0] * n_symbols
        self.half_spreads: Prices = [0.0] * n_symbols
        self._is_quoted = False

    def take(self, bars: BarSet) -> BarPrices:
        """Complete the next bars, and keep their closes and half-spreads as the latest."""
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

    def split(self, i: int, factor: float) -> None:
        """Multiply the latest close of symbol i, whose quantity was divided by this factor."""
        self.closes = [close * factor if j == i else close for j, close in enumerate(self.closes)]

    def state(self) -> dict[str, Any]:
        """As plain data, for `set_state`."""
        return {"closes": self.closes, "half_spreads": self.half_spreads, "is_quoted": self._is_quoted}

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue from `state`."""
        self.closes, self.half_spreads = list(state["closes"]), list(state["half_spreads"])
        self._is_quoted = state["is_quoted"]


_STEPS = order_steps(PLAIN_OPS)
# Buys may cost more than the cash by this part, because of rounding, lots included; see `execution.fill_orders`.
_ROUNDING = 1e-8


class Filled(NamedTuple):
    """A fill: signed quantity, price, and the money paid besides quantity * price."""

    quantity: float
    price: float
    costs: float


def cash_after(cash: float, fills: Iterable[Filled], *, may_borrow: bool) -> tuple[float, float]:
    """(cash, costs) after the fills of one bar, in the order of their symbols: sales, then the sum of all buys.

    may_borrow: if False, buys that exceed the cash only by rounding leave 0, as in the kernel.

    >>> cash_after(10.0, [Filled(-1.0, 90.0, 0.5), Filled(1.0, 50.0, 0.5)], may_borrow=False)
    (49.0, 1.0)
    """
    costs, spent, buys = 0.0, 0.0, []
    for fill in fills:
        if fill.quantity > 0.0:
            buys.append(fill)
            continue
        cash = cash + (-(fill.quantity * fill.price) - fill.costs)
        costs = costs + fill.costs
    for quantity, price, cost in buys:
        spent = spent + (quantity * price + cost)
        costs = costs + cost
    has_cash = max(cash, 0.0)
    if not may_borrow and has_cash < spent <= has_cash + spent * _ROUNDING:
        spent = has_cash
    return cash - spent, costs


def worth_of(holdings: Sequence[float], closes: Sequence[float]) -> float:
    """The value of all positions, negative if they are short."""
    worth = 0.0
    for quantity, close in zip(holdings, closes, strict=True):
        worth = worth + quantity * close
    return worth


def interest_due(
    cash: float, holdings: Sequence[float], closes: Sequence[float], terms: Terms, *, days: float
) -> tuple[float, bool]:
    """(money paid at the close for borrowing, whether the account could not pay all of it).

    days: days charged; 1 if rates are per bar. cash: after the fills of the bar.
    """
    fee = 0.0
    for quantity, close in zip(holdings, closes, strict=True):
        fee = fee + _STEPS.borrowing_fee(quantity * close, terms.borrow_rate)
    return _STEPS.interest(cash, fee * days, days, terms)

"""The backtest's account, in which chosen orders end as they did at the broker.

T bars, A assets. Row t of a table is about an order decided at bar t, as in `FillTables`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ml_pipeline.trading.accounts.execution import PLAIN, stepping
from ml_pipeline.trading.accounts.orders import PLAIN_OPS, Terms
from ml_pipeline.trading.accounts.single import PlainAccount
from ml_pipeline.trading.accounts.within_bar import Book, stepping_within
from ml_pipeline.trading.market.data import FloatArray


@dataclass(eq=False)
class Met:
    """What the orders of a session met, by the bar that they were decided at.

    skipped: bool (T - 1,), no decision was made. blocked: bool (T - 1, A), the order was not filled. closing: bool
    (T - 1,), all positions were closed instead of a decision. prices: float64 (T - 1, A), of the fills; NaN as
    assumed. quantities: signed, that were filled. cost_rates: float64 (T - 1, A), costs as a fraction of the
    value traded; NaN as assumed. charges: money taken besides what is assumed.
    """

    skipped: NDArray[np.bool_]
    blocked: NDArray[np.bool_]
    closing: NDArray[np.bool_]
    prices: FloatArray
    cost_rates: FloatArray
    quantities: dict[int, dict[int, float]] = field(default_factory=dict)
    charges: dict[int, float] = field(default_factory=dict)

    @classmethod
    def nothing(cls, n_bars: int, n_assets: int) -> "Met":
        """Every order is filled as assumed."""
        rows, table = n_bars - 1, (n_bars - 1, n_assets)
        return cls(
            skipped=np.zeros(rows, dtype=bool),
            blocked=np.zeros(table, dtype=bool),
            closing=np.zeros(rows, dtype=bool),
            prices=np.full(table, np.nan),
            cost_rates=np.full(table, np.nan),
        )


class MetAccount(PlainAccount):
    """An account of the kernel, some of whose fills end as they were met."""

    binding_limits: tuple[str, ...] = ()  # not looked for

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.met: Met | None = None
        self._quantities: Mapping[int, float] = {}
        kernel = PLAIN_OPS, lambda function: function, PLAIN.size_orders, self._fill_as_met
        self._step_as_met, self._step_within_as_met = stepping(*kernel), stepping_within(*kernel)

    def step(self, bar: int, weights: list[float], may_trade: list[bool], *, closing: bool = False) -> None:
        met = self.met
        if met is None:
            super().step(bar, weights, may_trade, closing=closing)
            return
        if (quantities := met.quantities.get(bar)) is not None:
            self._step_with_quantities(bar, weights, may_trade, quantities, closing=closing)
        else:
            super().step(bar, weights, may_trade, closing=closing)
        self._keep_debt(bar)
        paid = met.charges.get(bar, 0.0)
        rates = met.cost_rates[bar]
        for i in np.flatnonzero(~np.isnan(rates)).tolist():
            paid += self._traded(bar, i) * float(rates[i]) - self.assumed_costs(bar, i)
        if paid:
            self.cash -= paid
            self.costs += paid
            self.equity -= paid

    def _keep_debt(self, bar: int) -> None:
        """Put back cash below zero, which the kernel knows of no account that may not borrow, and pays off.

        Cash as it was met is below zero by a rounding, or where a fill cost more than there was.
        """
        if not self.margin_called or self._terms.maintenance > 0.0:
            return
        of_exits = sum(
            _cost(quantity, price, self._half_spread(bar, i), self._terms) + self._terms.fixed_fee
            for i, (quantity, price) in enumerate(zip(self.exited, self.exit_prices, strict=True))
            if quantity
        )
        trading = sum(self.assumed_costs(bar, i) for i in range(len(self.filled))) + of_exits
        held = zip(self.holdings, self.closes, strict=True)
        fee = sum(max(-n * close * self._terms.borrow_rate, 0.0) for n, close in held)
        if self._bars is not None:
            fee *= self.days
        left = self.costs - trading  # what there was to pay the fee with
        if left < 0.0 or not fee:
            self.cash = left - fee
            self.costs = trading + fee
            self.equity += self.cash
            self.margin_called = False

    def assumed_costs(self, bar: int, asset: int) -> float:
        """What the last step's order in an asset costs by the terms of the account."""
        filled, terms = self.filled[asset], self._terms
        if not filled:
            return 0.0
        return _cost(filled, self.price(bar, asset), self._half_spread(bar, asset), terms) + terms.fixed_fee

    def _half_spread(self, bar: int, asset: int) -> float:
        return 0.0 if self._half_spreads is None else float(self._half_spreads[bar, asset])

    def _traded(self, bar: int, asset: int) -> float:
        return abs(self.filled[asset]) * self.price(bar, asset)

    def price(self, bar: int, asset: int) -> float:
        """The price of the last step's order in an asset."""
        return float(self._fill_prices[bar, asset]) if self._bars is None else self.fill_prices[asset]

    def _step_with_quantities(
        self, bar: int, weights: list[float], may_trade: list[bool], quantities: Mapping[int, float], *, closing: bool
    ) -> None:
        """As the kernel's step, with the quantities of some orders as they were met."""
        terms = self._closing_terms if closing else self._terms
        self._quantities = quantities
        self.closes = closes = self._market_closes[bar + 1].tolist()
        prices = self._fill_prices[bar].tolist()
        spreads = self._no_spreads if self._half_spreads is None else self._half_spreads[bar].tolist()
        if self._bars is None:
            self.cash, self.costs, self.equity, self.margin_called = self._step_as_met(
                weights, may_trade, self.cash, self.holdings, prices, spreads, closes, terms, self.orders, self.filled
            )
            return
        book = Book(
            self.holdings, self.entries, self.orders, self.filled, [0.0] * len(closes),
            self.exited, self.exit_prices, self.called, self.fill_prices,
        )  # fmt: skip
        self.cash, self.costs, self.equity, self.margin_called = self._step_within_as_met(
            weights, may_trade, self.cash, self._bar(bar, prices, spreads), book, terms
        )

    def _fill_as_met(  # noqa: PLR0917  # as the kernel calls it
        self, orders: Any, cash: float, equity: float, prices: Any, half_spreads: Any, terms: Terms, filled: Any
    ) -> tuple[float, float]:
        """The kernel's fills, some of them changed to the quantities that were met, and the money with them."""
        cash, costs = PLAIN.fill_orders(orders, cash, equity, prices, half_spreads, terms, filled)
        for i, met in self._quantities.items():
            value = (filled[i] - met) * prices[i]
            saved = _cost(filled[i], prices[i], half_spreads[i], terms) - _cost(met, prices[i], half_spreads[i], terms)
            cash, costs = cash + value + saved, costs - saved
            filled[i] = met
        self._quantities = {}  # what follows in the same bar are exits, which are filled whole
        return cash, costs


def _cost(quantity: float, price: float, half_spread: float, terms: Terms) -> float:
    """What rates take of a fill; a fixed fee is per order, and the order is the same."""
    return abs(quantity) * price * ((terms.buy_rate if quantity > 0 else terms.sell_rate) + half_spread)

"""At which prices a ledger says that orders and exits of a bar were tried, those included that were not filled.

A symbols. `within_bar` records these prices as it steps; here they follow from the fills. An average entry price
follows from the fills as well.
"""

from collections.abc import Mapping, Sequence

from ml_pipeline.trading.accounts.bar_prices import BarPrices, Prices
from ml_pipeline.trading.accounts.orders import PLAIN_OPS, Terms
from ml_pipeline.trading.accounts.within_bar import within_steps

_STEPS = within_steps(PLAIN_OPS)


class TriedPrices:
    """Prices of orders and exits, bar by bar, of an account that acts within bars.

    `entries`: average entry prices, (A,), 0 without a position.
    """

    def __init__(self, n_symbols: int, terms: Terms) -> None:
        self.entries: Prices = [0.0] * n_symbols
        self._terms = terms
        self._closing_terms = terms.closing()

    def take(
        self,
        bar: BarPrices,
        decided: Prices,
        *,
        before: Sequence[float],
        filled: Sequence[float],
        known: Mapping[int, float],
        closing: bool,
    ) -> tuple[Prices, Prices]:
        """(prices of orders, prices of exits) of the next bar; renews `entries`.

        decided: closes at which the orders were decided. before: holdings before the bar. filled: quantities of the
        orders. known: prices by symbol that the broker told. closing: the orders had no limit.
        """
        terms = self._closing_terms if closing else self._terms
        orders_at, exits_at = list(bar.opens), [0.0] * len(before)
        for i, had in enumerate(before):
            opened, low, high, can = bar.opens[i], bar.lows[i], bar.highs[i], bar.fillable[i]
            entry = self.entries[i]
            if i in known:
                orders_at[i] = known[i]
            elif terms.limit >= 0.0:
                _, orders_at[i] = _STEPS.limit_order(0.0, had, entry, decided[i], opened, low, high, can, terms)
            held = had + filled[i]
            self.entries[i] = entry = _STEPS.entry_price(entry, had, filled[i], held, orders_at[i])
            _, exits_at[i] = _STEPS.exit_order(
                filled[i], orders_at[i], held, entry, opened, low, high, bar.closes[i], can, terms
            )
        return orders_at, exits_at

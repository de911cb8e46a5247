"""The ledger of a run, one row a bar, and the trades that can be read off it.

A ledger is a dict of columns, each (n,), the first row being the start: `time`, `equity`, `cash`, `costs_paid` (so
far), and per symbol X `close_X`, `position_X` (after the bar), `filled_X` (signed quantity filled since the row
before), `fill_price_X` (before costs; with fills at the close, the close of the row before) and, where the market has
quotes, `half_spread_X` (a part of the price, which the fills paid among their costs). It adds up:

    cash[k] = cash[k-1] - sum_X filled_X[k] * fill_price_X[k] - (costs_paid[k] - costs_paid[k-1])
    equity[k] = cash[k] + sum_X position_X[k] * close_X[k]

Prices of a symbol that is not listed yet are NaN.
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ml_pipeline.trading.market.data import FloatArray

Ledger = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Trade:
    """A position from its opening to its closing; where it is still `open` at the end, valued at the last close.

    quantity: the largest held. entry_price, exit_price: averages over the fills, before costs. profit: after costs.
    """

    symbol: str
    side: Literal["long", "short"]
    entry_time: np.datetime64
    exit_time: np.datetime64
    quantity: float
    entry_price: float
    exit_price: float
    profit: float
    holding_bars: int
    open: bool


def symbols_of(ledger: Ledger) -> tuple[str, ...]:
    return tuple(name.removeprefix("position_") for name in ledger if name.startswith("position_"))


def traded_values(ledger: Ledger) -> FloatArray:
    """Value traded in each row and symbol, buys and sells alike: (n, A)."""
    columns = [np.abs(ledger[f"filled_{s}"]) * np.nan_to_num(ledger[f"fill_price_{s}"]) for s in symbols_of(ledger)]
    return np.column_stack(columns)


def trades_of(ledger: Ledger) -> list[Trade]:
    """Every trade, symbol by symbol, in order of entry. A fill that turns long into short ends one and begins the next.

    The costs of a row are shared among its fills by traded value.
    """
    values = traded_values(ledger)
    costs = np.diff(ledger["costs_paid"], prepend=0.0)
    cost_rates = np.divide(costs, values.sum(axis=1), out=np.zeros_like(costs), where=values.any(axis=1))
    trades = []
    for symbol in symbols_of(ledger):
        trade = None
        position = 0.0
        for row in np.flatnonzero(ledger[f"filled_{symbol}"]).tolist():
            filled, price = float(ledger[f"filled_{symbol}"][row]), float(ledger[f"fill_price_{symbol}"][row])
            closing = -position if abs(filled) > abs(position) and filled * position < 0 else filled
            for quantity in (closing, filled - closing):
                if quantity == 0.0:
                    continue
                trade = trade or _OpenTrade(symbol, row, quantity > 0)
                trade.fill(quantity, price, abs(quantity) * price * cost_rates[row])
                position += quantity
                if position == 0.0:
                    trades.append(trade.ended(ledger, row))
                    trade = None
            position = float(ledger[f"position_{symbol}"][row])
        if trade is not None:
            trades.append(trade.ended(ledger, len(costs) - 1))
    return trades


class _OpenTrade:
    """What is known of a trade while it lasts."""

    def __init__(self, symbol: str, row: int, long: bool) -> None:
        self.symbol, self.row, self.long = symbol, row, long
        self.bought = self.sold = self.bought_value = self.sold_value = self.costs = self.largest = 0.0

    def fill(self, quantity: float, price: float, cost: float) -> None:
        if quantity > 0:
            self.bought += quantity
            self.bought_value += quantity * price
        else:
            self.sold -= quantity
            self.sold_value -= quantity * price
        self.costs += cost
        self.largest = max(self.largest, abs(self.bought - self.sold))

    def ended(self, ledger: Ledger, row: int) -> Trade:
        left = float(ledger[f"position_{self.symbol}"][row]) if row == len(ledger["time"]) - 1 else 0.0
        still_open = left != 0.0 and (left > 0) == self.long
        if still_open:  # valued as if it were closed at the last close, without costs
            costs = self.costs
            self.fill(-left, float(ledger[f"close_{self.symbol}"][row]), 0.0)
            self.costs = costs
        bought_price, sold_price = self.bought_value / self.bought, self.sold_value / self.sold
        return Trade(
            symbol=self.symbol,
            side="long" if self.long else "short",
            entry_time=ledger["time"][self.row],
            exit_time=ledger["time"][row],
            quantity=self.largest,
            entry_price=bought_price if self.long else sold_price,
            exit_price=sold_price if self.long else bought_price,
            profit=self.sold_value - self.bought_value - self.costs,
            holding_bars=row - self.row,
            open=still_open,
        )

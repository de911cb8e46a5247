"""The ledger of a run, with one row per bar, and the trades in it. `LedgerRecorder` writes it.

A ledger is a dict of columns, each (n,). Row 0 is the start, before any trade. The columns are `time`, `equity`,
`cash`, `costs_paid` (since the start), and for each symbol X:
- `close_X`: the close of the bar
- `position_X`: the quantity held after the bar
- `filled_X`: the signed quantity filled since the row before
- `fill_price_X`: its price before costs; if fills are at the close, this is the close of the row before
- `half_spread_X`: half the quoted spread as a fraction of the price, which `costs_paid` includes; only with quotes
Prices are NaN until a symbol is listed. The columns add up:

    cash[k] = cash[k-1] - sum_X filled_X[k] * fill_price_X[k] - (costs_paid[k] - costs_paid[k-1])
    equity[k] = cash[k] + sum_X position_X[k] * close_X[k]
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ml_pipeline.trading.market.data import FloatArray

Ledger = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Trade:
    """A position from opening to closing. A trade that is still `open` at the end is valued at the last close.

    quantity: the largest held. entry_price, exit_price: averages of the fills, before costs. profit: after costs.
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
    """Names of the symbols, in the order of their columns."""
    return tuple(name.removeprefix("position_") for name in ledger if name.startswith("position_"))


def traded_values(ledger: Ledger) -> FloatArray:
    """Absolute value traded in each row and symbol, (n, A)."""
    columns = [np.abs(ledger[f"filled_{s}"]) * np.nan_to_num(ledger[f"fill_price_{s}"]) for s in symbols_of(ledger)]
    return np.column_stack(columns)


def trades_of(ledger: Ledger) -> list[Trade]:
    """Every trade, symbol by symbol, in order of entry. A fill through zero closes one trade and opens the next.

    The fills of a row share its costs in proportion to their value.
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
    """The fills of a trade so far."""

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
        if still_open:  # value it as if it were closed at the last close, without costs
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

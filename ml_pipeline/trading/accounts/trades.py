"""The trades of a ledger, each with all that it cost: fees, slippage, spread and borrowing.

The profits of an asset's trades add up to the change of equity that the asset made.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ml_pipeline.trading.accounts.costs import Costs, trading_and_holding, unexplained_costs
from ml_pipeline.trading.accounts.ledger import Ledger, symbols_of
from ml_pipeline.trading.market.data import FloatArray

# A position below this part of the largest one of its trade is a rounding error: the trade is over.
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Trade:
    """A position from opening to closing. A trade that is still `open` at the end is valued at the last close.

    quantity: the largest held. entry_price, exit_price: averages of the fills, before costs. profit: after `costs`,
    those of its fills and of borrowing.
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
    costs: float


def trades_of(ledger: Ledger, costs: Costs | None = None) -> list[Trade]:
    """Every trade, symbol by symbol, in order of entry. A fill through zero closes one trade and opens the next.

    costs: those of `costs_of`. Without them, the fills of a row share its costs in proportion to their value, so that
    a bar with fills and borrowing fees charges the fees to the fills.
    """
    trading, holding = trading_and_holding(ledger, unexplained_costs(ledger) if costs is None else costs)
    trades = []
    for a, symbol in enumerate(symbols_of(ledger)):
        trades += _trades_of_symbol(ledger, symbol, trading[:, a], holding[:, a])
    return trades


def _trades_of_symbol(ledger: Ledger, symbol: str, trading: FloatArray, holding: FloatArray) -> list[Trade]:
    trades: list[Trade] = []
    trade: _OpenTrade | None = None
    before = rest_price = 0.0
    for row, filled, price, after, cost in _fills_of_symbol(ledger, symbol, trading):
        if trade is not None and after * trade.sign < -_ROUNDING * trade.largest:  # through zero
            part = before / -filled
            trade.fill(-before, price, part * cost)
            trades.append(trade.ended(ledger, row, holding))
            trade = _OpenTrade(symbol, row, after)
            trade.fill(after, price, (1 - part) * cost)
        else:
            if trade is None:
                trade = _OpenTrade(symbol, row, after)
                trade.fill(before, rest_price, 0.0)  # what rounding left of the trade before
            trade.fill(filled, price, cost)
            if abs(after) <= _ROUNDING * trade.largest:
                trade.fill(-after, price, 0.0)
                trades.append(trade.ended(ledger, row, holding))
                trade, rest_price = None, price
        before = after
    if trade is not None:
        trade.fill(-before, float(ledger[f"close_{symbol}"][-1]), 0.0)  # as if closed at the last close, at no cost
        trades.append(trade.ended(ledger, len(holding), holding))
    return trades


def _fills_of_symbol(
    ledger: Ledger, symbol: str, trading: FloatArray
) -> Iterator[tuple[int, float, float, float, float]]:
    """(row, signed quantity, price, position afterwards, costs) of each fill.

    Two fills of a row share its costs in proportion to their value.
    """
    filled, prices, positions = (ledger[f"{kind}_{symbol}"] for kind in ("filled", "fill_price", "position"))
    exited, exit_prices = (ledger.get(f"{kind}_{symbol}", np.zeros(len(filled))) for kind in ("exited", "exit_price"))
    for row in np.flatnonzero((filled != 0) | (exited != 0)).tolist():
        values = [float(abs(q[row]) * p[row]) if q[row] else 0.0 for q, p in ((filled, prices), (exited, exit_prices))]
        part = values[0] / sum(values)
        if filled[row]:
            before_exit = float(positions[row] - exited[row]) if exited[row] else float(positions[row])
            yield row, float(filled[row]), float(prices[row]), before_exit, part * float(trading[row])
        if exited[row]:
            after, cost = float(positions[row]), (1 - part) * float(trading[row])
            yield row, float(exited[row]), float(exit_prices[row]), after, cost


class _OpenTrade:
    """The fills of a trade so far."""

    def __init__(self, symbol: str, row: int, position: float) -> None:
        self.symbol, self.row, self.sign = symbol, row, 1 if position > 0 else -1
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

    def ended(self, ledger: Ledger, row: int, holding: FloatArray) -> Trade:
        """The trade, closed by the fill of `row`; still open where the ledger ends before that."""
        last = min(row, len(ledger["time"]) - 1)
        costs = self.costs + float(holding[self.row : row].sum())
        bought_price, sold_price = self.bought_value / self.bought, self.sold_value / self.sold
        return Trade(
            symbol=self.symbol,
            side="long" if self.sign > 0 else "short",
            entry_time=ledger["time"][self.row],
            exit_time=ledger["time"][last],
            quantity=self.largest,
            entry_price=bought_price if self.sign > 0 else sold_price,
            exit_price=sold_price if self.sign > 0 else bought_price,
            profit=self.sold_value - self.bought_value - costs,
            holding_bars=last - self.row,
            open=row > last,
            costs=costs,
        )

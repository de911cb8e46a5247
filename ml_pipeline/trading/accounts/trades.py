"""The costs of a run by kind, bar and asset, and its trades with their costs.

n rows, A assets. The costs of a row add up to the change of `costs_paid` in that row.

The profits of an asset's trades add up to the change of equity that the asset made.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ml_pipeline.trading.accounts.ledger import Ledger, fills_of, per_symbol, symbols_of, traded_values
from ml_pipeline.trading.accounts.orders import NUMPY_OPS, order_steps
from ml_pipeline.trading.accounts.rules import TradingRules
from ml_pipeline.trading.market.data import FloatArray

Costs = dict[str, FloatArray]
"""Money by kind, each (n, A): "fee", "fixed_fee", "slippage", "spread", "borrowing", "financing" and "other".

"financing" is there if the rules charge it: the interest on borrowed money, shared by long positions by their value.
"other" is what the rules do not explain: rounding, or a ledger that was made under other rules.
"""

_STEPS = order_steps(NUMPY_OPS)
_HOLDING = ("borrowing", "financing")


def costs_of(ledger: Ledger, rules: TradingRules, periods_per_year: float) -> Costs:
    """The costs of each row, computed from its fills, its short positions and the rules.

    A row in which nothing was paid has no costs, for example if positions are closed at the price of their valuation.
    An account that cannot pay its borrowing costs pays all its cash: its shorts share this in proportion to their fees.
    """
    position, close = (per_symbol(ledger, kind) for kind in ("position", "close"))
    some_paid = _paid(ledger)[:, None] != 0
    traded, nothing = np.where(some_paid, traded_values(ledger), 0.0), np.zeros(position.shape)
    sell_fee_bps = rules.fee_bps if rules.sell_fee_bps is None else rules.sell_fee_bps
    costs = {
        "fee": nothing.copy(),
        "fixed_fee": nothing.copy(),
        "slippage": traded * rules.slippage_bps / 10_000,
        "spread": traded * per_symbol(ledger, "half_spread"),
    }
    for all_filled, price in fills_of(ledger):
        filled = np.where(some_paid, all_filled, 0.0)
        costs["fee"] += np.abs(filled) * price * np.where(filled > 0, rules.fee_bps, sell_fee_bps) / 10_000
        costs["fixed_fee"] += np.where(filled != 0, rules.fixed_fee, 0.0)
    left = _paid(ledger) - sum(cost.sum(axis=1) for cost in costs.values())
    terms, days = rules.terms(periods_per_year), ledger.get("interest_days", np.ones(len(left)))
    due = {"borrowing": _STEPS.borrowing_fee(position * close, (terms.borrow_rate * days)[:, None])}
    if rules.financing_bps_per_year is not None:
        owed = np.maximum(-(ledger["cash"] + left), 0.0)  # before the interest of the row
        due["financing"] = _shared_out(ledger, owed * terms.financing_rate * days, by=np.maximum(position * close, 0.0))
    total_due = np.sum([each.sum(axis=1) for each in due.values()], axis=0)
    part = np.divide(np.clip(left, 0.0, total_due), total_due, out=np.zeros_like(left), where=total_due > 0)
    costs |= {kind: each * part[:, None] for kind, each in due.items()}
    costs["other"] = _shared_out(ledger, left - sum(costs[kind].sum(axis=1) for kind in due))
    return costs


def unexplained_costs(ledger: Ledger) -> Costs:
    """All costs as "other", for a ledger whose rules are not known.

    Fills share the costs of their row in proportion to their value; without a fill, positions share them.
    """
    return {"other": _shared_out(ledger, _paid(ledger))}


def trading_and_holding(ledger: Ledger, costs: Costs) -> tuple[FloatArray, FloatArray]:
    """(costs of the fills, costs of holding the positions after them), each (n, A).

    If there is a fill, "other" and the financing of the closed position count as costs of the fill.
    """
    nothing = np.zeros(per_symbol(ledger, "filled").shape)
    other = costs.get("other", nothing)
    has_fill = np.any([filled != 0 for filled, _ in fills_of(ledger)], axis=0)
    holding = sum((costs[kind] for kind in _HOLDING if kind in costs), nothing) + np.where(has_fill, 0.0, other)
    trading = sum((cost for kind, cost in costs.items() if kind not in {*_HOLDING, "other"}), nothing)
    trading = trading + np.where(has_fill, other, 0.0)
    closed = has_fill & (per_symbol(ledger, "position") == 0)
    return np.where(closed, trading + holding, trading), np.where(closed, 0.0, holding)


def _paid(ledger: Ledger) -> FloatArray:
    """The costs of each row, (n,)."""
    return np.diff(ledger["costs_paid"], prepend=0.0)


def _shared_out(ledger: Ledger, amounts: FloatArray, by: FloatArray | None = None) -> FloatArray:
    """Split the amount of each row, (n,), by asset: in proportion to `by`, or to fills, or to positions, or equally."""
    traded = traded_values(ledger)
    held = np.abs(per_symbol(ledger, "position")) * per_symbol(ledger, "close")
    others = np.where(traded.any(axis=1, keepdims=True), traded, held)
    by = others if by is None else np.where(by.any(axis=1, keepdims=True), by, others)
    by = np.where(by.any(axis=1, keepdims=True), by, 1.0)
    return np.asarray(by / by.sum(axis=1, keepdims=True) * amounts[:, None])


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
                trade.fill(before, rest_price, 0.0)  # rounding error left from the previous trade
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
        """The trade, closed by the fill of `row`; it is open if the ledger ends earlier."""
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

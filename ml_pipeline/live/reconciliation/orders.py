"""The orders of a session by bar and asset: their outcomes, and the fills that the backtest assumes."""

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ml_pipeline.live.brokers.broker import Fill, OrderUpdate
from ml_pipeline.live.reconciliation.backtest import SessionBacktest
from ml_pipeline.live.reconciliation.recorded import RecordedSession, SentOrder
from ml_pipeline.trading.accounts.ledger import Ledger
from ml_pipeline.trading.accounts.orders import NUMPY_OPS, PLAIN_OPS, fill_cost, order_steps
from ml_pipeline.trading.accounts.within_bar import within_steps
from ml_pipeline.trading.market.data import FloatArray

_STEPS, _ATTEMPTS = order_steps(NUMPY_OPS), within_steps(PLAIN_OPS)


class Place(NamedTuple):
    """The bar of a decision, counted from the session's first, and the asset."""

    bar: int
    asset: int


class OrderFills(NamedTuple):
    """Fills combined: signed quantity, mean price, costs, and the time of the last.

    If they are on both sides, the price is that of the last, and what the others lost or gained against it is in costs.
    """

    quantity: float
    price: float
    costs: float
    time: np.datetime64

    @classmethod
    def of(cls, fills: Sequence[Fill]) -> "OrderFills":
        if len(fills) == 1:
            return cls(float(fills[0].quantity), fills[0].price, fills[0].costs, fills[0].time)
        quantity, costs = float(sum(fill.quantity for fill in fills)), sum(fill.costs for fill in fills)
        value, last = sum(float(fill.quantity) * fill.price for fill in fills), max(fill.time for fill in fills)
        if len({fill.quantity > 0 for fill in fills}) == 1:
            return cls(quantity, value / quantity, costs, last)
        price = fills[-1].price
        return cls(quantity, price, costs + value - quantity * price, last)


class RecordedOrders:
    """The orders and fills of a session.

    orders: by the place of their decision; the last one if there are several. updates: the last one by order.
    fills: all fills of an order, by the place of its decision. booked: all fills in a row of the ledger, by the bar
    before that row. in_time: of those, the order's own, for orders that were decided at that bar. late: places with a
    booked fill of an earlier decision. waited: places of orders with such a fill. exits: positions that the broker
    closed itself, as `booked`.
    """

    def __init__(self, record: RecordedSession, backtest: SessionBacktest) -> None:
        self._bar_of = {time: k for k, time in enumerate(backtest.times.tolist())}
        self._asset_of = {symbol: a for a, symbol in enumerate(record.market.symbols)}
        self.updates: dict[str, OrderUpdate] = {update.client_order_id: update for update in record.updates}
        self.orders: dict[Place, SentOrder] = {}
        decided: dict[str, Place] = {}
        for order in record.orders:
            if (place := self.place(order.bar, order.symbol)) is not None:
                self.orders[place] = order
                decided[order.client_order_id] = place
        self.late, self.waited = set[Place](), set[Place]()
        fills, booked, in_time, exits = (defaultdict[Place, list[Fill]](list) for _ in range(4))
        rows: Sequence[np.datetime64 | None] = record.fill_bars or [None] * len(record.fills)
        for fill, row in zip(record.fills, rows, strict=True):
            if fill.exit:
                if row is not None and (at := self.place(row, fill.symbol)) is not None and at.bar > 0:
                    exits[at._replace(bar=at.bar - 1)].append(fill)
                continue
            if (place := decided.get(fill.client_order_id)) is None:
                continue
            if self.orders[place].client_order_id == fill.client_order_id:
                fills[place].append(fill)
            bar = None if row is None else self.bar(row)
            at = place if bar is None else Place(bar - 1, place.asset)
            if at.bar < 0:
                continue  # in the account before its first decision
            booked[at].append(fill)
            if at == place:
                in_time[at].append(fill)
            else:
                self.late.add(at)
                self.waited.add(place)
        self.fills, self.booked, self.in_time, self.exits = (
            {place: OrderFills.of(own) for place, own in found.items()} for found in (fills, booked, in_time, exits)
        )

    def bar(self, time: np.datetime64) -> int | None:
        """The bar of the session with this time, or None."""
        return self._bar_of.get(time.astype("datetime64[ns]").astype(np.int64).item())

    def place(self, time: np.datetime64, symbol: str) -> Place | None:
        bar, asset = self.bar(time), self._asset_of.get(symbol)
        return None if bar is None or asset is None else Place(bar, asset)

    def asset(self, symbol: str) -> int | None:
        return self._asset_of.get(symbol)


class AssumedFills:
    """The fills that the backtest assumes. Bars are counted from the session's first one."""

    def __init__(self, record: RecordedSession, backtest: SessionBacktest) -> None:
        market, part = record.market, slice(backtest.first, backtest.stop)
        self._rules = record.rules
        self._terms = record.rules.terms(market.periods_per_year)
        self._opens, self._closes = market.open[part], market.close[part]
        self._half_spread = None if market.half_spread is None else market.half_spread[part]
        self._days = backtest.interest_days
        self._opened_at = market.timing.opens(backtest.times)
        self._closed_at = self._opened_at + np.timedelta64(market.timing.length, "ns")

    def price(self, bar: int, asset: int, quantity: float, *, closing: bool = False) -> float:
        """Price of an order decided at `bar`: the next open, or the limit of a limit order if that is better.

        closing: the order has no limit.
        """
        if self._rules.fill_at == "close":
            return float(self._closes[bar, asset])
        opened = float(self._opens[bar + 1, asset])
        if self._rules.limit_bps is None or closing:
            return opened
        decided, inf = float(self._closes[bar, asset]), math.inf
        _, price = _ATTEMPTS.limit_order(quantity, 0.0, 0.0, decided, opened, -inf, inf, False, self._terms)
        return float(price)

    def close(self, bar: int, asset: int) -> float:
        return float(self._closes[bar, asset])

    def half_spread(self, bar: int, asset: int) -> float:
        return 0.0 if self._half_spread is None else float(self._half_spread[bar, asset])

    def costs(self, bar: int, asset: int, quantity: float, price: float) -> float:
        terms = self._terms
        rate = terms.buy_rate if quantity > 0 else terms.sell_rate
        return fill_cost(abs(quantity) * price, rate + self.half_spread(bar, asset), terms.fixed_fee)

    def interest(self, rows: Ledger, cash: FloatArray) -> FloatArray:
        """Borrowing and financing costs of each row by the terms, for the session's positions, (n,).

        cash: of each row, before these costs.
        """
        terms, positions = self._terms, [rows[name] for name in rows if name.startswith("position_")]
        values = np.column_stack(positions) * np.nan_to_num(self._closes)
        fee = _STEPS.borrowing_fee(values, terms.borrow_rate).sum(axis=1) * self._days
        if terms.maintenance > 0:
            fee = fee + np.maximum(-cash, 0.0) * (terms.financing_rate * self._days)
        else:  # a cash account pays at most its cash, unless it owes already
            fee = np.where(cash < 0.0, fee, np.minimum(fee, cash))
        fee[0] = 0.0
        return np.asarray(fee)

    def delay_s(self, bar: int, time: np.datetime64) -> float:
        """Seconds from the backtest's fill of an order of this bar to the actual fill."""
        at = self._closed_at[bar] if self._rules.fill_at == "close" else self._opened_at[bar + 1]
        return float((time - at) / np.timedelta64(1, "s"))

    def since_decision_s(self, bar: int, time: np.datetime64) -> float:
        """Seconds from the close of the decision's bar to the fill."""
        return float((time - self._closed_at[bar]) / np.timedelta64(1, "s"))

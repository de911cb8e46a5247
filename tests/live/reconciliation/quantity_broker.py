"""A broker by quantity for tests: whole shorts, fills at the next open, and faults that depend on a seed and a name."""

from collections.abc import Sequence
from decimal import Decimal
from random import Random
from typing import Any, NamedTuple

import numpy as np

from ml_pipeline.live.brokers.broker import (
    ENDED,
    AccountState,
    Adjustment,
    BrokerEvent,
    BrokerUnavailable,
    Charge,
    Fill,
    OrderRequest,
    OrderUpdate,
    QuantityRules,
    TradingSession,
)
from ml_pipeline.trading.market.bar_set import BarSet

SPLIT_AT = np.datetime64("2024-03-04T23:30", "ns")
"""The first bar at half the price."""
_BAR = np.timedelta64(5, "m")


class Faults(NamedTuple):
    """Rates from 0 to 1 of what goes wrong; slip: of the price; fee: money per fill; charge: money per charged bar.
    moved: of bars at whose close money and shares come or go without an order. split: bars from `SPLIT_AT` to the one
    before which the first symbol splits 2 for 1; None: no split."""

    part: float = 0.0
    reject: float = 0.0
    late: float = 0.0
    away: float = 0.0
    charged: float = 0.0
    moved: float = 0.0
    slip: float = 0.0
    fee: float = 0.0
    charge: float = 0.0
    split: int | None = None
    seed: int = 0


class QuantityBroker:
    """An account that takes quantities, and short positions of whole shares only."""

    name = "by-quantity"
    sizes_at_fill = False
    real_money = False

    def __init__(self, symbols: Sequence[str], cash: float, faults: Faults, quantities: QuantityRules) -> None:
        self.symbols, self.faults, self.quantities = tuple(symbols), faults, quantities
        self._cash, self._held = cash, dict.fromkeys(symbols, Decimal(0))
        self._closes = dict.fromkeys(symbols, 0.0)
        self._orders: dict[str, tuple[OrderRequest, OrderUpdate]] = {}
        self._events: list[BrokerEvent] = []
        self._now = np.datetime64("2000-01-01", "ns")
        self._away, self._has_split = 0, False

    def account(self) -> AccountState:
        self._answer()
        equity = self._cash + sum(float(n) * self._closes[symbol] for symbol, n in self._held.items())
        return AccountState(self._cash, equity, max(equity, 0.0), {s: n for s, n in self._held.items() if n})

    def orders(self, client_order_ids: Sequence[str] | None = None) -> list[OrderUpdate]:
        self._answer()
        updates = [update for _, update in self._orders.values()]
        if client_order_ids is None:
            return [update for update in updates if update.status not in ENDED]
        return [update for update in updates if update.client_order_id in client_order_ids]

    def submit(self, orders: Sequence[OrderRequest]) -> list[OrderUpdate]:
        self._answer()
        for order in orders:
            if order.client_order_id not in self._orders:
                rejected = self._meets("reject", order.client_order_id)
                self._note(order, "rejected" if rejected else "accepted", Decimal(0))
        return [self._orders[order.client_order_id][1] for order in orders]

    def cancel(self, client_order_ids: Sequence[str]) -> None:
        for update in self.orders():
            if update.client_order_id in client_order_ids:
                self._note(self._orders[update.client_order_id][0], "canceled", update.filled_quantity)

    def market_closed_bar(self, bars: BarSet) -> None:
        if bars.closed_at <= self._now:
            return
        self._now, late = bars.time, self.faults.split
        if late is not None and bars.time >= SPLIT_AT + late * _BAR and not self._has_split:
            self._has_split = True
            self._adjust("split", self.symbols[0], self._held[self.symbols[0]], 0.0, "split")
        for order, update in list(self._orders.values()):
            if update.status not in ENDED and not self._meets("late", f"{order.client_order_id}{bars.time}"):
                self._fill(order, update, bars)
        self._now = bars.closed_at
        self._closes |= {s: c for s, c in zip(self.symbols, bars.close.tolist(), strict=True) if c > 0}
        if self._meets("charged", str(bars.time)):
            self._cash -= self.faults.charge
            self._events.append(Charge(f"c{bars.time}", self.faults.charge, "interest", self._now))
        if self._meets("moved", str(bars.time)):
            self._adjust(f"d{bars.time}", "", Decimal(0), 250.0)
            self._adjust(f"t{bars.time}", self.symbols[0], Decimal(3) - self._held[self.symbols[0]] // 2, 0.0)
        self._away = max(self._away - 1, 0) or (3 if self._meets("away", str(bars.time)) else 0)

    def poll(self, cursor: str | None) -> tuple[list[BrokerEvent], str | None]:
        self._answer()
        events = self._events[int(cursor or 0) :]
        return events, str(int(cursor or 0) + len(events)) if events else cursor

    def now(self) -> np.datetime64:
        return self._now

    def sessions(self, first: np.datetime64, last: np.datetime64) -> list[TradingSession]:
        self._answer()
        return []

    def close(self) -> None:
        pass

    def _fill(self, order: OrderRequest, update: OrderUpdate, bars: BarSet) -> None:
        i, buys = self.symbols.index(order.symbol), order.quantity > 0
        opened, limit = float(bars.open[i]), order.limit_price
        price = opened * (1.0 + self.faults.slip * self._drawn("slip", order.client_order_id))
        if limit is not None:
            if not (bars.low[i] < limit if buys else bars.high[i] > limit):
                return
            price = min(opened, limit) if buys else max(opened, limit)
        rest = order.quantity - update.filled_quantity
        is_part = self._meets("part", f"{order.client_order_id}{bars.time}")
        quantity = (rest / 2).quantize(Decimal("0.001")) if is_part else rest
        if not quantity:
            return
        name = f"{len(self._events)}-{order.client_order_id}"
        self._events.append(
            Fill(name, order.client_order_id, order.symbol, quantity, price, self.faults.fee, self._now)
        )
        self._cash -= float(quantity) * price + self.faults.fee
        self._held[order.symbol] += quantity
        self._note(order, "filled" if quantity == rest else "partly_filled", update.filled_quantity + quantity)

    def _adjust(self, name: str, symbol: str, quantity: Decimal, cash: float, kind: Any = "transfer") -> None:
        self._cash += cash
        if symbol:
            self._held[symbol] += quantity
        self._events.append(Adjustment(name, kind, symbol, quantity, cash, "", self._now))

    def _note(self, order: OrderRequest, status: Any, filled: Decimal) -> None:
        update = OrderUpdate(order.client_order_id, order.symbol, status, order.quantity, filled, self._now, status)
        self._orders[order.client_order_id] = order, update
        self._events.append(update)

    def _answer(self) -> None:
        if self._away:
            raise BrokerUnavailable("the broker is away")

    def _meets(self, what: str, name: str) -> bool:
        return self._drawn(what, name) < getattr(self.faults, what)

    def _drawn(self, what: str, name: str) -> float:
        return Random(f"{self.faults.seed} {what} {name}").random()

"""Fill orders with a bar, and create the broker's events about it.

An order is ready for a bar if it is in the market before the bar closes; of several for one symbol the latest counts.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from ml_pipeline.live.brokers.account import BarResult, MarketAccount
from ml_pipeline.live.brokers.broker import Charge, Fill, OrderStatus, OrderUpdate
from ml_pipeline.live.brokers.faults import Chance
from ml_pipeline.live.brokers.store import Change, StoredOrder
from ml_pipeline.trading.accounts.bar_by_bar import BarPrices, Filled

Time = np.datetime64

_NO_BAR = "there was no bar to fill it in"
_NOT_REACHED = "the market did not reach its limit, or too little cash is left"
_NOTHING = "nothing to trade"
_REST_CANCELED = "filled in part; the rest is canceled"
_REPLACED = "a later order replaced it"


class Moment(NamedTuple):
    """The data of a decision: closes, half-spreads and whether there is a bar, each (A,)."""

    closed_at: Time
    closes: list[float]
    half_spreads: list[float]
    fillable: list[bool]


class Span(NamedTuple):
    """When a bar opens and closes."""

    opened: Time
    closed_at: Time


class Ready(NamedTuple):
    """An order that is in the market in a bar. latency: fraction of the bar that had passed when it arrived, 0 to 1.
    part: fraction that faults allow to be filled."""

    order: StoredOrder
    latency: float
    part: float


class Matching:
    """Fills the orders of an account, bar by bar."""

    def __init__(self, symbols: Sequence[str], account: MarketAccount, chance: Chance, *, keeps_rest: bool) -> None:
        self._symbols, self._account, self._chance = tuple(symbols), account, chance
        self._keeps_rest = keeps_rest
        self._limited = account.rules.limit_bps is not None

    def match(
        self,
        orders: Iterable[StoredOrder],
        bar: BarPrices,
        had: Moment,
        *,
        span: Span,
        days: float | None,
        first_number: int,
    ) -> Change:
        """Fill the open orders with a bar, and end the bar. Returns the change.

        had: the data of their decision. days: see `MarketAccount.step`. first_number: ID of the first fill or charge.
        """
        change = Change()
        ready = self._ready(orders, change, span)
        can_fill = self._account.can_fill(bar, had.closes, had.fillable)
        weights, late_at = self._targets(ready), {}
        for i in [i for i in ready if not can_fill[i]]:
            self._update(change, ready.pop(i).order, "expired", span.closed_at, reason=_NO_BAR)
        for i, (order, latency, part) in ready.items():
            if latency > 0.0:
                late_at[i] = bar.opens[i] + (bar.closes[i] - bar.opens[i]) * latency
            weights[i] = self._weight(
                i, order, part, had.closes[i] if self._sized_before else late_at.get(i, bar.opens[i])
            )
        told = self._account.step(
            bar,
            had.closes,
            had.half_spreads,
            weights=weights,
            may_trade=[i in ready for i in range(len(weights))],
            late_at=late_at,
            days=days,
            closing=bool(ready) and all(each.order.request.closing for each in ready.values()),
        )
        numbers = iter(range(first_number, first_number + 4 * len(weights) + 1))
        at_close = self._account.rules.fill_at == "close"
        fills_from = Span(had.closed_at, had.closed_at) if at_close else span
        self._tell_orders(change, ready, told, numbers, fills_from)
        self._tell_rest(change, told, numbers, span.closed_at, days=days)
        return change

    @property
    def _sized_before(self) -> bool:
        rules = self._account.rules
        return self._limited or rules.sizes_at_decision or rules.fill_at == "close"

    def _ready(self, orders: Iterable[StoredOrder], change: Change, span: Span) -> dict[int, Ready]:
        """The ready orders by index of the symbol, in its order; an order that a later one replaces is canceled."""
        ready: dict[int, Ready] = {}
        opened, closed_at = span
        for order in sorted(orders, key=lambda each: each.number):
            latency = 0.0
            if order.arrives is not None and order.arrives > opened:
                latency = float((order.arrives - opened) / (closed_at - opened)) if closed_at > opened else 1.0
            if latency >= 1.0 or (latency > 0.0 and self._limited):
                continue
            i = self._symbols.index(order.request.symbol)
            if i in ready:
                self._update(change, ready[i].order, "canceled", closed_at, reason=_REPLACED)
            whole = order.update.status == "accepted"
            ready[i] = Ready(order, latency, self._chance.part_filled(order.request.client_order_id) if whole else 1.0)
        return dict(sorted(ready.items()))

    def _targets(self, ready: dict[int, Ready]) -> list[float]:
        """The weight of each symbol in the sum of targets: of its order, or from `targets` of another order."""
        told = (each.order.request.targets for each in ready.values())
        weights = list(next((targets for targets in told if targets is not None), [0.0] * len(self._symbols)))
        for i, each in ready.items():
            weights[i] = 0.0 if each.order.request.closing else each.order.request.weight
        return weights

    def _weight(self, i: int, order: StoredOrder, part: float, price: float) -> float:
        """The target for the kernel: that of the order, or a point on the way to it if only a part is filled."""
        weight = 0.0 if order.request.closing else order.request.weight
        if self._account.rules.action_mode == "trade" and not order.request.closing:
            is_rest = order.update.status == "partly_filled"
            return weight * (1.0 - self._chance.part_filled(order.request.client_order_id) if is_rest else part)
        if part == 1.0:
            return weight
        now = self._account.weight_at(i, price)
        return now + part * (weight - now)

    def _tell_orders(
        self, change: Change, ready: dict[int, Ready], told: BarResult, numbers: Iterator[int], span: Span
    ) -> None:
        """Add the events of the orders: fills and new states. span: first and last possible time of a fill."""
        for i, (order, latency, part) in ready.items():
            price, time = told.tried_at[i], span.opened + (span.closed_at - span.opened) * latency
            if (filled := told.filled.get(i)) is None:
                lapses = self._limited and not order.request.closing
                reason = _NOT_REACHED if lapses else _NOTHING
                self._update(change, order, "expired" if lapses else "filled", time, price=price, reason=reason)
                continue
            change.events.append(self._fill(next(numbers), i, filled, time, order.request.client_order_id))
            status: OrderStatus = "filled" if part == 1.0 else "partly_filled" if self._keeps_rest else "canceled"
            reason = _REST_CANCELED if status == "canceled" else ""
            self._update(change, order, status, time, price=price, filled=filled.quantity, reason=reason)

    def _tell_rest(
        self, change: Change, told: BarResult, numbers: Iterator[int], time: Time, *, days: float | None
    ) -> None:
        for i, filled in told.exited.items():
            change.events.append(self._fill(next(numbers), i, filled, time)._replace(exit=True))
        for i, filled in told.called.items():
            change.events.append(self._fill(next(numbers), i, filled, time)._replace(margin_called=True))
        if told.interest or told.margin_called or days:
            what = "borrowing" if self._account.rules.financing_bps_per_year is None else "borrowing and financing"
            charge = Charge(str(next(numbers)), told.interest, what, time, days, told.margin_called)
            change.events.append(charge)

    def _fill(self, number: int, i: int, filled: Filled, time: Time, order_id: str = "") -> Fill:
        return Fill(str(number), order_id, self._symbols[i], *filled, time)

    def _update(
        self,
        change: Change,
        order: StoredOrder,
        status: OrderStatus,
        time: Time,
        *,
        price: float | None = None,
        filled: float = 0.0,
        reason: str = "",
    ) -> None:
        total = order.update.filled_quantity + filled
        quantity = total if status == "filled" else None
        update = OrderUpdate(
            order.request.client_order_id, order.request.symbol, status, quantity, total, time, reason, price
        )
        change.changed.append(order._replace(update=update))
        change.events.append(update)


def canceled(orders: Iterable[StoredOrder], time: Time) -> Change:
    """The change that cancels open orders on request."""
    change = Change()
    for order in orders:
        update = order.update._replace(status="canceled", time=time, reason="as asked", price=None)
        change.changed.append(order._replace(update=update))
        change.events.append(update)
    return change

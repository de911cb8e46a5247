"""Fill orders with a bar, and create the broker's events about it.

An order is ready for a bar if it is in the market before the bar closes; of several for one symbol the latest counts.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from ml_pipeline.live.brokers.account import BarResult, MarketAccount
from ml_pipeline.live.brokers.broker import Charge, Fill, OrderRequest, OrderStatus, OrderUpdate, exact
from ml_pipeline.live.brokers.faults import Chance
from ml_pipeline.live.brokers.store import Change, StoredOrder
from ml_pipeline.trading.accounts.bar_by_bar import BarPrices, Filled

Time = np.datetime64

_NO_BAR = "there was no bar to fill it in"
_NOT_REACHED = "the market did not reach its limit, or too little cash is left"
_NOTHING = "nothing to trade"
_REST_CANCELED = "filled in part; the rest is canceled"
_NO_PART = "no part of it was filled"
_NO_REST = "nothing of the rest can be filled"
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
    part: fraction that faults allow to be filled. outlived: the first bar after its decision has passed."""

    order: StoredOrder
    latency: float
    part: float
    outlived: bool

    @property
    def is_plain(self) -> bool:
        """Whether only its weight decides what is filled."""
        return self.part == 1.0 and not self.outlived and self.order.request.limit_price is None


class Matching:
    """Fills the orders of an account, bar by bar."""

    def __init__(self, symbols: Sequence[str], account: MarketAccount, chance: Chance, *, keeps_rest: bool) -> None:
        self._symbols, self._account, self._chance = tuple(symbols), account, chance
        self._keeps_rest = keeps_rest
        rules = account.rules
        self._limited, self._limit = rules.limit_bps is not None, (rules.limit_bps or 0.0) / 10_000
        self._at_close = rules.fill_at == "close"
        self._sized_before = self._limited or rules.sizes_at_decision

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
        ready = self._ready(orders, change, span, had.closed_at)
        can_fill = self._account.can_fill(bar, had.closes, had.fillable)
        weights = self._targets(ready)
        for i in [i for i in ready if not can_fill[i]]:
            self._update(change, ready.pop(i).order, "expired", span.closed_at, reason=_NO_BAR)
        decided, prices = list(had.closes), list(had.closes if self._at_close else bar.opens)
        for i, (order, latency, *_) in ready.items():
            decided[i] = self._decided_close(order.request, had.closes[i])
            if latency > 0.0:
                prices[i] = bar.opens[i] + (bar.closes[i] - bar.opens[i]) * latency
        closing = bool(ready) and all(each.order.request.closing for each in ready.values())
        may_trade = self._keep_to_orders(ready, weights, decided, prices, closing=closing)
        told = self._account.step(
            bar,
            prices,
            decided=decided,
            half_spreads=had.half_spreads,
            weights=weights,
            may_trade=may_trade,
            days=days,
            closing=closing,
        )
        numbers = iter(range(first_number, first_number + 4 * len(weights) + 1))
        fills_from = Span(had.closed_at, had.closed_at) if self._at_close else span
        self._tell_orders(change, ready, told, numbers, fills_from)
        self._tell_rest(change, told, numbers, span.closed_at, days=days)
        return change

    def _ready(self, orders: Iterable[StoredOrder], change: Change, span: Span, decided_at: Time) -> dict[int, Ready]:
        """The ready orders by index of the symbol, in its order; an order that a later one replaces is canceled.

        decided_at: close of the bar before this one.
        """
        ready: dict[int, Ready] = {}
        opened, closed_at = span
        for order in sorted(orders, key=lambda each: each.number):
            latency = 0.0
            if order.arrives is not None and order.arrives > opened:
                latency = float((order.arrives - opened) / (closed_at - opened)) if closed_at > opened else 1.0
            if latency >= 1.0 or (latency > 0.0 and self._limited and not order.request.closing):
                continue
            i = self._symbols.index(order.request.symbol)
            if i in ready:
                self._update(change, ready[i].order, "canceled", closed_at, reason=_REPLACED)
            is_rest = order.update.status == "partly_filled"
            part = 1.0 if is_rest else self._chance.part_filled(order.request.client_order_id)
            ready[i] = Ready(order, latency, part, is_rest or bool(order.update.time < decided_at))
        return dict(sorted(ready.items()))

    def _targets(self, ready: dict[int, Ready]) -> list[float]:
        """The weight of each symbol in the sum of targets: of its order, or from `targets` of another order."""
        told = (each.order.request.targets for each in ready.values())
        weights = list(next((targets for targets in told if targets is not None), [0.0] * len(self._symbols)))
        for i, each in ready.items():
            weights[i] = 0.0 if each.order.request.closing else each.order.request.weight
        return weights

    def _decided_close(self, request: OrderRequest, close: float) -> float:
        """The close from which the rules compute the limit of this order: the last one, unless its bar has passed."""
        limit = request.limit_price
        if limit is None or request.closing or not self._limited:
            return close
        side = math.copysign(1.0, float(request.quantity))
        distance = 1.0 - side * self._limit  # as in the kernel, to the bit
        if close * distance == limit:
            return close
        decided = limit / distance
        while side * (decided * distance - limit) > 0.0:  # rounding must not make the limit worse
            decided = math.nextafter(decided, -side * math.inf)
        return decided

    def _keep_to_orders(
        self, ready: dict[int, Ready], weights: list[float], decided: list[float], prices: list[float], *, closing: bool
    ) -> list[bool]:
        """Change `weights` so that each order keeps its side, its limit and its quantity, and is filled only to its
        part. Returns whether each symbol trades, (A,).

        An order whose size was fixed at its decision has what is left of its quantity once its bar has passed.
        """
        may_trade = [i in ready for i in range(len(weights))]
        if all(each.is_plain for each in ready.values()):
            return may_trade
        relative, sizing = self._account.rules.action_mode == "trade", decided if self._sized_before else prices
        for i, (order, *_) in ready.items():
            if relative and not self._sized_before and order.update.status == "partly_filled":
                weights[i] *= 1.0 - self._chance.part_filled(order.request.client_order_id)
        sized, equity = self._account.sized(weights, may_trade, sizing, closing=closing)
        wanted = list(sized)
        for i, (order, _, part, outlived) in ready.items():
            request = order.request
            rest = float(request.quantity) - float(order.update.filled_quantity)
            if outlived and self._sized_before and not request.closing:
                wanted[i] = rest
            if (limit := request.limit_price) is not None and not request.closing:
                wanted[i] = min(max(wanted[i], min(rest, 0.0)), max(rest, 0.0))
                if not self._limited and wanted[i] * (prices[i] - limit) > 0.0:
                    wanted[i] = 0.0
            if wanted[i]:
                wanted[i] *= part
            else:
                may_trade[i], ready[i] = False, ready[i]._replace(part=1.0)
        if wanted != sized and equity > 0.0:
            weights[:] = [0.0] * len(weights)  # the sizes are within the gross limit already
            for i in ready:
                weights[i] = self._account.weight_of(i, wanted[i], sizing[i], equity, closing=closing)
        return may_trade

    def _tell_orders(
        self, change: Change, ready: dict[int, Ready], told: BarResult, numbers: Iterator[int], span: Span
    ) -> None:
        """Add the events of the orders: fills and new states. span: first and last possible time of a fill."""
        for i, (order, latency, part, _) in ready.items():
            is_rest = order.update.status == "partly_filled"
            price, time = told.tried_at[i], span.opened + (span.closed_at - span.opened) * latency
            rest: OrderStatus = "partly_filled" if self._keeps_rest else "canceled"
            if (filled := told.filled.get(i)) is None:
                lapses = not order.request.closing and (self._limited or order.request.limit_price is not None)
                whole: OrderStatus = "canceled" if is_rest else "filled"
                status: OrderStatus = "expired" if lapses else whole if part == 1.0 else rest
                reason = _NOT_REACHED if lapses else _NO_PART if part != 1.0 else _NO_REST if is_rest else _NOTHING
                self._update(change, order, status, time, price=price, reason=reason)
                continue
            check_limit(order.request, filled)
            change.events.append(self._fill(next(numbers), i, filled, time, order.request.client_order_id))
            status = "filled" if part == 1.0 else rest
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
        return Fill(str(number), order_id, self._symbols[i], exact(filled.quantity), filled.price, filled.costs, time)

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
        total = exact(float(order.update.filled_quantity) + filled)  # the kernel counts in floats
        quantity = total if status == "filled" else None
        update = OrderUpdate(
            order.request.client_order_id, order.request.symbol, status, quantity, total, time, reason, price
        )
        change.changed.append(order._replace(update=update))
        change.events.append(update)


def check_limit(request: OrderRequest, filled: Filled) -> None:
    """Raise AssertionError if a fill is worse than the limit of its order, or on the other side."""
    limit = request.limit_price
    if limit is None or request.closing:
        return
    is_better = filled.price <= limit if filled.quantity > 0.0 else filled.price >= limit
    assert is_better, f"{request} was filled at {filled.price!r}, beyond its limit"
    assert filled.quantity * float(request.quantity) > 0.0, (
        f"{request} was filled with {filled.quantity!r}, on the other side"
    )


def canceled(orders: Iterable[StoredOrder], time: Time) -> Change:
    """The change that cancels open orders on request."""
    change = Change()
    for order in orders:
        update = order.update._replace(status="canceled", time=time, reason="as asked", price=None)
        change.changed.append(order._replace(update=update))
        change.events.append(update)
    return change

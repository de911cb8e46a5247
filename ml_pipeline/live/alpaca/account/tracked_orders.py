"""The loop's orders, each of which is one order at Alpaca, or two where it goes through zero."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal

from ml_pipeline.live.alpaca.account.order_book import OrderBook
from ml_pipeline.live.alpaca.account.order_progress import BrokerOrder
from ml_pipeline.live.alpaca.account.order_terms import FIRST_LEG
from ml_pipeline.live.brokers.broker import OrderStatus, OrderUpdate

_UNKNOWN_FOR_S = 60.0
"""An order whose answer was lost, and that is not there after this, was never taken."""
_KEPT = 2_000
"""Orders that have ended are kept in memory up to this number, for whoever asks again."""


@dataclass
class Tracked:
    """An order of the loop. number: the how many-th this process has to do with.

    legs: ids of Alpaca's orders for it. rest: what is sent once the first of two is filled. quantity: what Alpaca was
    asked for in all; None where an earlier process asked. note: what is not as the loop asked for it.
    """

    client_order_id: str
    symbol: str
    number: int
    legs: list[str] = field(default_factory=list)
    quantity: Decimal | None = None
    rest: Decimal = Decimal(0)
    limit_price: float | None = None
    note: str = ""
    tried_at: float = field(default_factory=time.monotonic)


class TrackedOrders:
    """Every order that was sent or asked for, by the loop's id."""

    def __init__(self, book: OrderBook) -> None:
        self._book = book
        self._tracked: dict[str, Tracked] = {}
        self.number = 0
        """How many there were so far."""

    def __iter__(self) -> Iterator[Tracked]:
        return iter([*self._tracked.values()])

    def get(self, name: str) -> Tracked | None:
        return self._tracked.get(name)

    def track(self, name: str, *, symbol: str = "", legs: Sequence[str] = ()) -> Tracked:
        """The order of this id, and that these are Alpaca's orders for it."""
        tracked = self._tracked.setdefault(name, Tracked(name, symbol, 0))
        if not tracked.number or self.never_came(tracked):
            self.number += 1
            tracked.number, tracked.tried_at = self.number, time.monotonic()
        tracked.symbol = tracked.symbol or symbol
        tracked.legs += [leg for leg in legs if leg not in tracked.legs]
        return tracked

    def track_found(self, name: str) -> Tracked:
        """The order of this id, with all that the book has for it."""
        return self.track(name, legs=self.legs(name))

    def untrack(self, name: str) -> None:
        self._tracked.pop(name, None)

    def legs(self, name: str) -> list[str]:
        """The ids of Alpaca's orders for it that are known."""
        return [leg for leg in (name + FIRST_LEG, name) if self._book.get(leg) is not None]

    def found(self, tracked: Tracked) -> list[BrokerOrder]:
        """Alpaca's orders for it that are known."""
        return [order for order in map(self._book.get, tracked.legs) if order is not None]

    def update(self, tracked: Tracked) -> OrderUpdate:
        """The state of all its parts together; at least one is known."""
        orders = self.found(tracked)
        filled = sum((order.sign * order.filled for order in orders), Decimal(0))
        quantity = tracked.quantity
        if quantity is None:
            quantity = sum((order.sign * order.quantity for order in orders), Decimal(0))
        status: OrderStatus = "partly_filled" if filled else "accepted"
        if self.has_ended(tracked):
            status = next((order.status for order in orders if order.status != "filled"), "filled")
            if status == "filled" and abs(filled) < abs(quantity):
                status = "canceled"  # its second part was not taken
        last = max(orders, key=lambda order: order.updated)
        return OrderUpdate(
            tracked.client_order_id, last.symbol, status, float(quantity), float(filled), last.updated, tracked.note
        )

    def has_ended(self, tracked: Tracked) -> bool:
        """Whether nothing more will happen to it."""
        return bool(tracked.legs) and not tracked.rest and all(self.leg_has_ended(leg) for leg in tracked.legs)

    def leg_has_ended(self, leg: str) -> bool:
        order = self._book.get(leg)
        return order is not None and order.ended

    def never_came(self, tracked: Tracked) -> bool:
        """Whether an order whose answer was lost is not there after a long time."""
        return not self.found(tracked) and time.monotonic() > tracked.tried_at + _UNKNOWN_FOR_S

    def forget_old(self) -> None:
        ended = [tracked for tracked in self if self.has_ended(tracked)]
        for tracked in ended[: max(len(ended) - _KEPT, 0)]:
            self.untrack(tracked.client_order_id)
            for leg in tracked.legs:
                self._book.forget(leg)


def name_of(leg: str) -> str:
    """The loop's id of an order at Alpaca."""
    return leg.removesuffix(FIRST_LEG)

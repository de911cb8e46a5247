"""What happened to orders at Alpaca since the caller last asked, each fill told once."""

import secrets
import time
from collections.abc import Callable, Sequence
from decimal import Decimal

import numpy as np

from ml_pipeline.live.alpaca.account.event_cursor import EventCursor, ToldRequest
from ml_pipeline.live.alpaca.account.order_book import OrderBook
from ml_pipeline.live.alpaca.account.order_entry import OrderEntry
from ml_pipeline.live.alpaca.account.order_progress import Told, fill_of_rest, fills_of
from ml_pipeline.live.alpaca.account.tracked_orders import Tracked, TrackedOrders, name_of
from ml_pipeline.live.alpaca.account.update_stream import UpdateStream
from ml_pipeline.live.brokers.broker import BrokerEvent

_ASK_EVERY_S = 0.2
_CLOCKS_DIFFER = np.timedelta64(5, "s")
"""At most: Alpaca's clock, and the one that orders are stamped with."""


class OrderEvents:
    """The stream tells of orders at once; those that have not ended are asked for as well, for it may be silent."""

    def __init__(
        self,
        book: OrderBook,
        tracked: TrackedOrders,
        entry: OrderEntry,
        stream: UpdateStream,
        now: Callable[[], np.datetime64],
    ) -> None:
        self._book = book
        self._tracked = tracked
        self._entry = entry
        self._stream = stream
        self._now = now
        self._run = secrets.token_hex(8)
        self._asked_at = -np.inf

    def since(self, told: EventCursor) -> tuple[list[BrokerEvent], EventCursor]:
        """The events that the caller does not know, and what it knows after them."""
        for name, request in told.requests.items():
            self._tracked.track(name, legs=list(request.legs) or [name])
        if told.run not in ("", self._run) and told.after is not None:
            # The process before may have ended between sending orders and telling of them.
            for order in self._book.ask_recent(told.after):
                if order.submitted > told.after:
                    self._tracked.track_found(name_of(order.client_order_id))
        news = [each for each in self._tracked if self._may_have_news(each, told)]
        self._ask_for([each for each in news if not self._tracked.has_ended(each)])
        self._entry.send_second_legs([each.client_order_id for each in news])
        events: list[BrokerEvent] = []
        after = EventCursor(self._run, self._tracked.number, self._latest(told.after))
        for tracked in news:
            request = told.requests.get(tracked.client_order_id, ToldRequest())
            events += self._events(tracked, request)
            if not self._tracked.has_ended(tracked) and not self._tracked.never_came(tracked):
                after.requests[tracked.client_order_id] = request
        self._tracked.forget_old()
        return events, after

    def _latest(self, before: np.datetime64 | None) -> np.datetime64:
        """When the latest order was sent; before the first one, a time before it."""
        sent = [order.submitted for tracked in self._tracked for order in self._tracked.found(tracked)]
        if before is None and not sent:
            return self._now() - _CLOCKS_DIFFER
        return max([*sent, *([] if before is None else [before])])

    def _may_have_news(self, tracked: Tracked, told: EventCursor) -> bool:
        if tracked.client_order_id in told.requests:
            return True
        return told.run != self._run or tracked.number > told.number

    def _ask_for(self, tracked: Sequence[Tracked]) -> None:
        if tracked and (self._stream.listening_since is None or time.monotonic() > self._asked_at + _ASK_EVERY_S):
            self._book.refresh(leg for each in tracked for leg in each.legs)
            self._asked_at = time.monotonic()

    def _events(self, tracked: Tracked, request: ToldRequest) -> list[BrokerEvent]:
        """What the caller does not know of one order; notes in `request` that it does now."""
        events: list[BrokerEvent] = []
        named = tracked.client_order_id
        for order in self._tracked.found(tracked):
            told = request.legs.setdefault(order.client_order_id, Told())
            fills, has_gap = fills_of(order, told, self._book.executions(order.order_id), named=named)
            if has_gap:
                self._book.ask_executions([order])
                more, has_gap = fills_of(order, told, self._book.executions(order.order_id), named=named)
                fills += more
            events += [*fills, fill_of_rest(order, told, named=named)] if has_gap else fills
        if request.legs:
            update = self._tracked.update(tracked)
            filled = sum((told.filled for told in request.legs.values()), Decimal(0))
            if (update.status, filled) != (request.status, request.filled):
                request.status, request.filled = update.status, filled
                last = max([update.time, *(event.time for event in events)])
                events.append(update._replace(time=last))
        return events

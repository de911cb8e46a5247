"""The orders of a session between the journal and the broker: written, sent, asked for, canceled, ended.

An order is in the journal before it is sent, under an id that follows from its decision, so that a broker takes it only
once. What the broker made of one whose answer was lost is asked for by that id.
"""

import hashlib
import math
import re
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, NamedTuple

import numpy as np

from ml_pipeline.live.brokers.broker import (
    ENDED,
    Broker,
    BrokerEvent,
    Fill,
    OrderRequest,
    OrderUpdate,
)
from ml_pipeline.live.record.journal import MISSED, REFUSED, WRITTEN, OrderRecord
from ml_pipeline.live.record.session_log import time_text
from ml_pipeline.live.record.session_record import SessionRecord
from ml_pipeline.trading.market.bar_set import BarSet

LONGEST_ID = 48
"""What every broker takes as a client order id."""
_SYMBOL_SHOWN = 16
_DIGEST_SIZE = 12


def client_order_id(session_id: str, bar_time: np.datetime64, symbol: str, *, purpose: str = "") -> str:
    """The id of the order for `symbol` that a session decides at the bar of this time.

    At most 48 letters, digits, dashes and underscores: the time and the symbol to read, and a digest of everything.
    The time comes first, so that a table of orders by id grows at its end.
    purpose: tells a second order for the symbol at the same bar, such as "flatten", from the first.

    >>> client_order_id("eurusd", np.datetime64("2024-03-01T09:35"), "EUR/USD")
    '20240301T093500-EUR_USD-f3697d114dc2'
    """
    time = bar_time.astype("datetime64[ns]")
    whole = repr((session_id, str(time), symbol, purpose))
    digest = hashlib.blake2b(whole.encode(), digest_size=_DIGEST_SIZE // 2).hexdigest()
    shown = re.sub(r"[^A-Za-z0-9]", "_", symbol)[:_SYMBOL_SHOWN]
    second = re.sub(r"[-:]", "", str(time.astype("datetime64[s]")))
    return f"{second}-{shown}-{digest}"


def closing_orders(
    held: Iterable[tuple[str, float]],
    *,
    session_id: str,
    bar_time: np.datetime64,
    purpose: Literal["flatten", "difference"],
) -> list[OrderRequest]:
    """An order for each symbol of which something is held. held: (symbol, signed quantity). purpose: in their ids."""
    return [
        OrderRequest(client_order_id(session_id, bar_time, symbol, purpose=purpose), symbol, -n, 0.0, closing=True)
        for symbol, n in held
        if n
    ]


_OPEN = (WRITTEN, "accepted", "partly_filled")
_CANCEL_WAIT_S = 2.0
_CANCEL_LOOK_S = 0.1


class OpenOrder(NamedTuple):
    """An order that has not ended. number, time, closed_at: of the bar that it was decided at. close: there; NaN
    of a symbol that the session does not trade."""

    request: OrderRequest
    number: int
    time: np.datetime64
    closed_at: np.datetime64
    close: float
    status: str
    filled: float = 0.0


class OrderManager:
    """Keeps the open orders of a session. Raises BrokerUnavailable wherever the broker does."""

    def __init__(self, broker: Broker, record: SessionRecord, symbols: Sequence[str]) -> None:
        self._broker = broker
        self._record = record
        self._journal = record.journal
        self._symbols = tuple(symbols)
        self._state = record.state
        self._cursor = self._state.event_cursor  # of the events that were taken in
        self._events: list[BrokerEvent] = []
        self._open: dict[str, OpenOrder] = {}
        for order in self._journal.orders(statuses=_OPEN):
            self._open[order.request.client_order_id] = self._placed(order)

    @property
    def open(self) -> tuple[OpenOrder, ...]:
        """The orders that have not ended, as far as is known."""
        return tuple(self._open.values())

    @property
    def unsent(self) -> tuple[OpenOrder, ...]:
        """Those of them that are not known to have been sent."""
        return tuple(each for each in self._open.values() if each.status == WRITTEN)

    def write(self, number: int, orders: Iterable[OrderRequest], bars: BarSet, closes: Sequence[float]) -> None:
        """Write down the orders that were decided at these bars, within a transaction. closes: the last ones."""
        orders = list(orders)
        self._journal.add_orders(number, orders)
        for order in orders:
            close = closes[self._symbols.index(order.symbol)]
            self._open[order.client_order_id] = OpenOrder(order, number, bars.time, bars.closed_at, close, WRITTEN)

    def refuse(self, number: int, orders: Iterable[OrderRequest], reason: str) -> None:
        """Write down orders that a guard refused, within a transaction."""
        orders = list(orders)
        self._journal.add_orders(number, orders, status=REFUSED, reason=reason)
        self.note_expired(order.symbol for order in orders)

    def note_expired(self, symbols: Iterable[str]) -> None:
        """The latest choice of these symbols was not carried out. Within a transaction."""
        self._state.expired.update(symbols)

    def take_expired(self) -> list[str]:
        """The symbols whose orders ended unfilled since this was asked before. Within a transaction."""
        expired = [symbol for symbol in self._symbols if symbol in self._state.expired]
        if expired:
            self._state.expired.clear()
        return expired

    def send(self) -> None:
        """Send what is written, and write the answers down."""
        if orders := [each.request for each in self.unsent]:
            self._answered(orders, self._broker.submit(orders))

    def settle_unsent(self, in_time: Callable[[OpenOrder], bool]) -> None:
        """Ask for each order that was written and perhaps not sent. One that the broker does not know is sent if it is
        still in time, and else was missed."""
        unsent = self.unsent
        if not unsent:
            return
        known = self._broker.orders([each.request.client_order_id for each in unsent])
        names = {update.client_order_id for update in known}
        unknown = [each for each in unsent if each.request.client_order_id not in names]
        with self._record.transaction():
            for update in known:  # whose answer was lost
                placed = self._open[update.client_order_id]
                self._record.log("order", placed.time, **placed.request._asdict())
                self.note(update)
            for each in unknown:
                if not in_time(each):
                    self._note_missed(each)
        self.send()

    def collect(self) -> None:
        """Take in what happened since the last time, after canceling what is still open of earlier decisions.

        It is kept until `take_events`, also where the broker goes away in the middle.
        """
        self._poll()
        left = self._still_open()
        if not left:
            return
        self._broker.cancel(left)
        deadline = time.monotonic() + _CANCEL_WAIT_S
        while True:
            anything = self._poll()
            left = self._still_open()
            if not left or time.monotonic() > deadline:
                return
            if not anything:
                ended = [update for update in self._broker.orders(left) if update.status in ENDED]
                self._events += ended
                self._poll()  # the fills that belong to their ends
                if len(ended) == len(left):
                    return
                time.sleep(_CANCEL_LOOK_S)

    def look(self) -> bool:
        """Take in what happened since the last time. Returns whether anything did."""
        return self._poll()

    def take_events(self) -> list[BrokerEvent]:
        """What was taken in; within the transaction that books it, which writes the cursor down as well."""
        self._state.event_cursor = self._cursor
        events, self._events = self._events, []
        return events

    def _poll(self) -> bool:
        events, self._cursor = self._broker.poll(self._cursor)
        self._events += events
        return bool(events)

    def _still_open(self) -> list[str]:
        ended = {e.client_order_id for e in self._events if isinstance(e, OrderUpdate) and e.status in ENDED}
        return [name for name, each in self._open.items() if each.status != WRITTEN and name not in ended]

    def note(self, update: OrderUpdate) -> None:
        """What the broker says about an order. Within a transaction."""
        name = update.client_order_id
        if not self._journal.update_order(name, update.status, filled=update.filled_quantity, reason=update.reason):
            return
        placed = self._open.get(name)
        if placed is not None:
            self._open[name] = placed._replace(status=update.status, filled=update.filled_quantity)
        sentence = {"sentence": f"The order of {update.symbol} was rejected: {update.reason or 'no reason given'}."}
        self._record.log(
            "update",
            None if placed is None else placed.time,
            client_order_id=name,
            symbol=update.symbol,
            status=update.status,
            filled_quantity=update.filled_quantity,
            reason=update.reason,
            **(sentence if update.status == "rejected" else {}),
        )
        if update.status in ENDED:
            self._open.pop(name, None)
            if update.status != "filled" and not update.filled_quantity:
                self.note_expired([update.symbol])

    def placed(self, fill: Fill) -> OpenOrder | None:
        """The order that a fill belongs to, if it is of this session."""
        found = self._open.get(fill.client_order_id)
        if found is not None or (order := self._journal.order(fill.client_order_id)) is None:
            return found
        return self._placed(order)

    def trades(self, symbol: str) -> bool:
        """Whether the session trades it; an account that differs may hold others, which are closed only."""
        return symbol in self._symbols

    def knows(self, client_order_id: str) -> bool:
        """Whether the order is of this session."""
        return client_order_id in self._open or self._journal.order(client_order_id) is not None

    def _placed(self, order: OrderRecord) -> OpenOrder:
        bars, request = next(self._journal.bars(order.number)), order.request
        close = float(bars.close[self._symbols.index(request.symbol)]) if self.trades(request.symbol) else math.nan
        return OpenOrder(request, order.number, bars.time, bars.closed_at, close, order.status, order.filled_quantity)

    def _answered(self, orders: Sequence[OrderRequest], updates: Sequence[OrderUpdate]) -> None:
        with self._record.transaction():
            for order in orders:
                placed = self._open[order.client_order_id]
                self._record.log("order", placed.time, **order._asdict())
            for update in updates:
                self.note(update)

    def _note_missed(self, placed: OpenOrder) -> None:
        request = placed.request
        self._journal.update_order(request.client_order_id, MISSED, reason="decided too late to be sent")
        del self._open[request.client_order_id]
        self.note_expired([request.symbol])
        self._record.log(
            "missed",
            placed.time,
            client_order_id=request.client_order_id,
            symbol=request.symbol,
            sentence=f"The order of {request.symbol} that was decided at {time_text(placed.time)} was not sent: the "
            "broker could not be reached in time.",
        )

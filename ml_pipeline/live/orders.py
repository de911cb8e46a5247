"""The orders of a session, in the journal and at the broker: recorded, sent, looked up, canceled, ended.

An order is in the journal before it is sent, under an ID that follows from its decision, so a broker accepts it only
once. If the broker's answer is lost, the order is looked up by that ID.
"""

import hashlib
import math
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import NamedTuple

import numpy as np

from ml_pipeline.live.brokers.broker import (
    ENDED,
    Broker,
    BrokerEvent,
    Fill,
    OrderRequest,
    OrderUpdate,
    QuantityRules,
    exact,
)
from ml_pipeline.live.portfolio import AccountBook
from ml_pipeline.live.protection import Position, Protector, Unprotected
from ml_pipeline.live.record.journal import MISSED, REFUSED, WRITTEN, OrderRecord
from ml_pipeline.live.record.session_log import time_text
from ml_pipeline.live.record.session_record import SessionRecord
from ml_pipeline.trading.market.bar_set import BarSet

LONGEST_ID = 48
"""Length of a client order ID that every broker accepts."""
_SYMBOL_SHOWN = 16
_DIGEST_SIZE = 12


def client_order_id(session_id: str, bar_time: np.datetime64, symbol: str, *, purpose: str = "") -> str:
    """The ID of a session's order for `symbol` at the bar of this time.

    At most 48 letters, digits, dashes and underscores: the time and the symbol for readers, and a digest of everything.
    The time comes first, so that a table of orders by ID grows at its end.
    purpose: distinguishes a second order for the symbol at the same bar, such as "flatten".

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
    held: Mapping[str, Decimal], quantities: QuantityRules, *, session_id: str, bar_time: np.datetime64
) -> list[OrderRequest]:
    """An order that closes each position that is not flat. held: signed quantities by symbol."""
    return [
        OrderRequest(client_order_id(session_id, bar_time, symbol, purpose="flatten"), symbol, -n, 0.0, closing=True)
        for symbol, n in quantities.open_positions(held).items()
    ]


_OPEN = (WRITTEN, "accepted", "partly_filled")
_CANCEL_WAIT_S = 2.0
_CANCEL_LOOK_S = 0.1


class OpenOrder(NamedTuple):
    """An order that has not ended. number, time, closed_at: of the bar of its decision. close: of that bar; NaN for a
    symbol that the session does not trade."""

    request: OrderRequest
    number: int
    time: np.datetime64
    closed_at: np.datetime64
    close: float
    status: str
    filled: Decimal = Decimal(0)


class OrderManager:
    """The open orders of a session. Methods raise BrokerUnavailable if the broker does.

    protector: of the session; None: positions have no protective orders.
    """

    def __init__(
        self, broker: Broker, record: SessionRecord, symbols: Sequence[str], protector: Protector | None = None
    ) -> None:
        self._broker = broker
        self._protector = protector if protector is not None and protector.active else None
        self._record = record
        self._journal = record.journal
        self._symbols = tuple(symbols)
        self._state = record.state
        self._cursor = self._state.event_cursor  # of the events that were received
        self._events: list[BrokerEvent] = []
        self._open: dict[str, OpenOrder] = {}
        for order in self._journal.orders(statuses=_OPEN):
            self._open[order.request.client_order_id] = self._placed(order)

    @property
    def open(self) -> tuple[OpenOrder, ...]:
        """The orders that are not known to have ended."""
        return tuple(self._open.values())

    @property
    def unsent(self) -> tuple[OpenOrder, ...]:
        """The open orders that may not have been sent."""
        return tuple(each for each in self._open.values() if each.status == WRITTEN)

    @property
    def protects(self) -> bool:
        """Whether positions have protective orders at the broker."""
        return self._protector is not None

    @property
    def received(self) -> tuple[BrokerEvent, ...]:
        """The received events that `take_events` has not returned yet."""
        return tuple(self._events)

    def in_flight(self, *, sized_at_fill: bool) -> dict[str, tuple[Decimal, Decimal]]:
        """By symbol, the most that open orders can sell (negative) and buy, according to the received events.

        sized_at_fill: of the broker, whose orders may then have any quantity.
        """
        found: dict[str, tuple[Decimal, Decimal]] = {}
        for name in self._not_ended():
            symbol, quantity = self._open[name].request.symbol, exact(self._open[name].request.quantity)
            sold, bought = found.get(symbol, (Decimal(0), Decimal(0)))
            most = Decimal("Infinity") if sized_at_fill else abs(quantity)
            found[symbol] = (
                sold if quantity > 0 and not sized_at_fill else sold - most,
                bought if quantity < 0 and not sized_at_fill else bought + most,
            )
        return found

    def write(self, number: int, orders: Iterable[OrderRequest], bars: BarSet, closes: Sequence[float]) -> None:
        """Record the orders that were decided at these bars, within a transaction. closes: the last of each symbol."""
        orders = list(orders)
        self._journal.add_orders(number, orders)
        for order in orders:
            close = closes[self._symbols.index(order.symbol)] if self.trades(order.symbol) else math.nan
            self._open[order.client_order_id] = OpenOrder(order, number, bars.time, bars.closed_at, close, WRITTEN)

    def refuse(self, number: int, orders: Iterable[OrderRequest], reason: str) -> None:
        """Record orders that a guard refused, within a transaction."""
        orders = list(orders)
        self._journal.add_orders(number, orders, status=REFUSED, reason=reason)
        self.note_expired(order.symbol for order in orders)

    def note_expired(self, symbols: Iterable[str]) -> None:
        """Note that the latest choice for these symbols was not executed. Within a transaction."""
        self._state.expired.update(symbols)

    def take_expired(self) -> list[str]:
        """The symbols whose orders ended unfilled since the last call. Within a transaction."""
        expired = [symbol for symbol in self._symbols if symbol in self._state.expired]
        if expired:
            self._state.expired.clear()
        return expired

    def send(self) -> None:
        """Send the recorded orders, and record the answers."""
        if self._protector is not None and self.unsent:
            self._lift_protection(self._protector)
        if orders := [self._to_send(each) for each in self.unsent]:
            self._answered(orders, self._broker.submit(orders))

    def _to_send(self, order: OpenOrder) -> OrderRequest:
        """The order as it is sent: with its price, and with the stop and target of the position that it opens."""
        request = order.request
        if not self._broker.sizes_at_fill and not math.isnan(order.close):
            request = request._replace(price=order.close)
        return request if self._protector is None else self._protector.with_exits(request, order.close)

    def _lift_protection(self, protector: Protector) -> None:
        """Cancel the protective orders of the symbols to trade.

        If one has closed its position before, the order for that position is not sent: it would open another one.
        """
        self._poll()  # a new process then knows what protects the positions
        protector.lift({each.request.symbol for each in self.unsent})
        closed = self._closed_by_protection()
        overtaken = [each for each in self.unsent if each.request.symbol in closed]
        with self._record.transaction():
            for each in overtaken:
                self.note(
                    OrderUpdate(
                        each.request.client_order_id,
                        each.request.symbol,
                        "canceled",
                        each.request.quantity,
                        Decimal(0),
                        each.closed_at,
                        "its stop or target closed the position before the order was sent",
                    )
                )
        protector.keep_rest({each.request.symbol: exact(each.request.quantity) for each in self.unsent})

    def protect(self, account: AccountBook) -> list[Unprotected] | None:
        """Make the protective orders at the broker fit the books, see `Protector.keep`. Positions in symbols with open
        orders wait for their end, and those with a split that the account lacks have no protective order: its prices
        would be those of before the split."""
        if self._protector is None:
            return []
        busy = {each.request.symbol for each in self.open}
        held = {symbol: n for symbol, n in account.positions.items() if symbol not in self._state.awaited_splits}
        entries = zip(account.symbols, account.entries, strict=True)
        positions = [Position(each, held.get(each, Decimal(0)), entry) for each, entry in entries if each not in busy]
        return self._protector.keep(
            positions, self._state.number, any_closed=lambda: bool(self._closed_by_protection())
        )

    def _closed_by_protection(self) -> set[str]:
        """The symbols whose stop or target was filled, fully or in part, and that is not booked yet."""
        self._poll()
        return {event.symbol for event in self._events if isinstance(event, Fill) and event.exit}

    def settle_unsent(self, in_time: Callable[[OpenOrder], bool]) -> None:
        """Look up each order that may not have been sent. Send the orders that the broker does not have, or record
        them as missed if it is too late.
        """
        unsent = self.unsent
        if not unsent:
            return
        known = self._broker.orders([each.request.client_order_id for each in unsent])
        names = {update.client_order_id for update in known}
        unknown = [each for each in unsent if each.request.client_order_id not in names]
        with self._record.transaction():
            for update in known:  # the answer was lost
                placed = self._open[update.client_order_id]
                self._record.log("order", placed.time, **placed.request._asdict())
                self.note(update)
            for each in unknown:
                if not in_time(each):
                    self._note_missed(each)
        self.send()

    def collect(self) -> None:
        """Cancel the open orders of earlier decisions, and receive all events since the last call.

        Events are kept until `take_events`, even if the broker becomes unreachable in between.
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
        """Receive the events since the last call. Returns whether any wait for `take_events`."""
        self._poll()
        return bool(self._events)

    def take_events(self) -> list[BrokerEvent]:
        """The received events. Call it within the transaction that books them, which also saves the cursor."""
        self._state.event_cursor = self._cursor
        events, self._events = self._events, []
        return events

    def _poll(self) -> bool:
        events, self._cursor = self._broker.poll(self._cursor)
        self._events += events
        return bool(events)

    def _still_open(self) -> list[str]:
        return [name for name in self._not_ended() if self._open[name].status != WRITTEN]

    def _not_ended(self) -> list[str]:
        ended = {e.client_order_id for e in self._events if isinstance(e, OrderUpdate) and e.status in ENDED}
        return [name for name in self._open if name not in ended]

    def note(self, update: OrderUpdate) -> None:
        """Record the broker's update of an order. Within a transaction."""
        if self._protector is not None and self._protector.note(update):
            return
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
            if self._protector is not None:
                self._protector.note_end(update.symbol, exact(update.filled_quantity))
            if update.status != "filled" and not update.filled_quantity:
                self.note_expired([update.symbol])

    def placed(self, fill: Fill) -> OpenOrder | None:
        """The order of a fill, if it is of this session."""
        found = self._open.get(fill.client_order_id)
        if found is not None or (order := self._journal.order(fill.client_order_id)) is None:
            return found
        return self._placed(order)

    def trades(self, symbol: str) -> bool:
        """Whether the session trades the symbol. An account may hold others, which the session only closes."""
        return symbol in self._symbols

    def knows(self, client_order_id: str) -> bool:
        """Whether the order is of this session."""
        is_protective = self._protector is not None and self._protector.knows(client_order_id)
        return is_protective or client_order_id in self._open or self._journal.order(client_order_id) is not None

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

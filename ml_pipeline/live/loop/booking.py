"""Enters what a broker tells into the orders, the books and the log of a session, each once."""

from collections.abc import Sequence

import numpy as np

from ml_pipeline.live.brokers.broker import BrokerEvent, Charge, Fill, OrderUpdate
from ml_pipeline.live.loop.parts import Parts
from ml_pipeline.live.orders import OrderManager
from ml_pipeline.live.record.session_record import SessionRecord


def book(event: BrokerEvent, parts: Parts, record: SessionRecord, desk: OrderManager, *, number: int) -> None:
    """Enter one event, within a transaction; one that is known already changes nothing.

    number: of the bar that it belongs to.
    """
    if isinstance(event, OrderUpdate):
        desk.note(event)
        if desk.trades(event.symbol):
            parts.books.apply(event)
    elif isinstance(event, Fill):
        if parts.books.apply(event):
            record.journal.add_fill(number, event)
            _log_fill(event, record, desk)
    elif parts.books.apply(event):
        record.journal.add_charge(number, event)
        if event.amount or event.margin_called:
            _log_charge(event, record)


def is_foreign(fill: Fill, desk: OrderManager) -> bool:
    """Whether a fill is neither of an order of this session nor of the broker's own doing, or of another symbol."""
    is_own = fill.exit or fill.margin_called or desk.placed(fill) is not None
    return not is_own or not desk.trades(fill.symbol)


def _log_fill(fill: Fill, record: SessionRecord, desk: OrderManager) -> None:
    verb = "Sold" if fill.quantity < 0 else "Bought"
    why = " by a stop or a target" if fill.exit else " for lack of margin" if fill.margin_called else ""
    values = fill._asdict() | {"sentence": f"{verb} {abs(fill.quantity):g} {fill.symbol} at {fill.price:g}{why}."}
    placed = desk.placed(fill)
    if placed is not None:
        delay_s = float((fill.time - placed.closed_at) / np.timedelta64(1, "s"))
        values |= {"decided_close": placed.close, "delay_s": delay_s}
    record.log("fill", None if placed is None else placed.time, **values)


def _log_charge(charge: Charge, record: SessionRecord) -> None:
    record.log("charge", None, **charge._asdict())


def by_bar(events: Sequence[BrokerEvent], closed_at: Sequence[np.datetime64]) -> list[list[BrokerEvent]]:
    """The events until each bar's close, in the order in which they were told; later ones are of the last bar.

    closed_at: of bars that wait to be closed, in order. A broker may tell an older charge after a younger fill.
    """
    found: list[list[BrokerEvent]] = [[] for _ in closed_at]
    for event in events:
        before = sum(bool(closed < event.time) for closed in closed_at)
        found[min(before, len(closed_at) - 1)].append(event)
    return found

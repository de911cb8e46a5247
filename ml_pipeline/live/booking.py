"""Book each event of a broker once: in the orders, the account book, the journal and the log of a session."""

from collections.abc import Sequence

import numpy as np

from ml_pipeline.live.brokers.broker import BrokerEvent, Fill, OrderUpdate, quantity_text
from ml_pipeline.live.components import SessionComponents
from ml_pipeline.live.orders import OrderManager
from ml_pipeline.live.record.session_record import SessionRecord
from ml_pipeline.live.shutdown import ShutdownRequest


def look_and_book(session: SessionComponents) -> None:
    """Book the broker's events since the last bar."""
    if session.orders.look():
        with session.record.transaction():
            book_all(session)


def cancel_and_book(session: SessionComponents) -> None:
    """Cancel open orders and book all events until then."""
    session.orders.settle_unsent(lambda order: False)
    session.orders.collect()
    with session.record.transaction():
        book_all(session)


def book_all(session: SessionComponents) -> None:
    """Book the received events, within a transaction."""
    for event in session.orders.take_events():
        book_or_refuse(session, event)
    session.state.account = session.account.state()


def book_or_refuse(session: SessionComponents, event: BrokerEvent) -> None:
    """Book one event, within a transaction. A foreign trade is not booked; it requests the end of the session."""
    if not (isinstance(event, Fill) and is_foreign(event, session.orders)):
        book(session, event)
        return
    sentence = (
        f"An order that is not of this session traded {quantity_text(event.quantity)} {event.symbol} at "
        f'{event.price:g} in the account ("{event.client_order_id}").'
    )
    session.record.log("difference", session.state.time, rows=[event._asdict()], sentence=sentence)
    session.shutdown.request(ShutdownRequest("foreign_trade", sentence, session.settings.on_difference))


def book(session: SessionComponents, event: BrokerEvent) -> None:
    """Book one event after the latest bar, within a transaction. An event that was booked before changes nothing."""
    record, orders, number = session.record, session.orders, session.state.number
    if isinstance(event, OrderUpdate):
        orders.note(event)
        if orders.trades(event.symbol):
            session.account.apply(event)
    elif isinstance(event, Fill):
        if session.account.apply(event):
            record.journal.add_fill(number, event)
            _log_fill(event, record, orders)
    elif session.account.apply(event):
        record.journal.add_charge(number, event)
        if event.amount or event.margin_called:
            record.log("charge", None, **event._asdict())


def is_foreign(fill: Fill, orders: OrderManager) -> bool:
    """Whether a fill is foreign: of an order of another source, and not the broker's own, or of another symbol."""
    is_own = fill.exit or fill.margin_called or orders.placed(fill) is not None
    return not is_own or not orders.trades(fill.symbol)


def _log_fill(fill: Fill, record: SessionRecord, orders: OrderManager) -> None:
    verb = "Sold" if fill.quantity < 0 else "Bought"
    why = " by a stop or a target" if fill.exit else " for lack of margin" if fill.margin_called else ""
    traded = f"{abs(float(fill.quantity)):g} {fill.symbol}"
    values = fill._asdict() | {"sentence": f"{verb} {traded} at {fill.price:g}{why}."}
    order = orders.placed(fill)
    if order is not None:
        delay_s = float((fill.time - order.closed_at) / np.timedelta64(1, "s"))
        values |= {"decided_close": order.close, "delay_s": delay_s}
    record.log("fill", None if order is None else order.time, **values)


def by_bar(events: Sequence[BrokerEvent], closed_at: Sequence[np.datetime64]) -> list[list[BrokerEvent]]:
    """The events up to each bar's close, in the order in which they arrived; later ones belong to the last bar.

    What becomes of orders at the very close of a bar belongs to the next one, which opens then.

    closed_at: of the waiting bars, in order. A broker may report an older charge after a younger fill.
    """
    found: list[list[BrokerEvent]] = [[] for _ in closed_at]
    for event in events:
        of_order = isinstance(event, OrderUpdate) or (
            isinstance(event, Fill) and not (event.exit or event.margin_called)
        )
        before = sum(bool(closed < event.time or (of_order and closed == event.time)) for closed in closed_at)
        found[min(before, len(closed_at) - 1)].append(event)
    return found

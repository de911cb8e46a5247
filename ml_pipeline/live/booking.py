"""Book each event of a broker once: in the orders, the account book, the journal and the log of a session."""

from collections.abc import Sequence

import numpy as np

from ml_pipeline.live.brokers.broker import (
    FLOWS,
    Adjustment,
    BrokerEvent,
    Fill,
    Notice,
    OrderUpdate,
    exact,
    quantity_text,
)
from ml_pipeline.live.components import SessionComponents
from ml_pipeline.live.orders import OrderManager
from ml_pipeline.live.portfolio import Entry
from ml_pipeline.live.record.session_record import SessionRecord

CENT = 0.01
"""A smaller difference in cash is due to rounding. A broker may round each fill, so it may grow with each."""
ANNOUNCED = "announced-"
"""The IDs of adjustments that a person announces begin with it."""


def look_and_book(session: SessionComponents) -> bool:
    """Book the broker's events since the last bar. Returns whether there were any."""
    if not session.orders.look():
        return False
    with session.record.transaction():
        book_all(session)
    return True


def cancel_and_book(session: SessionComponents) -> None:
    """Cancel open orders and book all events until then."""
    session.orders.settle_unsent(lambda order: False)
    session.orders.collect()
    with session.record.transaction():
        book_all(session)


def book_all(session: SessionComponents) -> None:
    """Book the received events, within a transaction."""
    for event in session.orders.take_events():
        book(session, event)
    session.state.account = session.account.state()


def entry_of(session: SessionComponents, event: BrokerEvent) -> Entry | None:
    """What the books take for an event: usually the event itself. None: a notice, or a trade of another source.

    The books hold no symbol that the session does not trade, so of a fill that closes one they take the cash.
    """
    match event:
        case Notice():
            return None
        case OrderUpdate():
            return event if session.orders.trades(event.symbol) else None
        case Fill() if not (event.exit or event.margin_called or session.orders.placed(event)):
            return None
        case Fill() if not session.orders.trades(event.symbol):
            paid = float(event.quantity) * event.price + event.costs
            what = f"{quantity_text(event.quantity)} {event.symbol} at {event.price:g}"
            return Adjustment(event.fill_id, "difference", event.symbol, event.quantity, -paid, what, event.time)
    return event


def book(session: SessionComponents, event: BrokerEvent) -> None:
    """Book one event after the latest bar, within a transaction. An event that was booked before changes nothing."""
    record, orders, number = session.record, session.orders, session.state.number
    if isinstance(event, OrderUpdate):
        orders.note(event)
    entry = entry_of(session, event)
    if entry is None:
        if isinstance(event, Notice):
            record.log("alert", session.state.time, guard="notice", notice_id=event.notice_id, sentence=event.sentence)
        elif isinstance(event, Fill):
            _log_foreign(session, event)
    elif isinstance(entry, Adjustment):
        _adjust(session, entry)
    elif not session.account.apply(entry):
        return
    elif isinstance(entry, Fill):
        session.state.fills_since_check += 1
        if entry.symbol in session.symbols and not session.account.holdings[session.symbols.index(entry.symbol)]:
            session.state.awaited_splits.discard(entry.symbol)  # what is not held is not split
        record.journal.add_fill(number, entry)
        _log_fill(entry, record, orders)
    elif not isinstance(entry, OrderUpdate):
        entry = entry._replace(what=_with_announced(session, entry.charge_id, -entry.amount, entry.what))
        record.journal.add_charge(number, entry)
        if entry.amount or entry.margin_called:
            record.log("charge", None, **entry._asdict())


def _adjust(session: SessionComponents, entry: Adjustment) -> None:
    books, state, symbol = session.account, session.state, entry.symbol
    i = session.symbols.index(symbol) if symbol in session.symbols else None
    had = 0.0 if i is None else books.holdings[i]
    if not books.apply(entry):
        return
    entry = entry._replace(what=_with_announced(session, entry.adjustment_id, entry.cash, entry.what))
    has = 0.0 if i is None else books.holdings[i]
    if symbol in state.other_positions:
        state.other_positions[symbol] = str(exact(state.other_positions[symbol]) + entry.quantity)
    if entry.kind in ("split", "difference"):
        state.awaited_splits.discard(symbol)
    if entry.kind == "split":
        _note_split(session, symbol, had, has)
    elif entry.kind in FLOWS:
        worth = 0.0 if i is None else float(entry.quantity) * books.closes[i]
        state.flow += entry.cash + worth
        session.guards.note_flow(entry.cash + worth)
        state.guards = session.guards.state()
    session.journal.add_adjustment(state.number, entry)
    session.record.log("adjustment", state.time, **entry._asdict(), sentence=f"Booked: {entry.in_words()}.")


def _with_announced(session: SessionComponents, name: str, cash: float, what: str) -> str:
    """What the broker names, with the reason of an announcement of the same amount, which then no longer waits."""
    if not cash or name.startswith(ANNOUNCED):
        return what
    for each in session.journal.announcements():
        if abs(each.cash - cash) < CENT:
            sentence = (
                f"The announced {each.kind} of {abs(each.cash):,.2f} ({each.what}) is booked as what the broker names: "
                f"{what or name}."
            )
            session.journal.drop_announcement(each.adjustment_id)
            session.record.log("alert", session.state.time, guard="announced", sentence=sentence)
            return "; ".join(filter(None, (what, each.what)))
    return what


def _note_split(session: SessionComponents, symbol: str, had: float, has: float) -> None:
    """Rescale the last prices of a symbol, so that equity stays the same until its next bar."""
    if had and has:
        session.account.split(symbol, had / has)
        i, state = session.symbols.index(symbol), session.state
        state.closes = np.where(np.arange(len(state.closes)) == i, state.closes * (had / has), state.closes)


def _log_foreign(session: SessionComponents, fill: Fill) -> None:
    sentence = (
        f"An order that is not of this session traded {quantity_text(fill.quantity)} {fill.symbol} at "
        f'{fill.price:g} in the account ("{fill.client_order_id}").'
    )
    session.record.log("alert", session.state.time, guard="foreign_trade", **fill._asdict(), sentence=sentence)


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

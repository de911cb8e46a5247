"""Compare the account at the broker with the books of a session: at a start, at each bar, and after fills.

Fills, charges and adjustments that the broker reports are booked under their names. A difference that remains is
unexplained: the session stops, closes all positions, or takes the account over, by `on_difference`.
"""

import time
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import NamedTuple

from ml_pipeline.live.booking import CENT, book, book_all, entry_of
from ml_pipeline.live.brokers.broker import (
    SMALLEST_QUANTITY,
    AccountState,
    Adjustment,
    Fill,
    OrderUpdate,
    exact,
    quantity_text,
)
from ml_pipeline.live.cash_flows import book_announced, expire_announced
from ml_pipeline.live.components import SessionComponents
from ml_pipeline.live.shutdown import ShutdownRequest

_SETTLES_WITHIN_S = 2.0
"""A broker may show a fill in one answer earlier than in another; after this time they agree."""
_LOOK_S = 0.1


class Difference(NamedTuple):
    """One entry that differs. what: a symbol, cash, or an order; books, broker: its value there, in words.

    symbol: "" for cash and orders. quantity, cash: what the books lack. order: its ID.
    """

    what: str
    books: str
    broker: str
    symbol: str = ""
    quantity: Decimal = Decimal(0)
    cash: float = 0.0
    order: str = ""


class Comparison(NamedTuple):
    """rows: the differences. cash_rounding: cash that the books lack because of rounding; None: not compared.
    left_over: quantities in the account that count as flat, by symbol.
    """

    rows: list[Difference]
    cash_rounding: float | None
    left_over: Mapping[str, Decimal]


def check_account(session: SessionComponents) -> None:
    """Book what the broker has reported, and act on what differs then. Raises BrokerUnavailable."""
    found = compare(session)
    with session.record.transaction():
        book_all(session)
        act_on(session, without_announced(session, found))


def compare(session: SessionComponents) -> Comparison:
    """Compare the account with the books and all received events, which are not booked yet.

    What differs is looked at again, in real time for two seconds, before it counts. Raises BrokerUnavailable.
    """
    began, looks = time.monotonic(), 0
    while True:
        account, at_broker = session.broker.account(), session.broker.orders()
        session.orders.look()  # last, so that it reports whatever led to this account
        found = _compared(session, account, at_broker)
        looks += 1
        waits = session.settings.real_time and time.monotonic() < began + _SETTLES_WITHIN_S
        if not found.rows or (looks > 1 and not waits):
            return found
        if waits and looks > 1:
            time.sleep(_LOOK_S)


def _compared(session: SessionComponents, account: AccountState, at_broker: Iterable[OrderUpdate]) -> Comparison:
    state, orders = session.state, session.orders
    entries = [entry for event in orders.received if (entry := entry_of(session, event)) is not None]
    cash, own = session.account.after(entries)
    own |= {symbol: exact(quantity) for symbol, quantity in state.other_positions.items()}
    for entry in entries:
        if isinstance(entry, Adjustment) and entry.symbol in state.other_positions:
            own[entry.symbol] += entry.quantity
    in_flight = orders.in_flight(sized_at_fill=session.broker.sizes_at_fill)
    rows, is_filling = [], False
    for symbol in sorted({*own, *account.positions}):
        had, has = own.get(symbol, Decimal(0)), exact(account.positions.get(symbol, 0))
        if session.quantities.is_flat(symbol, has - had):
            continue
        sold, bought = in_flight.get(symbol, (Decimal(0), Decimal(0)))
        if sold - SMALLEST_QUANTITY <= has - had <= bought + SMALLEST_QUANTITY:
            is_filling = True  # an open order explains it; its fill will be reported
        else:
            rows.append(Difference(symbol, quantity_text(had), quantity_text(has), symbol, has - had))
    missing, cash_rounding = float(account.cash) - cash, None if is_filling else state.cash_rounding
    n_fills = state.fills_since_check + sum(isinstance(entry, Fill) for entry in entries)
    if cash_rounding is not None and abs(missing - cash_rounding) < CENT * (1 + n_fills):
        cash_rounding = missing
    elif cash_rounding is not None:
        rows.append(Difference("cash", f"{cash:,.2f}", f"{account.cash:,.2f}", cash=missing))
    for each in at_broker:
        name = each.client_order_id
        if not orders.knows(name) and name not in state.other_orders:
            rows.append(Difference(f"order {name}", "-", f"{each.symbol} {each.status}", order=name))
    flat = {symbol: n for symbol, n in account.positions.items() if n and session.quantities.is_flat(symbol, n)}
    return Comparison(rows, cash_rounding, flat)


def without_announced(session: SessionComponents, found: Comparison) -> Comparison:
    """What differs besides announced money that has arrived, which is booked; within a transaction."""
    rounding = session.state.cash_rounding
    rows = [row for row in found.rows if row.what != "cash" or not book_announced(session, row.cash - rounding)]
    expire_announced(session)
    return found._replace(rows=rows)


def act_on(session: SessionComponents, found: Comparison) -> None:
    """Log the differences, and stop, flatten or take over; within a transaction, after events were booked."""
    state, rows = session.state, found.rows
    if found.cash_rounding is not None:
        state.cash_rounding, state.fills_since_check = found.cash_rounding, 0
    if new := {symbol: n for symbol, n in found.left_over.items() if symbol not in state.left_over_told}:
        state.left_over_told = state.left_over_told | {*new}
        session.record.log("alert", state.time, guard="left_over", sentence=session.quantities.left_over(new).strip())
    if not rows:
        return
    choice, shutdown = session.settings.on_difference, session.shutdown
    shown = "; ".join(f"{row.what} {row.books} in the books, {row.broker} at the broker" for row in rows)
    sentence = f"The account at {session.broker.name} differs from the books of this session: {shown}."
    done = {
        "stop": "The session stops and leaves the positions as they are; find the cause before the next start.",
        "flatten": "All positions are closed, and the session stops; find the cause before the next start.",
        "take-over": "The session continues with the account as it is.",
    }[choice]
    shown_rows = [{"what": row.what, "books": row.books, "broker": row.broker} for row in rows]
    session.record.log("difference", state.time, rows=shown_rows, sentence=f"{sentence} {done}")
    if choice != "stop":
        _take_over(session, rows)
    if choice == "stop":
        shutdown.request(ShutdownRequest("difference", sentence, "hold"))
    elif choice == "flatten" and not shutdown.closes_down:
        shutdown.request(ShutdownRequest("difference", sentence, "flatten"))


def _take_over(session: SessionComponents, rows: list[Difference]) -> None:
    """Make the books equal to the account. Positions and orders that are not the session's are only remembered."""
    state, n_known = session.state, len(session.journal.adjustments())
    for i, row in enumerate(rows):
        if row.order:
            state.other_orders.add(row.order)
        elif row.symbol and row.symbol not in session.symbols:
            known = exact(state.other_positions.get(row.symbol, 0))
            state.other_positions[row.symbol] = str(known + row.quantity)
        else:
            cash = 0.0 if row.symbol else row.cash - state.cash_rounding
            name = f"difference-{n_known + i}"
            now = session.feed.now()
            book(session, Adjustment(name, "difference", row.symbol, row.quantity, cash, "taken over", now))
    state.account = session.account.state()
    if any(row.symbol for row in rows):
        session.runner.follow_holdings(session.account.holdings)
        state.policy = session.runner.state()

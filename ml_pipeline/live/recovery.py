"""Start a session: what it keeps from its first start on, and the comparison of account and books after a kill.

Orders that may not have been sent are looked up by their IDs, and fills that happened in the meantime are booked. Any
other difference stops the session.
"""

import json
import secrets
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ml_pipeline.config.errors import CheckFailed, UserError
from ml_pipeline.config.wording import shown_path, text_table
from ml_pipeline.live.booking import book, is_foreign
from ml_pipeline.live.brokers.broker import AccountState, Fill, OrderRequest, exact, quantity_text
from ml_pipeline.live.components import SessionComponents
from ml_pipeline.live.decisions.deployed_policy import DeployedPolicy
from ml_pipeline.live.feeds.feed import End, Feed
from ml_pipeline.live.orders import closing_orders
from ml_pipeline.live.record.journal import Journal
from ml_pipeline.live.record.session_record import SessionRecord
from ml_pipeline.live.state import SessionState
from ml_pipeline.trading.market.bar_set import BarSet

_CASH, _PER_YEAR = "initial_cash", "periods_per_year"  # in the journal


def check_same_session(journal: Journal, folder: Path, feed: Feed, *, broker: str) -> None:
    """Record symbols and broker at the first start. Raises UserError if a later start has others."""
    own = {"symbols": json.dumps(list(feed.symbols)), "broker": broker}
    if journal.meta("session_id") is None:
        with journal.transaction():
            journal.set_meta({**own, "session_id": secrets.token_hex(6)})
        return
    for name, value in own.items():
        if (before := journal.meta(name)) != value:
            raise UserError(
                f"The session in {shown_path(folder)} has {name} {before}, but this start has {value}; choose another "
                "--name, or delete that folder to start over."
            )


def periods_per_year(journal: Journal, policy: DeployedPolicy, feed: Feed) -> float:
    """Bars per year, used to charge rates, as they were at the session's first start."""
    per_year = journal.meta(_PER_YEAR)
    if per_year is None:
        per_year = repr(policy.calendar(feed.calendar).periods_per_year)
        with journal.transaction():
            journal.set_meta({_PER_YEAR: per_year})
    return float(per_year)


def initial_cash(journal: Journal) -> float | None:
    """The account's initial cash; None at the first start."""
    cash = journal.meta(_CASH)
    return None if cash is None else float(cash)


def begin_account(journal: Journal, state: SessionState, account: AccountState, cursor: str | None) -> float:
    """Record the account at the first start, including its positions. cursor: of the broker's events.

    Returns the initial cash, which includes the value of positions.
    """
    held = {symbol: str(n) for symbol, n in account.positions.items() if n}
    cash = float(account.equity if held else account.cash)
    with journal.transaction():
        journal.set_meta({_CASH: repr(cash)})
        state.event_cursor = cursor
        if held:
            state.taken_over = {"cash": account.cash, "positions": held}
            state.awaiting_previous_model = True  # the policy did not choose these positions
        state.save(journal)
    return cash


def note_model(record: SessionRecord, policy: DeployedPolicy) -> bool:
    """Whether the model is the one that traded last. A new model is recorded in the journal."""
    journal = record.journal
    models = journal.models()
    if models and Path(models[-1].path).resolve() == policy.checkpoint.resolve():
        return True
    checkpoint = str(policy.checkpoint.absolute())  # the next start may be from another folder
    why = "the session began with it" if not models else "the session was started with it"
    with record.transaction():
        journal.add_model(journal.n_bars(), checkpoint, policy.version, why)
        if models:
            record.log("model", None, **{"from": models[-1].path, "to": checkpoint, "why": why})
    return not models


CENT = 0.01
"""A smaller difference in cash is due to rounding."""


class AccountDiffers(CheckFailed):
    """The account at the broker differs from the books, and the journal does not explain it."""


class Difference(NamedTuple):
    """One entry that differs, in the books and at the broker. what: a symbol, cash, or an order."""

    what: str
    books: str
    broker: str


def check_first_account(account: AccountState, *, broker: str) -> None:
    """Raise UserError if the account holds positions before the session has begun."""
    if any(account.positions.values()):
        rows = [["symbol", "quantity"], *([symbol, quantity_text(n)] for symbol, n in account.positions.items() if n)]
        raise UserError(
            f"The account at {broker} already holds positions, which the model did not open:\n"
            f"{text_table(rows)}\nClose them, or start with them by --take-over."
        )


def restore(session: SessionComponents, *, same_model: bool) -> None:
    """Restore policy runner, account and guards to their state in the journal.

    same_model: whether the stored state is of this model; another model's choices follow from the positions held.
    If the policy cannot observe the bars, `session.failure` has the reason.
    """
    state, runner = session.state, session.runner
    try:
        runner.observe_all(list(session.journal.bars()))
    except UserError as error:
        session.failure = str(error)
    if state.account is not None:
        session.account.set_state(state.account)
    if state.guards is not None:
        session.guards.set_state(state.guards)
    if not same_model:
        runner.follow_holdings(session.account.holdings)
        with session.record.transaction():
            state.policy = runner.state()
            state.awaiting_previous_model = True  # orders of the previous model may still be filled
    elif state.policy is not None:
        runner.set_state(state.policy)


def warm_up(session: SessionComponents) -> None:
    """Observe and record the bars before the first one to trade on."""
    state, record = session.state, session.record
    with record.transaction():
        history = [session.guards.sift(bars) for bars in session.feed.history()]
        session.runner.observe_all(history)
        for bars in history:
            session.guards.note_history(bars)
            session.account.warm_up(bars)
            session.broker.market_closed_bar(bars)
            record.add_bar(state.number, bars, None)
            state.note_bar(bars)
        state.account, state.guards = session.account.state(), session.guards.state()


def differences(session: SessionComponents) -> list[Difference]:
    """The differences between the account at the broker and the books."""
    account, books = session.broker.account(), session.account
    held = books.positions
    rows = []
    for symbol in sorted({*held, *account.positions}):
        own, theirs = held.get(symbol, Decimal(0)), exact(account.positions.get(symbol, 0))
        if not session.quantities.is_flat(symbol, own - theirs):
            rows.append(Difference(symbol, quantity_text(own), quantity_text(theirs)))
    if not abs(books.cash - account.cash) < CENT:
        rows.append(Difference("cash", f"{books.cash:,.2f}", f"{account.cash:,.2f}"))
    rows += [
        Difference(f"order {each.client_order_id}", "-", f"{each.symbol} {each.status}")
        for each in session.broker.orders()
        if not session.orders.knows(each.client_order_id)
    ]
    return rows


def difference_table(rows: list[Difference]) -> str:
    """The books and the account, side by side."""
    return text_table([["", "books of the session", "account at the broker"], *(list(row) for row in rows)])


def reconcile_at_start(session: SessionComponents, go_on: Callable[[], bool] = lambda: True) -> None:
    """Book what happened since the last run, and compare the account with the books.

    Any difference that the journal does not explain raises AccountDiffers with both sides, after closing the account's
    positions if that is configured. If BrokerUnavailable is raised, call it again. go_on: called repeatedly while
    positions are being closed; False stops that.
    """
    state, record, orders, broker = session.state, session.record, session.orders, session.broker
    last = state.last
    assert last is not None, "a session that has not begun has nothing to reconcile"
    deadline = last.closed_at + np.timedelta64(session.feed.timing.length, "ns")
    now = session.feed.now()
    if session.settings.real_time:  # this machine's clock may be behind
        now = max(now, broker.now())
    orders.settle_unsent(lambda order: order.number == state.number - 1 and not now > deadline)
    orders.look()
    foreign = []
    with record.transaction():
        for event in orders.take_events():
            if isinstance(event, Fill) and is_foreign(event, orders):
                foreign.append(event)
            else:
                book(session, event)
        state.account = session.account.state()
    rows = differences(session)
    if not rows:
        return
    table = difference_table(rows)
    sentence = f"The account at {broker.name} differs from the books of this session:"
    flatten = session.settings.on_difference == "flatten"
    closing = _closing(session, last.time) if flatten else []
    with record.transaction():
        record.log("difference", last.time, rows=[row._asdict() for row in rows], fills=[f._asdict() for f in foreign])
        record.journal.add_orders(state.number - 1, closing)
    done = "Its positions were left unchanged."
    if flatten:
        broker.cancel([each.client_order_id for each in broker.orders()])
        flat = _close_account(session, closing, go_on)
        done = "All its positions were closed." if flat else "Not all of its positions could be closed."
    record.log_now("stop", last.time, why=f"{sentence[:-1]}. {done}", flat=flat if flatten else None)
    raise AccountDiffers(f"{sentence}\n{table}\n{done} The session stopped; find the cause before the next start.")


def _close_account(session: SessionComponents, orders: list[OrderRequest], go_on: Callable[[], bool]) -> bool:
    """Send the orders and, at each bar, new ones for positions still open. Returns whether the account is flat."""
    broker, record, feed = session.broker, session.record, session.feed
    feed.start(after=session.state.time)
    while go_on():
        if orders:
            for update in broker.submit(orders):
                with record.transaction():
                    record.journal.update_order(update.client_order_id, update.status, reason=update.reason)
        if not session.quantities.open_positions(broker.account().positions):
            return True
        orders = []
        item = feed.next(session.settings.idle_s)
        if isinstance(item, End):
            break
        if isinstance(item, BarSet):
            broker.market_closed_bar(item)
            if not broker.orders():  # all have ended
                orders = _closing(session, item.time)
                with record.transaction():
                    record.journal.add_orders(session.state.number - 1, orders)
    return not session.quantities.open_positions(broker.account().positions)


def _closing(session: SessionComponents, bar_time: np.datetime64) -> list[OrderRequest]:
    """Orders that close the positions of the account at the broker, regardless of the books."""
    held = session.broker.account().positions
    session_id = session.settings.session_id
    return closing_orders(held, session.quantities, session_id=session_id, bar_time=bar_time, purpose="difference")

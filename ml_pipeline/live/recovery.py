"""How a session starts: what it keeps from its first start on, and after a kill the account beside its own books.

What was ordered and perhaps not sent is asked for by its id, and what was filled while nobody looked is taken in. What
remains cannot be explained: then nothing is traded.
"""

import json
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ml_pipeline.config.errors import CheckFailed, UserError
from ml_pipeline.config.wording import shown_path, text_table
from ml_pipeline.live.booking import book, is_foreign
from ml_pipeline.live.brokers.broker import AccountState, Fill, OrderRequest
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
    """What a session is stays the same from start to start; it is written down at the first. Raises UserError."""
    own = {"symbols": json.dumps(list(feed.symbols)), "broker": broker}
    if journal.meta("session_id") is None:
        with journal.transaction():
            journal.set_meta({**own, "session_id": secrets.token_hex(6)})
        return
    for name, value in own.items():
        if (before := journal.meta(name)) != value:
            raise UserError(
                f"The session in {shown_path(folder)} trades {name} {before}, but now {value} was asked for; "
                "choose another --name, or delete that folder to begin anew."
            )


def periods_per_year(journal: Journal, policy: DeployedPolicy, feed: Feed) -> float:
    """Bars per year, by which rates are charged: as they were when the session began, whatever has come since."""
    per_year = journal.meta(_PER_YEAR)
    if per_year is None:
        per_year = repr(policy.calendar(feed.calendar).periods_per_year)
        with journal.transaction():
            journal.set_meta({_PER_YEAR: per_year})
    return float(per_year)


def initial_cash(journal: Journal) -> float | None:
    """The money that the account began with; None at the first start."""
    cash = journal.meta(_CASH)
    return None if cash is None else float(cash)


def begin_account(journal: Journal, state: SessionState, account: AccountState, cursor: str | None) -> float:
    """Write down the account that the session begins with, its positions included. cursor: of the broker's events.

    Returns the money that it began with.
    """
    held = {symbol: n for symbol, n in account.positions.items() if n}
    cash = float(account.equity if held else account.cash)
    with journal.transaction():
        journal.set_meta({_CASH: repr(cash)})
        state.event_cursor = cursor
        if held:
            state.taken_over = {"cash": account.cash, "positions": held}
            state.awaiting_previous_model = True  # the positions, not choices of the policy
        state.save(journal)
    return cash


def note_model(record: SessionRecord, policy: DeployedPolicy) -> bool:
    """Whether the model is the one that traded last; it is written down where it is another."""
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
"""Cash that differs by less is rounded elsewhere."""
_QUANTITY = 1e-9  # of a position, as a fraction of it


class AccountDiffers(CheckFailed):
    """The account at the broker is not the one in the books, and nothing in the journal explains it."""


class Difference(NamedTuple):
    """What the books have, and what the broker has instead. what: a symbol, cash, or an order."""

    what: str
    books: str
    broker: str


def check_first_account(account: AccountState, *, broker: str) -> None:
    """Raise UserError about an account that holds positions before the session has begun."""
    if any(account.positions.values()):
        rows = [["symbol", "quantity"], *([symbol, f"{n:,g}"] for symbol, n in account.positions.items() if n)]
        raise UserError(
            f"The account at {broker} is not flat, so that its positions would not be those of the model:\n"
            f"{text_table(rows)}\nClose them, or begin with them by --take-over."
        )


def restore(session: SessionComponents, *, same_model: bool) -> None:
    """Bring policy runner, account and guards to where the journal left them.

    same_model: whether the model is the one whose state is there; the choices of another follow from what is held.
    If it cannot observe the bars, `session.failure` says why.
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
            state.awaiting_previous_model = True  # orders of the model before may be filled yet
    elif state.policy is not None:
        runner.set_state(state.policy)


def warm_up(session: SessionComponents) -> None:
    """Observe the bars before the first one to trade on, and write them down."""
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
    """What the account at the broker has and the books do not, and the other way round."""
    account, books = session.broker.account(), session.account
    held = dict(zip(session.symbols, books.holdings, strict=True))
    rows = []
    for symbol in sorted({*held, *account.positions}):
        own, theirs = held.get(symbol, 0.0), account.positions.get(symbol, 0.0)
        if abs(own - theirs) > _QUANTITY * max(1.0, abs(own), abs(theirs)):
            rows.append(Difference(symbol, f"{own:,.10g}", f"{theirs:,.10g}"))
    if not abs(books.cash - account.cash) < CENT:
        rows.append(Difference("cash", f"{books.cash:,.2f}", f"{account.cash:,.2f}"))
    rows += [
        Difference(f"order {each.client_order_id}", "-", f"{each.symbol} {each.status}")
        for each in session.broker.orders()
        if not session.orders.knows(each.client_order_id)
    ]
    return rows


def difference_table(rows: list[Difference]) -> str:
    """Both sides, beside each other."""
    return text_table([["", "books of the session", "account at the broker"], *(list(row) for row in rows)])


def reconcile_at_start(session: SessionComponents, go_on: Callable[[], bool] = lambda: True) -> None:
    """Take in what happened while nobody looked, and lay the account beside the books.

    Raises AccountDiffers, with both sides, where they differ by what nothing explains: after closing what the account
    holds, if that is configured. BrokerUnavailable may be raised at any point; then it is called again. go_on: asked
    again and again while positions are being closed.
    """
    state, record, orders, broker = session.state, session.record, session.orders, session.broker
    last = state.last
    assert last is not None, "a session that has not begun has nothing to reconcile"
    deadline = last.closed_at + np.timedelta64(session.feed.timing.length, "ns")
    now = session.feed.now()
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
    sentence = f"The account at {broker.name} is not the one in the books of this session:"
    flatten = session.settings.on_difference == "flatten"
    closing = _closing(session, last.time) if flatten else []
    with record.transaction():
        record.log("difference", last.time, rows=[row._asdict() for row in rows], fills=[f._asdict() for f in foreign])
        record.journal.add_orders(state.number - 1, closing)
    done = "Its positions are held as they are."
    if flatten:
        broker.cancel([each.client_order_id for each in broker.orders()])
        flat = _close_account(session, closing, go_on)
        done = "All its positions were closed." if flat else "Not all of its positions could be closed."
    record.log_now("stop", last.time, why=f"{sentence[:-1]}. {done}", flat=flat if flatten else None)
    raise AccountDiffers(f"{sentence}\n{table}\n{done} Nothing was traded on; look into it before the next start.")


def _close_account(session: SessionComponents, orders: list[OrderRequest], go_on: Callable[[], bool]) -> bool:
    """Send the orders and, bar after bar, new ones for what is not closed yet. Returns whether the account is flat."""
    broker, record, feed = session.broker, session.record, session.feed
    feed.start(after=session.state.time)
    while go_on():
        if orders:
            for update in broker.submit(orders):
                with record.transaction():
                    record.journal.update_order(update.client_order_id, update.status, reason=update.reason)
        if not any(broker.account().positions.values()):
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
    return not any(broker.account().positions.values())


def _closing(session: SessionComponents, bar_time: np.datetime64) -> list[OrderRequest]:
    """Orders that close what the account at the broker holds, whatever the books say."""
    held = session.broker.account().positions.items()
    return closing_orders(held, session_id=session.settings.session_id, bar_time=bar_time, purpose="difference")

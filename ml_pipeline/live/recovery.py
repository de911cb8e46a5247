"""Start a session: what it keeps from its first start on, and what happened since its last run.

Orders that may not have been sent are looked up by their IDs. Then the account is compared with the books.
"""

import json
import secrets
from pathlib import Path

import numpy as np

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.wording import shown_path, text_table
from ml_pipeline.live.account_check import check_account
from ml_pipeline.live.brokers.broker import AccountState, quantity_text
from ml_pipeline.live.components import SessionComponents
from ml_pipeline.live.corporate_actions import adjusted_bars
from ml_pipeline.live.decisions.deployed_policy import DeployedPolicy
from ml_pipeline.live.feeds.feed import Feed
from ml_pipeline.live.record.journal import Journal
from ml_pipeline.live.record.session_record import SessionRecord
from ml_pipeline.live.state import SessionState

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
        runner.observe_all(list(adjusted_bars(session.journal, session.symbols)))
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


def reconcile_at_start(session: SessionComponents) -> None:
    """Look up the orders that may not have been sent, book what happened since, and compare the account with the books.

    A pending request to flatten comes first: then no order is sent here. What differs is acted on as while the session
    runs. If BrokerUnavailable is raised, call it again.
    """
    state, feed = session.state, session.feed
    assert state.last is not None, "a session that has not begun has nothing to reconcile"
    deadline = state.last.closed_at + np.timedelta64(feed.timing.length, "ns")
    now = feed.now()
    if session.settings.real_time:  # this machine's clock may be behind
        now = max(now, session.broker.now())
    request = session.requests.poll()
    sends = not now > deadline and (request is None or request.what != "flatten")
    session.orders.settle_unsent(lambda order: sends and order.number == state.number - 1)
    check_account(session)

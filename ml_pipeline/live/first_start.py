"""What a session is from its first start on: its symbols, its broker, its account and its first model."""

import json
import secrets
from pathlib import Path

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.wording import shown_path
from ml_pipeline.live.brokers.broker import AccountState
from ml_pipeline.live.decisions.deployed_policy import DeployedPolicy
from ml_pipeline.live.feeds.feed import Feed
from ml_pipeline.live.record.journal import Journal
from ml_pipeline.live.record.session_record import SessionRecord
from ml_pipeline.live.state import SessionState

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

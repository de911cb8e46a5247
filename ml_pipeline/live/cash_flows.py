"""Money that comes into the account of a session or leaves it: announced by a person, booked when the account shows it,
and left out of returns.

A broker that names its deposits and withdrawals needs no announcement.
"""

import getpass
import math
import secrets
import socket
from collections.abc import Sequence
from contextlib import closing
from decimal import Decimal
from itertools import combinations
from pathlib import Path

import numpy as np

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.wording import in_one_line, text_table
from ml_pipeline.live.booking import ANNOUNCED, CENT, book
from ml_pipeline.live.brokers.broker import FLOWS, Adjustment, quantity_text
from ml_pipeline.live.brokers.simulated import SimulatedBroker
from ml_pipeline.live.components import SessionComponents
from ml_pipeline.live.record.journal import Journal
from ml_pipeline.live.record.session_log import time_text
from ml_pipeline.live.session_files import JOURNAL_FILE
from ml_pipeline.trading.market.data import FloatArray

_MOST_PENDING = 10
_AWAITED_FOR = np.timedelta64(30, "D")


def announce(folder: Path, *, deposit: float | None, withdraw: float | None, why: str | None) -> Adjustment:
    """Record that money was or will be moved, with who, when and why, in the journal of the session in this folder.

    The session may trade at the same time. Raises UserError if the amount or the reason cannot be used.
    """
    if (deposit is None) == (withdraw is None):
        raise UserError('adjust takes --deposit or --withdraw, and a reason, as in --deposit 500 --why "more capital".')
    amount, flag = (deposit, "--deposit") if deposit is not None else (withdraw, "--withdraw")
    assert amount is not None
    if not (math.isfinite(amount) and amount >= CENT):
        raise UserError(f"{flag} must be an amount of at least {CENT:g}, but got {amount:g}.")
    if not (why or "").strip():
        raise UserError(f'{flag} needs a reason, which the journal keeps, as in --why "more capital".')
    adjustment = Adjustment(
        adjustment_id=ANNOUNCED + secrets.token_hex(6),
        kind="withdrawal" if deposit is None else "deposit",
        symbol="",
        quantity=Decimal(0),
        cash=-amount if deposit is None else amount,
        what=f"{in_one_line(str(why), 200)}, by {_user()}",
        time=np.datetime64("now", "ns"),
    )
    with closing(Journal(folder / JOURNAL_FILE)) as journal, journal.transaction():
        if len(journal.announcements()) >= _MOST_PENDING:
            raise UserError(
                f"{_MOST_PENDING} announcements already wait for the account to show them; see adjust NAME."
            )
        journal.announce(adjustment)
    return adjustment


def adjustments_table(folder: Path) -> str:
    """Every adjustment of the session in this folder, announced ones last, as text."""
    with closing(Journal(folder / JOURNAL_FILE, writes=False)) as journal:
        booked, announced = [each for _, each in journal.adjustments()], journal.announcements()
    rows = [
        [
            time_text(each.time.astype("datetime64[s]")),
            each.kind,
            f"{each.cash:+,.2f}",
            *_quantity(each),
            each.what,
            state,
        ]
        for state, some in (("booked", booked), ("announced", announced))
        for each in some
    ]
    if not rows:
        return "No money came into the account or left it, and no position changed without an order."
    return text_table([["when", "what", "cash", "quantity", "why", ""], *rows])


def book_announced(session: SessionComponents, missing: float) -> bool:
    """Book the announced money that adds up to this amount, which the books lack, within a transaction.

    Returns whether there is any.
    """
    arrived = _that_add_up_to(missing, session.journal.announcements())
    for adjustment in arrived:
        book(session, adjustment)
    return bool(arrived)


def expire_announced(session: SessionComponents) -> None:
    """Alert about announced money that has not come within a month, and wait for it no longer; in a transaction."""
    for each in session.journal.announcements():
        if session.feed.now() - each.time > _AWAITED_FOR:
            sentence = (
                f"The {each.kind} of {abs(each.cash):,.2f} that was announced ({each.what}) has not come within a "
                "month, and is no longer waited for; announce it again if it is still to come."
            )
            session.journal.drop_announcement(each.adjustment_id)
            session.record.log("alert", session.state.time, guard="announced", sentence=sentence)


def move_simulated_money(session: SessionComponents) -> None:
    """Let the simulated broker move what was announced; it reports each as an event. Raises BrokerUnavailable.

    Call it when all events have been received, so that a kill before they are booked moves nothing twice.
    """
    if isinstance(session.broker, SimulatedBroker):
        moved = {each.adjustment_id for each in session.orders.received if isinstance(each, Adjustment)}
        for adjustment in session.journal.announcements():
            if adjustment.adjustment_id not in moved:
                session.broker.adjust(adjustment)


def flows_by_row(journal: Journal, n: int) -> FloatArray:
    """The cash that came into the account (positive) or left it in each of the n rows of the ledger."""
    flows, first = np.zeros(n), journal.first_account_bar() or 0
    for number, each in journal.adjustments():
        if each.kind in FLOWS and 0 <= number - first < n:
            flows[number - first] += each.cash
    return flows


def _that_add_up_to(missing: float, announced: Sequence[Adjustment]) -> Sequence[Adjustment]:
    """The fewest announcements whose sum is this amount to the cent; none if there are none."""
    for n in range(1, len(announced) + 1):
        for some in combinations(announced, n):
            if abs(sum(each.cash for each in some) - missing) < CENT:
                return some
    return ()


def _quantity(each: Adjustment) -> list[str]:
    return [f"{quantity_text(each.quantity)} {each.symbol}" if each.quantity else ""]


def _user() -> str:
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (OSError, KeyError):  # a container may have no name for its user
        return f"a user of {socket.gethostname()}"

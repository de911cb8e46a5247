"""Splits in a session: features and guards see earlier prices rescaled, and until the account has the split nothing is
ordered and no stop or target is open, because Alpaca leaves the prices of those that belong to a group as they are.

The journal keeps bars as they came. A symbol has A places in a set of bars.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from ml_pipeline.config.errors import UserError
from ml_pipeline.live.components import SessionComponents
from ml_pipeline.live.decisions.policy_runner import PolicyRunner
from ml_pipeline.live.feeds.feed import CorporateAction
from ml_pipeline.live.record.journal import Journal
from ml_pipeline.trading.market.bar_set import BarSet
from ml_pipeline.trading.market.data import FloatArray

_PRICES = ("open", "high", "low", "close")
_DAYS_BEFORE = np.timedelta64(3, "D")
"""A broker may date a split by the day before it begins."""


def note_action(session: SessionComponents, action: CorporateAction, waiting: Sequence[BarSet]) -> None:
    """Record a corporate action that the feed reports, and rescale the past of features and guards after a split.

    waiting: bars that are observed and not in the journal yet.
    """
    state, journal = session.state, session.journal
    if action.action_id in {known.action_id for _, known in journal.corporate_actions()}:
        return
    splits = action.kind == "split" and state.begun  # bars of before the first decision are adjusted by their source
    awaited = splits and bool(session.account.positions.get(action.symbol)) and not _is_booked(journal, action)
    what = action.what
    if awaited and session.orders.protects:
        what += " Its stop and target are canceled until the account has the split."
    with session.record.transaction():
        journal.add_corporate_action(state.number + len(waiting), action if splits else action._replace(factor=1.0))
        session.record.log("corporate_action", state.time, **action._asdict(), sentence=what)
        if awaited:
            state.awaited_splits.add(action.symbol)
        if splits and state.last is not None and state.last.time < action.begins:
            session.guards.note_split(action.symbol, action.factor)
            state.guards = session.guards.state()
    if splits:
        before, runner = session.runner.state(), session.runner
        calendar = runner.policy.calendar(session.feed.calendar)
        session.runner = PolicyRunner(runner.policy, session.symbols, session.feed.timing, calendar)
        try:
            session.runner.observe_all([*adjusted_bars(journal, session.symbols), *waiting])
        except UserError as error:
            session.failure = str(error)
        session.runner.set_state(before)


def adjusted_bars(journal: Journal, symbols: Sequence[str]) -> Iterator[BarSet]:
    """The bars of the journal, those before a split in the prices after it."""
    bars = list(journal.bars())
    yield from rescaled_bars(bars, price_factors(journal, symbols, bars))


def price_factors(journal: Journal, symbols: Sequence[str], bars: Sequence[BarSet]) -> FloatArray:
    """Factors that turn the prices of each bar into those after all reported splits, (bars, A)."""
    factors = np.ones((len(bars), len(symbols)))
    for before, split in journal.corporate_actions():
        if split.factor != 1.0 and split.symbol in symbols:
            a = list(symbols).index(split.symbol)
            for number, each in enumerate(bars[:before]):
                factors[number, a] *= split.factor if each.time < split.begins else 1.0
    return factors


def rescaled_bars(bars: Sequence[BarSet], factors: FloatArray) -> Iterator[BarSet]:
    """The bars with prices multiplied by `factors`, (bars, A), and volumes divided by them."""
    for each, own in zip(bars, factors, strict=True):
        if (own == 1.0).all():
            yield each
        else:
            prices = {name: getattr(each, name) * own for name in _PRICES}
            yield replace(each, **prices, volume=each.volume / own)


def awaited_splits(session: SessionComponents) -> list[str]:
    """The symbols held whose split the account does not have yet."""
    held = dict(zip(session.symbols, session.account.holdings, strict=True))
    return [symbol for symbol in sorted(session.state.awaited_splits) if held.get(symbol)]


def _is_booked(journal: Journal, action: CorporateAction) -> bool:
    return any(
        each.kind == "split" and each.symbol == action.symbol and each.time >= action.begins - _DAYS_BEFORE
        for _, each in journal.adjustments()
    )

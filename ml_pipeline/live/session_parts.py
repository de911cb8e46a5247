"""The parts of a session that trade and write down, made of its settings, its model, its feed and its broker."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ml_pipeline.live.brokers.broker import Broker, TradingSession
from ml_pipeline.live.config import PaperTradeConfig
from ml_pipeline.live.decisions.deployed_policy import DeployedPolicy
from ml_pipeline.live.decisions.policy_runner import PolicyRunner
from ml_pipeline.live.feeds.feed import Feed
from ml_pipeline.live.feeds.hours import SessionTimes
from ml_pipeline.live.loop.parts import LoopSettings, Parts
from ml_pipeline.live.portfolio import AccountBook
from ml_pipeline.live.record.journal import Journal
from ml_pipeline.live.record.session_record import SessionRecord
from ml_pipeline.live.recovery import periods_per_year
from ml_pipeline.live.risk.guards import Guards
from ml_pipeline.live.sizing import size_orders
from ml_pipeline.live.state import SessionState
from ml_pipeline.live.supervision.requests import Requests
from ml_pipeline.trading.accounts.rules import TradingRules

_SMALLEST_QUANTITY = 1e-9
"""Brokers that take quantities count them in decimals, with no more digits than nine."""
_MONTH = np.timedelta64(31, "D")

Tell = Callable[[str, np.datetime64 | None, Mapping[str, Any]], None]


def last_month(broker: Broker) -> list[TradingSession]:
    """The market's sessions of the last month. Raises BrokerUnavailable."""
    return broker.sessions(broker.now() - _MONTH, broker.now())


def make_parts(
    config: PaperTradeConfig,
    policy: DeployedPolicy,
    *,
    folder: Path,
    journal: Journal,
    state: SessionState,
    feed: Feed,
    broker: Broker,
    rules: TradingRules,
    sessions: Sequence[TradingSession],
) -> Parts:
    """The parts as they begin. rules: with the money that the account began with. sessions: of the market, lately."""
    books = AccountBook(feed.symbols, rules, smallest_quantity=0.0 if broker.sizes_at_fill else _SMALLEST_QUANTITY)
    if state.taken_over is not None:
        books.take_over(**state.taken_over)
    return Parts(
        broker=broker,
        feed=feed,
        decider=PolicyRunner(policy, feed.symbols, feed.timing, policy.calendar(feed.calendar)),
        books=books,
        guards=Guards(config.guards, feed.symbols, timing=feed.timing, sessions=sessions),
        size=partial(
            size_orders,
            books=books,
            terms=rules.terms(periods_per_year(journal, policy, feed)),
            sizes_at_fill=broker.sizes_at_fill,
            quantities=getattr(broker, "quantities", None),
        ),
        clip=policy.clip,
        rules=rules,
        window=policy.window,
        model=str(policy.checkpoint),
        version=policy.version,
        session_of=SessionTimes(broker),
        requests=Requests(folder),
        about={"name": folder.name, "broker": broker.name, "real_money": broker.real_money},
    )


def make_record(
    folder: Path,
    journal: Journal,
    state: SessionState,
    feed: Feed,
    rules: TradingRules,
    *,
    say: Callable[[str], None],
    tell: Tell,
) -> SessionRecord:
    """What the session writes down. say: told sentences for a person. tell: told events, for alerts."""
    ledger = {"exits": rules.acts_within_bars, "by_day": rules.financing_bps_per_year is not None}
    return SessionRecord(
        folder, journal, state, symbols=feed.symbols, timing=feed.timing, ledger=ledger, say=say, tell=tell
    )


def loop_settings(config: PaperTradeConfig, journal: Journal) -> LoopSettings:
    """How the loop of the session goes on where something is wrong."""
    return LoopSettings(
        session_id=str(journal.meta("session_id")),
        on_gap=config.feed.on_gap,
        on_difference=config.session.on_difference,
        on_error=config.session.on_error,
        real_time=config.feed.replay is None,
    )


def warm_up(parts: Parts, record: SessionRecord) -> None:
    """Observe the bars before the first one to trade on, and write them down."""
    with record.transaction():
        history = [parts.guards.sift(bars) for bars in parts.feed.history()]
        parts.decider.observe_all(history)
        for number, bars in enumerate(history):
            parts.guards.note_history(bars)
            parts.books.warm_up(bars)
            parts.broker.market_closed_bar(bars)
            record.add_bar(number, bars, None)
            record.state.note_bar(bars)
        record.state.account = parts.books.state()
        record.state.guards = parts.guards.state()


def start_event(config: PaperTradeConfig, policy: DeployedPolicy, broker: Broker, feed: Feed) -> dict[str, Any]:
    """What the log says of a start."""
    return {
        "model": str(policy.checkpoint),
        "version": policy.version,
        "broker": broker.name,
        "real_money": broker.real_money,
        "symbols": feed.symbols,
        "settings": config.as_data(),
    }

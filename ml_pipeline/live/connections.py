"""Open the feed and the broker that the settings name, and retry while a broker is unreachable.

No other module of this folder opens network connections.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np

from ml_pipeline.config.errors import UserError
from ml_pipeline.live.brokers.broker import Broker, BrokerUnavailable
from ml_pipeline.live.brokers.simulated import SimulatedBroker
from ml_pipeline.live.config import PaperTradeConfig
from ml_pipeline.live.decisions.deployed_policy import DeployedPolicy
from ml_pipeline.live.feeds.feed import Feed
from ml_pipeline.live.feeds.file import GrowingFileFeed
from ml_pipeline.live.feeds.hours import BarCalendar
from ml_pipeline.live.feeds.replay import ReplayFeed
from ml_pipeline.live.record.session_record import SessionRecord
from ml_pipeline.live.session_files import BROKER_FILE
from ml_pipeline.runs.stop import StopRequest
from ml_pipeline.runtime.user_code import call_user_code, import_by_name
from ml_pipeline.trading.accounts.rules import TradingRules
from ml_pipeline.trading.configured_market import load_configured_market
from ml_pipeline.trading.envs.prepared_market import require_what_rules_need
from ml_pipeline.trading.features.feature_stream import bars_to_warm_up
from ml_pipeline.trading.market.data import MarketData
from ml_pipeline.trading.market.files import Reading
from ml_pipeline.trading.market.timeframes import timeframe_ns
from ml_pipeline.trading.traded_market import TradedMarket

Answer = TypeVar("Answer")
_FIRST_BACK_OFF_S, _LONGEST_BACK_OFF_S = 0.5, 30.0
Ask = Callable[[str], str]
"""Asks the user a question on a terminal and returns the answer."""


def open_feed(config: PaperTradeConfig, policy: DeployedPolicy) -> Feed:
    """The feed of the symbols that the policy trades. Raises UserError if the bars cannot be used."""
    if config.feed.replay is not None:
        market = _recorded(config.feed.replay, policy)
        require_what_rules_need(market, policy.rules)
        begins = config.feed.replay_begins
        replay = ReplayFeed(market, speed=config.feed.speed, begins=begins)
        if (trained := policy.trained.bars) is not None:
            replay.notices += trained.about(market, market.times[market.times >= (begins or market.times[0])])
        return replay
    if config.feed.follow is not None:
        trading = policy.config
        reading = Reading(policy.symbols, trading.bar_time, trading.form(), trading.dialect())
        return GrowingFileFeed(config.feed.follow, reading, config.feed)
    if config.broker != "alpaca":
        raise UserError(
            "The session has no source of bars; set --replay to recorded bars, --follow to a growing file, or "
            "--broker alpaca, which delivers bars."
        )
    from ml_pipeline.live.alpaca.feed import open_alpaca_feed

    feed = config.feed
    if feed.warmup_bars is None and (timeframe := policy.config.timeframe) is not None:
        needed = bars_to_warm_up(policy.config.features, window=policy.window, length_ns=timeframe_ns(timeframe))
        feed = replace(feed, warmup_bars=needed)
    return open_alpaca_feed(policy.symbols, policy.config.form(), config.alpaca, feed)


def check_long_enough(replay: Path, policy: DeployedPolicy) -> None:
    """Raise UserError, as an evaluation does, if the recorded bars are too few for a decision."""
    market = _recorded(replay, policy)
    TradedMarket(replace(policy.config, data=replay), market=market, scaler=policy.scaler).evaluation_env("all")


def _recorded(replay: Path, policy: DeployedPolicy) -> MarketData:
    market = load_configured_market(replace(policy.config, data=replay))
    symbols = policy.symbols_on(market.symbols)
    return market if symbols == market.symbols else market.select(symbols)


def open_broker(
    config: PaperTradeConfig, feed: Feed, rules: TradingRules, *, folder: Path, periods_per_year: float, ask: Ask | None
) -> Broker:
    """The broker that the settings name. Raises UserError, or BrokerUnavailable if it cannot be reached."""
    if ":" in config.broker:
        return _open_own(config.broker, feed, rules, folder)
    if config.broker == "alpaca":
        from ml_pipeline.live.alpaca.broker import open_alpaca

        return open_alpaca(config.alpaca, symbols=feed.symbols, rules=rules, ask=ask)
    calendar = BarCalendar(feed.times_after, feed.timing)
    return SimulatedBroker(
        feed.symbols,
        rules,
        periods_per_year=periods_per_year,
        store=folder / BROKER_FILE,
        interest_days=calendar.interest_days,
        bar_length=np.timedelta64(feed.timing.length, "ns"),
        faults=config.faults,
        durable=config.feed.replay is None,
    )


def _open_own(name: str, feed: Feed, rules: TradingRules, folder: Path) -> Broker:
    """A broker of the user's own class. name: module:Class."""
    broker_class = import_by_name(name)
    try:
        broker: Broker = call_user_code(name, lambda folder: broker_class(feed.symbols, rules, folder), folder)
    except UserError as error:
        if isinstance(error.__cause__, BrokerUnavailable | UserError):
            raise error.__cause__ from None
        raise
    members = (*Broker.__annotations__, *(each for each in vars(Broker) if not each.startswith("_")))
    if missing := [each for each in members if not hasattr(broker, each)]:
        raise UserError(f"{name} is not a broker: it lacks {', '.join(missing)}; see docs/reference/paper-trading.md.")
    return broker


class BrokerConnection:
    """The connection to a broker: failed calls are retried with growing pauses, and an outage is logged once.

    away: whether the last attempt failed. back_off_s: pause before the next attempt, in seconds."""

    def __init__(self, record: SessionRecord) -> None:
        self._record = record
        self.away = False
        self.back_off_s = _FIRST_BACK_OFF_S

    def attempt(self, work: Callable[[], object], bar: np.datetime64 | None) -> bool:
        """Call `work`, which uses the broker; False if it is unreachable. bar: time of the last bar, for the log."""
        try:
            work()
        except BrokerUnavailable as error:
            if not self.away:
                self.away = True
                self._record.log_now("broker_away", bar, sentence=_away(error))
            self.back_off_s = _longer(self.back_off_s)
            return False
        self.back_off_s = _FIRST_BACK_OFF_S
        if self.away:
            self.away = False
            self._record.log_now("broker_back", bar, sentence="The broker can be reached again.")
        return True


class StopWhileWaiting(Exception):
    """A stop was requested while the broker was unreachable."""


def retry_until_available(
    ask: Callable[[], Answer],
    stop: StopRequest,
    say: Callable[[str], None],
    *,
    beat: Callable[[], None] = lambda: None,
) -> Answer:
    """Call `ask`, which uses the broker, until it answers, with growing pauses; an outage is reported once.

    beat: called repeatedly while waiting. Raises StopWhileWaiting if a stop is requested in the meantime.
    """
    wait_s, told = _FIRST_BACK_OFF_S, False
    while True:
        try:
            return ask()
        except BrokerUnavailable as error:
            if not told:
                say(_away(error))
            told = True
        until = time.monotonic() + wait_s
        while (left := until - time.monotonic()) > 0:
            if stop.requested:
                raise StopWhileWaiting
            beat()
            time.sleep(min(left, 0.2))
        wait_s = _longer(wait_s)


def _longer(back_off_s: float) -> float:
    return min(2 * back_off_s, _LONGEST_BACK_OFF_S)


def _away(error: BrokerUnavailable) -> str:
    return f"The broker cannot be reached: {error}".rstrip(": .") + "; trying again."

"""Where a session's bars come from and whose account it trades, as its settings say."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from ml_pipeline.config.errors import UserError
from ml_pipeline.live.brokers.broker import Broker
from ml_pipeline.live.brokers.simulated import SimulatedBroker
from ml_pipeline.live.config import PaperTradeConfig
from ml_pipeline.live.decisions.deployed_policy import DeployedPolicy
from ml_pipeline.live.feeds.feed import Feed
from ml_pipeline.live.feeds.file import GrowingFileFeed
from ml_pipeline.live.feeds.hours import BarCalendar
from ml_pipeline.live.feeds.replay import ReplayFeed
from ml_pipeline.live.session_files import BROKER_FILE
from ml_pipeline.trading.accounts.rules import TradingRules
from ml_pipeline.trading.envs.prepared_market import require_what_rules_need
from ml_pipeline.trading.features.feature_stream import bars_to_warm_up
from ml_pipeline.trading.market.data import MarketData
from ml_pipeline.trading.market.files import Reading
from ml_pipeline.trading.market.timeframes import timeframe_ns
from ml_pipeline.trading.task import TradingTask, load_configured_market

Ask = Callable[[str], str]
"""Asks a person a question on a terminal; their answer."""


def open_feed(config: PaperTradeConfig, policy: DeployedPolicy) -> Feed:
    """The feed of the symbols that the policy trades. Raises UserError where the bars cannot be used."""
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
            "Nothing says where bars come from; name recorded bars by --replay, a file that grows by --follow, or "
            "trade with --broker alpaca, which has bars of its own."
        )
    from ml_pipeline.live.alpaca.feed import open_alpaca_feed

    feed = config.feed
    if feed.warmup_bars is None and (timeframe := policy.config.timeframe) is not None:
        needed = bars_to_warm_up(policy.config.features, window=policy.window, length_ns=timeframe_ns(timeframe))
        feed = replace(feed, warmup_bars=needed)
    return open_alpaca_feed(policy.symbols, policy.config.form(), config.alpaca, feed)


def check_long_enough(replay: Path, policy: DeployedPolicy) -> None:
    """Raise UserError, as an evaluation does, about recorded bars that are too few for a decision."""
    market = _recorded(replay, policy)
    TradingTask(replace(policy.config, data=replay), market=market, scaler=policy.scaler).evaluation_env("all")


def _recorded(replay: Path, policy: DeployedPolicy) -> MarketData:
    market = load_configured_market(replace(policy.config, data=replay))
    symbols = policy.symbols_on(market.symbols)
    return market if symbols == market.symbols else market.select(symbols)


def open_broker(
    config: PaperTradeConfig, feed: Feed, rules: TradingRules, *, folder: Path, periods_per_year: float, ask: Ask | None
) -> Broker:
    """The broker that the settings name. Raises UserError, and BrokerUnavailable where it cannot be reached."""
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

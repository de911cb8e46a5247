"""Open the feed and the broker that the settings name, and retry while a broker is unreachable.

No other module of this folder opens network connections.
"""

import math
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.wording import lasting
from ml_pipeline.live.brokers.broker import Broker, BrokerUnavailable, UnreadableAnswer
from ml_pipeline.live.brokers.simulated import SimulatedBroker
from ml_pipeline.live.config import PaperTradeConfig
from ml_pipeline.live.decisions.deployed_policy import DeployedPolicy
from ml_pipeline.live.feeds.feed import Feed
from ml_pipeline.live.feeds.file import GrowingFileFeed
from ml_pipeline.live.feeds.file_reading import FileReader
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
from ml_pipeline.trading.market.resampling import BarForm
from ml_pipeline.trading.market.timeframes import timeframe_ns
from ml_pipeline.trading.traded_market import TradedMarket

Answer = TypeVar("Answer")
_FIRST_BACK_OFF_S, _LONGEST_BACK_OFF_S = 0.5, 30.0
_now_s, _sleep = time.monotonic, time.sleep  # tests replace them
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
        symbols = _symbols_to_follow(config.feed.follow, policy)
        reading = Reading(symbols, trading.bar_time, trading.form(), trading.dialect())
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


def _symbols_to_follow(path: Path, policy: DeployedPolicy) -> tuple[str, ...]:
    """The symbols of a followed file to trade: as in a replay, but trained ones may have no row yet."""
    trained, trading = policy.symbols, policy.config
    if trading.symbols:
        return trained
    found: tuple[str, ...] = ()
    for whole in (False, True):  # the last rows of a large file, then all of them
        try:
            reader = FileReader(path, Reading(None, trading.bar_time, BarForm(), trading.dialect()))
            found = reader.read(whole=whole).market.symbols
        except UserError:  # no file or row yet, or none that can be used: opening the feed says so
            return trained
        if {*found} <= {*trained} or {*trained} <= {*found}:
            return trained
    return policy.symbols_on(found)


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

    away: whether the last attempt failed. why: the error of that attempt. back_off_s: pause before the next attempt, in
    seconds."""

    def __init__(self, record: SessionRecord) -> None:
        self._record = record
        self.away = False
        self.why = ""
        self.back_off_s = _FIRST_BACK_OFF_S
        self._since = 0.0

    @property
    def away_s(self) -> float:
        """How long the broker has been unreachable, in seconds; 0: it is not."""
        return _now_s() - self._since if self.away else 0.0

    def attempt(self, work: Callable[[], object], bar: np.datetime64 | None) -> bool:
        """Call `work`, which uses the broker; False if it is unreachable. bar: time of the last bar, for the log."""
        try:
            work()
        except BrokerUnavailable as error:
            self.why = str(error)
            if not self.away:
                self.away, self._since = True, _now_s()
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


class StillUnreachable(Exception):
    """The broker was unreachable for too long. The message is a sentence."""


def still_unreachable(why: str, most_s: float, positions: Literal["hold", "flatten"]) -> str:
    """The sentence that ends a session after `most_s` seconds of an outage."""
    done = "positions are held" if positions == "hold" else "the next start closes all positions"
    return f"{why.rstrip(' .')}. This lasted for more than {lasting(most_s)} (unreachable_for); {done}."


def retry_until_available(
    ask: Callable[[], Answer],
    stop: StopRequest,
    say: Callable[[str], None],
    *,
    beat: Callable[[], None] = lambda: None,
    most_s: float = math.inf,
    keys_count: bool = False,
) -> Answer:
    """Call `ask`, which uses the broker, until it answers, with growing pauses; an outage is reported once.

    beat: called repeatedly while waiting. most_s: then raises StillUnreachable. keys_count: refused keys are an outage,
    not invalid input. Raises StopWhileWaiting if a stop is requested in the meantime.
    """
    patience, told = Patience(most_s, stop, beat), False
    while True:
        try:
            return ask()
        except BrokerUnavailable as error:
            if isinstance(error, UserError) and not keys_count:
                raise
            if not told:
                say(_away(error))
            told, why = True, str(error)
        patience.wait(why)


class Patience:
    """Growing pauses between attempts, for at most `most_s` seconds from the first one. beat: called repeatedly."""

    def __init__(self, most_s: float, stop: StopRequest, beat: Callable[[], None]) -> None:
        self._most_s, self._stop, self._beat = most_s, stop, beat
        self.reset()

    def reset(self) -> None:
        """Count from now."""
        self._began, self._pause_s = _now_s(), _FIRST_BACK_OFF_S

    def wait(self, why: str) -> None:
        """Pause before the next attempt. why: the last one failed.

        Raises StillUnreachable if the time is over, and StopWhileWaiting if a stop is requested.
        """
        if _now_s() - self._began > self._most_s:
            raise StillUnreachable(why)
        until = _now_s() + self._pause_s
        while (left := until - _now_s()) > 0:
            if self._stop.requested:
                raise StopWhileWaiting
            self._beat()
            _sleep(min(left, 0.2))
        self._pause_s = _longer(self._pause_s)


def _longer(back_off_s: float) -> float:
    return min(2 * back_off_s, _LONGEST_BACK_OFF_S)


def _away(error: BrokerUnavailable) -> str:
    if isinstance(error, UnreadableAnswer):
        return f"{error} Nothing is ordered on it; asking again."
    return f"The broker cannot be reached: {error}".rstrip(": .") + "; trying again."

"""Bars of stocks or crypto from Alpaca: its stream, and its history for the warm-up and for missed bars.

The time of a bar is its open: trades from 09:31 to before 09:32 are the bar of 09:31 ("Stock Minute Bars",
https://alpaca.markets/learn/stock-minute-bars). Only minutes with trades have a bar.
"""

from collections.abc import Callable, Sequence

import numpy as np

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.wording import counted
from ml_pipeline.live.alpaca.bars import BarHistory, BarStream
from ml_pipeline.live.alpaca.client import ExchangeClock, RestClient
from ml_pipeline.live.alpaca.config import AlpacaConfig
from ml_pipeline.live.alpaca.corporate_actions import ActionsOfTheDay
from ml_pipeline.live.alpaca.keys import Keys, find_keys
from ml_pipeline.live.alpaca.library import alpaca_module
from ml_pipeline.live.brokers.broker import BrokerUnavailable, TradingSession
from ml_pipeline.live.feeds.assembled import AssembledFeed, Market
from ml_pipeline.live.feeds.bars import SymbolBar
from ml_pipeline.live.feeds.config import FeedConfig
from ml_pipeline.live.feeds.feed import BarsUnavailable, CorporateAction, stamp_sentence, utc_now
from ml_pipeline.live.feeds.hours import sessions_of_clock
from ml_pipeline.trading.market.resampling import BarForm
from ml_pipeline.trading.market.timeframes import DAY, Calendar, Timing, make_clock, timeframe_ns

_MINUTE_NS = 60 * 10**9
# Bars arrive within seconds of each minute; without one for this long in an open market, the connection is dead.
_SILENT_MINUTES = 2
_EXCHANGE = make_clock("09:30-16:00", "America/New_York")
_WEEK = np.timedelta64(7, "D")


class AlpacaBars:
    """Alpaca's history and stream as a source of bars; the stream begins with `open`.

    rest: closed together with it.
    """

    name = "Alpaca"

    def __init__(
        self,
        keys: Keys,
        symbols: Sequence[str],
        config: AlpacaConfig,
        *,
        silent_s: float,
        rest: RestClient | None = None,
    ) -> None:
        crypto = is_crypto(symbols)
        self._keys = keys
        self._symbols = tuple(symbols)
        self._config = config
        self._silent_s = silent_s
        self._feed = None if crypto else config.alpaca_data_feed
        url, timeout_s = config.alpaca_data_url, config.alpaca_timeout_s
        self._history = BarHistory(keys, symbols, feed=self._feed, url=url, timeout_s=timeout_s)
        self._actions = None if crypto else ActionsOfTheDay(self._history.corporate_actions)
        self._stream: BarStream | None = None
        self._rest = rest
        self._closed = False

    def open(self) -> None:
        if self._stream is None and not self._closed:
            self._stream = BarStream(
                self._keys,
                self._symbols,
                feed=self._feed,
                url=self._config.alpaca_data_stream_url,
                timeout_s=self._config.alpaca_timeout_s,
                silent_s=self._silent_s,
            )

    def receive(self, timeout_s: float) -> list[SymbolBar]:
        return [] if self._stream is None else self._stream.receive(timeout_s)

    def history(self, first: np.datetime64, last: np.datetime64) -> list[SymbolBar]:
        try:
            return self._history.bars(first, last)
        except UserError as error:
            if self._stream is None:
                raise
            raise BarsUnavailable(str(error)) from error  # the session continues and reports it

    def corporate_actions(self, begins: np.datetime64, now: np.datetime64) -> list[CorporateAction]:
        return [] if self._actions is None else self._actions.since(begins, now)

    def close(self) -> None:
        self._closed = True
        if self._stream is not None:
            self._stream.close()
        self._history.close()
        if self._rest is not None:
            self._rest.close()


class ExchangeSessions:
    """Alpaca's calendar, requested for some weeks at a time; if it is unavailable, the usual hours of weekdays."""

    def __init__(self, rest: RestClient) -> None:
        self._hours = ExchangeClock(rest)
        self._known: tuple[np.datetime64, np.datetime64] | None = None
        self._sessions: list[TradingSession] = []

    def __call__(self, first: np.datetime64, last: np.datetime64) -> list[TradingSession]:
        days = first.astype("datetime64[D]"), last.astype("datetime64[D]")
        if self._known is None or not (self._known[0] <= days[0] and days[1] <= self._known[1]):
            known = days[0] - _WEEK, days[1] + 2 * _WEEK
            try:
                self._sessions = self._hours.sessions(*known)
            except BrokerUnavailable:
                return sessions_of_clock(_EXCHANGE, first, last, weekends=False)
            self._known = known
        return [each for each in self._sessions if each.closes > first and each.opens < last]


def open_alpaca_feed(
    symbols: Sequence[str],
    form: BarForm,
    alpaca: AlpacaConfig,
    config: FeedConfig,
    *,
    clock: Callable[[], np.datetime64] = utc_now,
    silent_s: float = _SILENT_MINUTES * 60.0,
) -> AssembledFeed:
    """Bars of `symbols`, of length `form.timeframe`, within its session.

    Raises UserError if the symbols are of two kinds, the length of bars is unknown, or keys are missing.
    """
    if not symbols:
        raise UserError("Alpaca's feed needs the names of symbols; set --symbols.")
    if form.timeframe is None:
        raise UserError(
            "Alpaca sends one-minute bars; set --timeframe to the length of the bars in training, such as 1m or 5m."
        )
    alpaca_module("data.enums")  # if the package is missing, report this first
    crypto, length = is_crypto(symbols), timeframe_ns(form.timeframe)
    if length < _MINUTE_NS:
        raise UserError(f"Alpaca sends one-minute bars; --timeframe {form.timeframe} is shorter, set 1m or longer.")
    keys = find_keys(live=alpaca.live)
    rest = None
    if not crypto:
        rest = RestClient(keys, live=alpaca.live, url=alpaca.alpaca_url, timeout_s=alpaca.alpaca_timeout_s)
    sessions = None if rest is None else ExchangeSessions(rest)
    base = Timing(_MINUTE_NS, "open", form.clock)
    market = Market(tuple(symbols), base, length, _calendar(base, length, crypto=crypto), sessions)
    source = AlpacaBars(keys, symbols, alpaca, silent_s=silent_s, rest=rest)
    example = sessions_of_clock(_EXCHANGE, clock() - _WEEK, clock(), weekends=False)[0].opens
    return AssembledFeed(source, market, config, notices=_notices(market, alpaca, example, crypto=crypto), clock=clock)


def is_crypto(symbols: Sequence[str]) -> bool:
    """Whether the symbols are pairs such as BTC/USD. Raises UserError if only some are."""
    pairs = [symbol for symbol in symbols if "/" in symbol]
    if pairs and len(pairs) < len(symbols):
        other = next(symbol for symbol in symbols if "/" not in symbol)
        raise UserError(f"{pairs[0]} is crypto and {other} a stock, whose hours differ; trade one kind in a session.")
    return bool(pairs)


def _calendar(base: Timing, length: int, *, crypto: bool) -> Calendar:
    """The calendar that `infer_calendar` would find in full years of such bars."""
    days = 365.0 if crypto else 252.0
    open_for = base.clock.open_for if base.clock.has_session else DAY if crypto else 16 * 3_600 * 10**9
    per_day = 1.0 if length >= DAY else float(-(-open_for // length))
    per_day /= 5 if length > DAY else 1
    name = "24/7" if crypto else "weekdays"
    return Calendar(name, days * per_day, f"Alpaca's {name} market: {days:g} x {per_day:g} a year")


def _notices(market: Market, alpaca: AlpacaConfig, example: np.datetime64, *, crypto: bool) -> tuple[str, ...]:
    feed = "Alpaca's crypto market" if crypto else f"Alpaca's feed {alpaca.alpaca_data_feed}, adjusted to splits"
    of = counted(len(market.symbols), "symbol")
    hours = () if crypto or market.base.clock.has_session else (_BEFORE_AND_AFTER,)
    timing = Timing(market.length, "open", market.base.clock)
    return (f"bars of {of} come from {feed}", stamp_sentence(example, timing), *hours)


_BEFORE_AND_AFTER = (
    "no session is set: bars before the opening and after the close of the exchange are included; --session "
    "09:30-16:00 --timezone America/New_York excludes them"
)

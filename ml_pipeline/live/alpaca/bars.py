"""One-minute bars from Alpaca: past ones page by page within a time limit, and new ones by its stream.

Sources: https://docs.alpaca.markets/reference/stockbars, https://docs.alpaca.markets/docs/real-time-stock-pricing-data.
A bar's `t` is its open. The stream sends `bars` right after their minute, and `updatedBars` half a minute later if
trades were reported late.
"""

import contextlib
import queue
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from typing import Any

import numpy as np

from ml_pipeline.config.errors import UserError
from ml_pipeline.live.alpaca.client import SERVER_ERRORS, TOO_MANY, TimeLimit
from ml_pipeline.live.alpaca.corporate_actions import actions_of
from ml_pipeline.live.alpaca.keys import Keys
from ml_pipeline.live.alpaca.library import (
    StreamThread,
    alpaca_module,
    bounded_stream,
    timed_session,
    websocket_parameters,
    why_no_answer,
)
from ml_pipeline.live.feeds.bars import SymbolBar
from ml_pipeline.live.feeds.feed import BarsUnavailable, CorporateAction

DATA_URL = "https://data.alpaca.markets"
_MOST_OF_A_PAGE = 10_000


class BarHistory:
    """Bars of `symbols`, adjusted for splits. feed: iex or sip for stocks; None: crypto.

    timeout_s: the longest time for each page, including waits after status 429.
    """

    def __init__(
        self, keys: Keys, symbols: Sequence[str], *, feed: str | None, url: str | None, timeout_s: float
    ) -> None:
        self._session = timed_session()
        self._session.headers.update({"APCA-API-KEY-ID": keys.key_id, "APCA-API-SECRET-KEY": keys.secret_key})
        self._symbols, server = tuple(symbols), (url or DATA_URL).rstrip("/")
        self._url = server + ("/v1beta3/crypto/us/bars" if feed is None else "/v2/stocks/bars")
        self._actions_url = server + "/v1/corporate-actions"
        self._parameters = {"symbols": ",".join(symbols), "timeframe": "1Min", "limit": str(_MOST_OF_A_PAGE)}
        self._feed = feed
        if feed is not None:
            self._parameters |= {"adjustment": "split", "feed": feed}
        self._timeout_s = timeout_s

    def bars(self, first: np.datetime64, last: np.datetime64) -> list[SymbolBar]:
        """The bars of all symbols that open from `first` to `last`, both included.

        Raises BarsUnavailable, or UserError if Alpaca refuses the keys or the symbols.
        """
        parameters = {**self._parameters, "start": _written(first), "end": _written(last)}
        pages = list(self._pages(self._url, parameters))
        try:
            return [bar for page in pages for bar in _bars_of(page.get("bars") or {})]
        except (KeyError, TypeError, ValueError, AttributeError):
            raise BarsUnavailable("Alpaca's history sent an unreadable answer") from None

    def corporate_actions(self, first: date, last: date) -> list[CorporateAction]:
        """The corporate actions of all symbols from the first to the last day. Raises BarsUnavailable."""
        parameters = {"symbols": ",".join(self._symbols), "start": str(first), "end": str(last)}
        try:
            pages = list(self._pages(self._actions_url, parameters))
        except UserError as error:
            raise BarsUnavailable(str(error)) from error
        return [each for page in pages for each in actions_of(page.get("corporate_actions"), self._symbols)]

    def close(self) -> None:
        """Close the connection; may be called twice."""
        self._session.close()

    def _pages(self, url: str, parameters: dict[str, str]) -> Iterator[Mapping[str, Any]]:
        token = ""
        while True:
            answer = self._ask(url, parameters | ({"page_token": token} if token else {}))
            yield answer
            following = answer.get("next_page_token")
            if not following:
                return
            if following == token:
                raise BarsUnavailable("Alpaca's history repeats a page")
            token = following

    def _ask(self, url: str, parameters: dict[str, str]) -> Mapping[str, Any]:
        """Request a page, with retries after status 429 and server errors until the time is over."""
        limit = TimeLimit(self._timeout_s)
        while True:
            status, answer, why = self._once(url, parameters, limit.end)
            if status == 200:
                return answer
            if status and status != TOO_MANY and status < SERVER_ERRORS:
                raise self._refusal(status, str(answer.get("message", "")))
            if not limit.wait():
                raise BarsUnavailable(f"Alpaca's history {why}")

    def _once(self, url: str, parameters: dict[str, str], end: float) -> tuple[int, Mapping[str, Any], str]:
        """(status, answer, why there is none); status 0 if there is no readable answer."""
        self._session.deadline.end = end
        try:
            response = self._session.get(url, params=parameters)
            answer = response.json() if response.content else {}
        except OSError as error:
            return 0, {}, why_no_answer(error, self._timeout_s)
        status = response.status_code
        return status, answer if isinstance(answer, dict) else {}, f"answers {status}"

    def _refusal(self, status: int, message: str) -> Exception:
        if "subscription" in message:
            return UserError(
                f"Alpaca's feed {self._feed} needs another subscription ({message}); use --alpaca-data-feed iex, which "
                "is free."
            )
        if status in (401, 403):
            return UserError(
                f"Alpaca's market data does not accept these keys (status {status}: {message or 'no reason'}); check "
                "that they have not been replaced by newer ones."
            )
        if status in (400, 404, 422):
            symbols = self._parameters["symbols"]
            return UserError(f"Alpaca has no bars of {symbols} (status {status}: {message}); check the symbols.")
        return BarsUnavailable(f"Alpaca's history answers {status}: {message}")


def _bars_of(page: Mapping[str, Any]) -> Iterator[SymbolBar]:
    for symbol, bars in page.items():
        for bar in bars or ():
            yield symbol_bar(symbol, bar, np.datetime64(str(bar["t"]).removesuffix("Z"), "ns"), corrected=True)


def symbol_bar(symbol: str, bar: Mapping[str, Any], time: np.datetime64, *, corrected: bool) -> SymbolBar:
    """Convert a bar from Alpaca, with the fields o, h, l, c, v."""
    open, high, low, close, volume = (float(bar[name]) for name in ("o", "h", "l", "c", "v"))
    return SymbolBar(symbol, time, open, high, low, close, volume, corrected)


def _written(time: np.datetime64) -> str:
    return f"{np.datetime_as_string(time.astype('datetime64[s]'))}Z"


class BarStream:
    """Receives bars of `symbols` from its creation on.

    feed: iex or sip for stocks; None: crypto. timeout_s: the longest time for connecting and logging in.
    silent_s: it reconnects if no bar arrives for this time.
    """

    def __init__(
        self,
        keys: Keys,
        symbols: Sequence[str],
        *,
        feed: str | None,
        url: str | None,
        timeout_s: float,
        silent_s: float,
    ) -> None:
        self._bars: queue.SimpleQueue[SymbolBar] = queue.SimpleQueue()
        stream = _make_stream(
            keys, feed=feed, url=url, timeout_s=timeout_s, silent_s=silent_s, symbols=symbols, put=self._bars.put
        )
        self._thread = StreamThread(stream, name="alpaca bars")

    def receive(self, timeout_s: float) -> list[SymbolBar]:
        """The bars that have arrived, after waiting at most `timeout_s` for the first."""
        bars: list[SymbolBar] = []
        with contextlib.suppress(queue.Empty):
            bars.append(self._bars.get(timeout=max(timeout_s, 0.0)) if timeout_s > 0 else self._bars.get_nowait())
            while True:
                bars.append(self._bars.get_nowait())
        return bars

    def close(self) -> None:
        """End the thread; may be called twice."""
        self._thread.close()


def _make_stream(
    keys: Keys,
    *,
    feed: str | None,
    url: str | None,
    timeout_s: float,
    silent_s: float,
    symbols: Sequence[str],
    put: Any,
) -> Any:
    kind = "crypto" if feed is None else "stock"
    library = alpaca_module(f"data.live.{kind}")
    base = library.CryptoDataStream if feed is None else library.StockDataStream

    def received(message: Mapping[str, Any], *, corrected: bool) -> None:
        with contextlib.suppress(KeyError, TypeError, ValueError):  # not a bar
            time = np.datetime64(message["t"].to_unix_nano(), "ns")
            put(symbol_bar(message["S"], message, time, corrected=corrected))

    async def on_bar(message: Mapping[str, Any]) -> None:
        received(message, corrected=False)

    async def on_updated_bar(message: Mapping[str, Any]) -> None:
        received(message, corrected=True)

    options: dict[str, Any] = {"url_override": url, "data_timeout": silent_s, "raw_data": True}
    if feed is not None:
        options["feed"] = alpaca_module("data.enums").DataFeed(feed)
    options["websocket_params"] = websocket_parameters(timeout_s)
    stream = bounded_stream(base, timeout_s)(keys.key_id, keys.secret_key, **options)
    stream.subscribe_bars(on_bar, *symbols)
    stream.subscribe_updated_bars(on_updated_bar, *symbols)
    return stream

"""Alpaca's stream of bars of a minute, in a thread of its own that reconnects by itself.

Source: https://docs.alpaca.markets/docs/real-time-stock-pricing-data. `bars` come right after their minute, and
`updatedBars` half a minute later where trades were reported late; both are stamped with when the minute begins.
"""

import contextlib
import queue
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ml_pipeline.live.alpaca.connection.alpaca_library import alpaca_module
from ml_pipeline.live.alpaca.connection.keys import Keys
from ml_pipeline.live.alpaca.connection.stream_thread import StreamThread, bounded_stream, websocket_parameters
from ml_pipeline.live.alpaca.market_data.bar_history import symbol_bar
from ml_pipeline.live.feeds.bars import SymbolBar


class BarStream:
    """Receives bars of `symbols` from when it is made.

    feed: iex or sip for stocks; None: crypto. timeout_s: the longest time that connecting and logging in may take.
    silent_s: a connection on which no bar comes for so long is made anew.
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
        """The bars that have come, after a wait of at most so long for the first."""
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
        with contextlib.suppress(KeyError, TypeError, ValueError):  # a message that is no bar
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

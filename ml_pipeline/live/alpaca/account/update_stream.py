"""Alpaca's stream of order updates, in a thread of its own that reconnects by itself.

It only makes news come sooner: whatever it misses, the broker asks for.
"""

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from ml_pipeline.live.alpaca.connection.alpaca_library import alpaca_module
from ml_pipeline.live.alpaca.connection.keys import Keys
from ml_pipeline.live.alpaca.connection.stream_thread import StreamThread, bounded_stream, websocket_parameters


class UpdateStream:
    """Calls `on_update` with the data of each update, in the thread of the stream.

    timeout_s: the longest time that connecting and logging in may take.
    """

    def __init__(
        self,
        keys: Keys,
        *,
        live: bool,
        url: str | None,
        timeout_s: float,
        on_update: Callable[[Mapping[str, Any]], None],
    ) -> None:
        self._listening_since: float | None = None
        self._changed = threading.Condition()
        stream = _make_stream(
            keys, live=live, url=url, timeout_s=timeout_s, on_listening=self._set_listening, on_update=on_update
        )
        self._thread = StreamThread(stream, name="alpaca updates")

    @property
    def listening_since(self) -> float | None:
        """The time of `time.monotonic` since which no update was missed; None while there is no connection."""
        return self._listening_since

    def wait_until_listening(self, timeout_s: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self._listening_since is not None, timeout_s)

    def close(self) -> None:
        """End the thread; may be called twice."""
        self._thread.close()

    def _set_listening(self, listening: bool) -> None:
        with self._changed:
            self._listening_since = time.monotonic() if listening else None
            self._changed.notify_all()


def _make_stream(
    keys: Keys,
    *,
    live: bool,
    url: str | None,
    timeout_s: float,
    on_listening: Callable[[bool], None],
    on_update: Callable[[Mapping[str, Any]], None],
) -> Any:
    base = bounded_stream(alpaca_module("trading.stream").TradingStream, timeout_s)

    class Stream(base):  # type: ignore[misc,valid-type]
        """alpaca-py's, which says when it listens."""

        async def _dispatch(self, message: dict[str, Any]) -> None:
            if message.get("stream") == "listening":
                on_listening("trade_updates" in message.get("data", {}).get("streams", []))
            await super()._dispatch(message)

        async def close(self) -> None:
            on_listening(False)
            await super().close()

    async def handle(message: Mapping[str, Any]) -> None:
        on_update(message["data"])

    stream = Stream(
        keys.key_id,
        keys.secret_key,
        paper=not live,
        raw_data=True,
        url_override=url,
        websocket_params=websocket_parameters(timeout_s),
    )
    stream.subscribe_trade_updates(handle)
    return stream

"""A stream of alpaca-py in a thread of its own, which reconnects by itself until it is closed."""

import asyncio
import contextlib
import threading
import time
from typing import Any

from ml_pipeline.live.alpaca.connection.alpaca_library import quiet_websocket_log

_PING_S = 10.0
_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 10.0
_END_S, _LOOK_S = 5.0, 0.1


def bounded_stream(base: Any, timeout_s: float) -> Any:
    """A class of streams like `base`, of alpaca-py, whose connecting and logging in end within so long."""

    class Stream(base):
        async def _start_ws(self) -> None:
            await asyncio.wait_for(super()._start_ws(), timeout_s)

    return Stream


def websocket_parameters(timeout_s: float) -> dict[str, Any]:
    """How a stream uses its websocket. timeout_s: the longest time that opening it may take."""
    return {
        "open_timeout": timeout_s,
        "ping_interval": _PING_S,
        "ping_timeout": _PING_S,
        "close_timeout": 1.0,
        "max_queue": 1024,
        "logger": quiet_websocket_log(),
    }


class StreamThread:
    """Runs a stream from when it is made until `close`."""

    def __init__(self, stream: Any, *, name: str) -> None:
        """name: of the thread."""
        self._stream = stream
        stream._reconnect_min_backoff, stream._reconnect_max_backoff = _SHORTEST_PAUSE_S, _LONGEST_PAUSE_S
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread; may be called twice."""
        self._closed = True
        self._stream._should_run = False
        end = time.monotonic() + _END_S
        # Again and again: a connection that is just being made may swallow it once.
        while self._thread.is_alive() and time.monotonic() < end:
            if self._loop is not None and self._task is not None:
                with contextlib.suppress(RuntimeError):  # it has ended
                    self._loop.call_soon_threadsafe(self._task.cancel)
            self._thread.join(_LOOK_S)

    def _run(self) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        try:
            if not self._closed:  # which came before the thread did
                await self._stream._run_forever()
        finally:
            with contextlib.suppress(Exception):
                await asyncio.wait_for(self._stream.close(), 1.0)

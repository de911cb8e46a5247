"""Make alpaca-py and requests end in time, and silence them.

By default they wait for an answer forever, and block for seconds after status 429. Only this module uses their private
names, each in one function (`send_by`, `_set_content`, `bounded_stream`, `listening_stream`, `_run_forever`,
`_tell_to_end`); tests show which of them a new version has changed.
"""

import asyncio
import contextlib
import logging
import threading
import time
import warnings
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any

from ml_pipeline.config.errors import UserError, install_extra

_CHUNK = 65_536
_MOST_BYTES = 64 * 2**20
_PING_S = 10.0
_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 10.0
_END_S, _LOOK_S = 5.0, 0.1


def alpaca_module(name: str) -> ModuleType:
    """A module of alpaca-py, such as "trading.client". Raises UserError, with what to install, if it is missing.

    Its import warns that `websockets.legacy` is deprecated; users of this program cannot change that.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            module = import_module(f"alpaca.{name}")
        except ModuleNotFoundError as error:
            if error.name is None or error.name.partition(".")[0] not in ("alpaca", "websockets", "requests"):
                raise
            raise UserError(
                f"Alpaca's account and market data need another package: {install_extra('alpaca')}; or use the "
                "simulated broker, which needs none."
            ) from None
    # The session reports lost connections itself; the user's own handlers still get the log of alpaca-py.
    log = logging.getLogger("alpaca")
    if not any(isinstance(handler, logging.NullHandler) for handler in log.handlers):
        log.addHandler(logging.NullHandler())
    return module


def timed_session() -> Any:
    """A session whose requests end by `deadline.end`, which each thread sets, by `time.monotonic`.

    It raises errors of `requests`, which are OSErrors.
    """
    import requests

    class Session(requests.Session):
        deadline = threading.local()

        def request(self, *arguments: Any, **options: Any) -> requests.Response:
            end = self.deadline.end
            left = max(end - time.monotonic(), 0.001)
            response = super().request(*arguments, **{**options, "timeout": left, "stream": True})
            try:
                content = _content_until(response, end)
            except requests.exceptions.RequestException:
                response.close()
                raise
            except Exception as error:  # of urllib3, if the connection breaks
                response.close()
                kind = requests.exceptions.ReadTimeout if "Timeout" in type(error).__name__ else None
                raise (kind or requests.exceptions.ConnectionError)() from None
            return _set_content(response, content)

    return Session()


def send_by(session: Any, client: Any) -> None:
    """Make a client of alpaca-py send its requests by `session`, once each; callers retry within their time limit."""
    client._retry = 0  # it would sleep for three seconds after each status 429
    client._session.close()
    client._session = session


def why_no_answer(error: OSError, timeout_s: float) -> str:
    """What the server did instead of answering, as the end of a sentence."""
    import requests

    if isinstance(error, requests.exceptions.JSONDecodeError):
        return "sent an unreadable answer"
    if isinstance(error, requests.exceptions.Timeout):
        return f"does not answer within {timeout_s:g} s"
    return f"cannot be reached: {type(error).__name__}"


def _content_until(response: Any, end: float) -> bytes:
    """The content of a streamed response of `requests`. Raises its ReadTimeout if it is late or far too long.

    The timeouts of `requests` restart with each byte, so a slow answer would never reach them.
    """
    import requests

    content = bytearray()
    while chunk := response.raw.read1(_CHUNK, decode_content=True):
        content += chunk
        if time.monotonic() > end or len(content) > _MOST_BYTES:
            raise requests.exceptions.ReadTimeout
    return bytes(content)


def _set_content(response: Any, content: bytes) -> Any:
    """Set the content of a response of `requests` that was read as a stream."""
    response._content = content
    return response


def bounded_stream(base: Any, timeout_s: float) -> Any:
    """A subclass of alpaca-py's stream `base` that connects and logs in within `timeout_s`."""

    class Stream(base):
        async def _start_ws(self) -> None:
            await asyncio.wait_for(super()._start_ws(), timeout_s)

    return Stream


def listening_stream(base: Any, timeout_s: float, on_listening: Callable[[bool], None]) -> Any:
    """A `bounded_stream` of order updates that calls `on_listening` when it starts and stops listening."""

    class Stream(bounded_stream(base, timeout_s)):  # type: ignore[misc]
        async def _dispatch(self, message: dict[str, Any]) -> None:
            if message.get("stream") == "listening":
                on_listening("trade_updates" in message.get("data", {}).get("streams", []))
            await super()._dispatch(message)

        async def close(self) -> None:
            on_listening(False)
            await super().close()

    return Stream


def websocket_parameters(timeout_s: float) -> dict[str, Any]:
    """Parameters of a stream's websocket. timeout_s: the longest time for opening it."""
    # This logger omits sent messages, because the login message contains the secret key.
    log = logging.getLogger("ml_pipeline.alpaca.websocket")
    log.setLevel(logging.WARNING)
    if not log.handlers:
        log.addHandler(logging.NullHandler())
    return {
        "open_timeout": timeout_s,
        "ping_interval": _PING_S,
        "ping_timeout": _PING_S,
        "close_timeout": 1.0,
        "max_queue": 1024,
        "logger": log,
    }


class StreamThread:
    """Runs a stream of alpaca-py, which reconnects by itself, from its creation until `close`."""

    def __init__(self, stream: Any, *, name: str) -> None:
        """name: of the thread."""
        self._stream = stream
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread; may be called twice."""
        self._closed = True
        _tell_to_end(self._stream)
        end = time.monotonic() + _END_S
        # Repeatedly, because a connection that is being opened may ignore one cancellation.
        while self._thread.is_alive() and time.monotonic() < end:
            if self._loop is not None and self._task is not None:
                with contextlib.suppress(RuntimeError):  # the loop has ended
                    self._loop.call_soon_threadsafe(self._task.cancel)
            self._thread.join(_LOOK_S)

    def _run(self) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        try:
            if not self._closed:  # True if `close` was called before the thread started
                await _run_forever(self._stream)
        finally:
            with contextlib.suppress(Exception):
                await asyncio.wait_for(self._stream.close(), 1.0)


async def _run_forever(stream: Any) -> None:
    """Run a stream of alpaca-py until `_tell_to_end`, with short pauses before it reconnects."""
    stream._reconnect_min_backoff, stream._reconnect_max_backoff = _SHORTEST_PAUSE_S, _LONGEST_PAUSE_S
    await stream._run_forever()


def _tell_to_end(stream: Any) -> None:
    """Make a stream of alpaca-py end instead of reconnecting."""
    stream._should_run = False

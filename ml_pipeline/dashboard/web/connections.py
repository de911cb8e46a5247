"""Connections of the page's server that end if their other side keeps it waiting, or if too many are open.

uvicorn limits the time between two requests alone: a connection that sends nothing, or half of a request, stays as long
as its other side likes, and counts among those that may be open at once.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_S = 10.0
"""For so long the whole of a request is waited for, its body included."""
_READ_S = 20.0
"""For so long the other side may take nothing of an answer."""
MOST_OPEN = 400
"""Of more, the connection that waits longest for its request is closed: those that others hold idle keep nobody out."""


class LimitedConnection(H11Protocol):
    """Runs in the server's event loop alone."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._waits_since: float | None = None
        self._request_timer: asyncio.TimerHandle | None = None
        self._answer_timer: asyncio.TimerHandle | None = None
        self._watch_request()
        waiting = [each for each in self.connections if isinstance(each, LimitedConnection) and each._waits_since]
        if len(self.connections) > MOST_OPEN and waiting:
            min(waiting, key=lambda each: each._waits_since or 0.0)._end()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._request_timer, self._answer_timer):
            if timer is not None:
                timer.cancel()
        self._waits_since = None
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch_request()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch_request()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._answer_timer = self.loop.call_later(_READ_S, self._end)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._answer_timer is not None:
            self._answer_timer.cancel()

    def _watch_request(self) -> None:
        """Begin to wait for the whole of a request, or end it; what arrives of one meanwhile gives no more time."""
        is_waiting = self.cycle is None or self.cycle.response_complete or self.cycle.more_body
        if not is_waiting and self._request_timer is not None:
            self._request_timer.cancel()
            self._request_timer = self._waits_since = None
        elif is_waiting and self._request_timer is None and not self.transport.is_closing():
            self._waits_since = self.loop.time()
            self._request_timer = self.loop.call_later(REQUEST_S, self._end)

    def _end(self) -> None:
        self._waits_since = None
        self.transport.abort()

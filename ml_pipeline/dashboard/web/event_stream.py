"""Server-sent events: one connection per page, which ends as soon as the page, or the server, does."""

import asyncio
import contextlib
from typing import Any

from starlette.types import Receive, Scope, Send

from ml_pipeline.dashboard.web.json_answer import json_bytes
from ml_pipeline.dashboard.web.positions import Position
from ml_pipeline.dashboard.web.updates import Choice, Updates

HEARTBEAT_S = 15.0
_SLOWEST_S = 20.0
"""A page that takes nothing for so long is dropped; it connects again, and goes on where it was."""
_RETRY_MS = 1000


class EventStream:
    """An ASGI application that sends one page what is new after `position`."""

    def __init__(self, updates: Updates, choice: Choice, position: Position) -> None:
        self._updates = updates
        self._choice = choice
        self._position = position

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-store")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        gone = asyncio.create_task(_disconnect(receive))
        try:
            with self._updates.watched(self._choice):
                await self._send(send, f"retry: {_RETRY_MS}\n\n")
                await self._send_changes(send, gone)
            with contextlib.suppress(TimeoutError):
                await self._send(send, "", more=False)
        except TimeoutError:
            return  # without an end: the server closes the connection
        finally:
            gone.cancel()

    async def _send_changes(self, send: Send, gone: "asyncio.Task[None]") -> None:
        while not (gone.done() or self._updates.closing.is_set()):
            changed = self._updates.next_change()
            if self._updates.runs.version:  # else the list was not read yet
                message, after = await asyncio.to_thread(self._updates.message, self._choice, self._position)
                if message:
                    await self._send(send, _event(message, after))
                self._position = after
            waiting = asyncio.create_task(changed.wait())
            done, _ = await asyncio.wait({waiting, gone}, timeout=HEARTBEAT_S, return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            if not done:
                await self._send(send, ": still here\n\n")

    async def _send(self, send: Send, text: str, *, more: bool = True) -> None:
        await asyncio.wait_for(
            send({"type": "http.response.body", "body": text.encode(), "more_body": more}), _SLOWEST_S
        )


def _event(message: dict[str, Any], position: Position) -> str:
    return f"id: {position}\ndata: {json_bytes(message).decode()}\n\n"


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass

"""Alpaca's websocket of order updates: authenticate, listen, and then one message for each event, in binary frames."""

import asyncio
import contextlib
import json
import threading

from starlette.routing import BaseRoute, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect


class TradeUpdates:
    """The listeners, and what is done to the messages on their way to them.

    silent: nothing is sent any more, as on a connection that died without a word. copies: how often each message is
    sent. refuses: nobody is let in. held: messages that wait for `release`, where `hold` was called.
    """

    def __init__(self, key: str, secret: str) -> None:
        self.key, self.secret = key, secret
        self.loop: asyncio.AbstractEventLoop | None = None
        self.silent = self.refuses = False
        self.copies = 1
        self.connections = 0
        self._listeners: list[WebSocket] = []
        self._held: list[dict[str, object]] | None = None
        self._lock = threading.Lock()

    def routes(self) -> list[BaseRoute]:
        return [WebSocketRoute("/stream", self._serve)]

    @property
    def listening(self) -> int:
        return len(self._listeners)

    def publish(self, data: dict[str, object]) -> None:
        """Send one event to all who listen; from any thread."""
        with self._lock:
            if self._held is not None:
                self._held.append(data)
                return
        self._send(data)

    def hold(self) -> None:
        """Keep messages back until `release`."""
        with self._lock:
            self._held = []

    def release(self, *, backwards: bool = False) -> None:
        """Send what was held back, in the order that it happened or in the opposite one."""
        with self._lock:
            held, self._held = self._held or [], None
        for data in reversed(held) if backwards else held:
            self._send(data)

    def drop(self) -> None:
        """Break off every connection, as a restart of the server would."""
        assert self.loop is not None
        asyncio.run_coroutine_threadsafe(self._close_all(), self.loop).result(10)

    def _send(self, data: dict[str, object]) -> None:
        if self.loop is None or self.silent:
            return
        frame = json.dumps({"stream": "trade_updates", "data": data}).encode()
        for _ in range(self.copies):
            asyncio.run_coroutine_threadsafe(self._send_to_all(frame), self.loop)

    async def _send_to_all(self, frame: bytes) -> None:
        for listener in list(self._listeners):
            with contextlib.suppress(Exception):  # it has gone
                await listener.send_bytes(frame)

    async def _close_all(self) -> None:
        for listener in list(self._listeners):
            with contextlib.suppress(Exception):
                await listener.close(1012)

    async def _serve(self, websocket: WebSocket) -> None:
        self.connections += 1
        if self.refuses:
            await websocket.close()
            return
        await websocket.accept()
        try:
            await self._talk(websocket)
        except (WebSocketDisconnect, KeyError):
            pass
        finally:
            if websocket in self._listeners:
                self._listeners.remove(websocket)

    async def _talk(self, websocket: WebSocket) -> None:
        authorized = False
        while True:
            message = await websocket.receive()
            if message["type"] == "websocket.disconnect":
                return
            asked = json.loads(message.get("text") or message["bytes"])
            action, data = asked["action"], asked.get("data", {})
            if action in ("authenticate", "auth"):
                authorized = (data.get("key_id"), data.get("secret_key")) == (self.key, self.secret)
                status = "authorized" if authorized else "unauthorized"
                await _answer(websocket, "authorization", {"status": status, "action": "authenticate"})
            elif action == "listen" and authorized:
                streams = [each for each in data.get("streams", []) if each == "trade_updates"]
                if streams and websocket not in self._listeners:
                    self._listeners.append(websocket)
                await _answer(websocket, "listening", {"streams": streams})


async def _answer(websocket: WebSocket, stream: str, data: dict[str, object]) -> None:
    await websocket.send_bytes(json.dumps({"stream": stream, "data": data}).encode())

"""Alpaca's market data: bars by REST, and the websocket of bars, quotes and trades.

A bar is a dictionary as Alpaca writes it: t (when it begins, RFC 3339), o, h, l, c, v, n, vw.
"""

import asyncio
import contextlib
import json
from datetime import datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

Bar = dict[str, Any]


class MarketData:
    """The bars of the history, and the listeners of the stream.

    page: most bars of one answer. asked: the parameters of each request for bars. silent: nothing is sent any more, as
    on a connection that died without a word. copies: how often each bar is sent. closes_after: a connection is closed
    after so many bars. limit: most connections at once; the next is told 406, as Alpaca does.
    """

    def __init__(self, key: str, secret: str) -> None:
        self.key, self.secret = key, secret
        self.page = 10_000
        self.asked: list[dict[str, str]] = []
        self.silent = False
        self.copies = 1
        self.closes_after: int | None = None
        self.limit = 1
        self.connections = 0
        self.subscribed: list[set[str]] = []
        self.corporate_actions: dict[str, list[dict[str, Any]]] = {}  # by kind, as Alpaca writes them
        self.asked_for_actions: list[dict[str, str]] = []
        self._history: dict[str, dict[str, Bar]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._listeners: dict[WebSocket, _Listener] = {}

    def routes(self) -> list[BaseRoute]:
        return [
            Route("/v2/stocks/bars", self._bars),
            Route("/v1/corporate-actions", self._corporate_actions),
            Route("/v1beta3/crypto/us/bars", self._bars),
            WebSocketRoute("/v2/iex", self._serve),
            WebSocketRoute("/v2/sip", self._serve),
            WebSocketRoute("/v1beta3/crypto/us", self._serve),
        ]

    @property
    def listening(self) -> int:
        return sum(bool(each.channels) for each in self._listeners.values())

    def record(self, symbol: str, bar: Bar) -> None:
        """Put a bar into the history, in place of one of the same time."""
        self._history.setdefault(symbol, {})[bar["t"]] = bar

    def publish(self, symbol: str, bar: Bar, *, updated: bool = False) -> None:
        """Send a bar to all who listen to the symbol; from any thread."""
        if self._loop is None or self.silent:
            return
        for _ in range(self.copies):
            asyncio.run_coroutine_threadsafe(self._send(symbol, bar, updated=updated), self._loop).result(10)

    def drop(self) -> None:
        """Break off every connection, as a restart of the server would."""
        if self._loop is not None:
            asyncio.run_coroutine_threadsafe(self._close_all(), self._loop).result(10)

    async def _corporate_actions(self, request: Request) -> JSONResponse:
        self.asked_for_actions.append(dict(request.query_params))
        return JSONResponse({"corporate_actions": self.corporate_actions, "next_page_token": None})

    async def _bars(self, request: Request) -> JSONResponse:
        headers = request.headers
        if (headers.get("apca-api-key-id"), headers.get("apca-api-secret-key")) != (self.key, self.secret):
            return JSONResponse({"message": "forbidden."}, status_code=403)
        asked = dict(request.query_params)
        self.asked.append(asked)
        if asked.get("timeframe") != "1Min":
            return JSONResponse({"message": "the test server has bars of a minute alone"}, status_code=400)
        first, last = (datetime.fromisoformat(asked[name]) for name in ("start", "end"))
        rows = [
            (symbol, bar)
            for symbol in sorted(asked["symbols"].split(","))
            for t, bar in sorted(self._history.get(symbol, {}).items())
            if first <= datetime.fromisoformat(t) <= last
        ]
        begins = int(asked.get("page_token") or 0)
        ends = begins + min(self.page, int(asked.get("limit") or 1_000))
        bars: dict[str, list[Bar]] = {}
        for symbol, bar in rows[begins:ends]:
            bars.setdefault(symbol, []).append(bar)
        return JSONResponse({"bars": bars, "next_page_token": str(ends) if ends < len(rows) else None})

    async def _send(self, symbol: str, bar: Bar, *, updated: bool) -> None:
        channel = "updatedBars" if updated else "bars"
        for websocket, listener in list(self._listeners.items()):
            if {symbol, "*"} & listener.channels.get(channel, set()):
                with contextlib.suppress(Exception):  # it has gone
                    await listener.send([{"T": "u" if updated else "b", "S": symbol, **bar}])
                    listener.sent += 1
                    if self.closes_after is not None and listener.sent >= self.closes_after:
                        await websocket.close(1012)

    async def _close_all(self) -> None:
        for websocket in list(self._listeners):
            with contextlib.suppress(Exception):
                await websocket.close(1012)

    async def _serve(self, websocket: WebSocket) -> None:
        self._loop = asyncio.get_running_loop()
        self.connections += 1
        await websocket.accept()
        listener = _Listener(websocket)
        if len(self._listeners) >= self.limit:
            await listener.send([{"T": "error", "code": 406, "msg": "connection limit exceeded"}])
            await websocket.close()
            return
        self._listeners[websocket] = listener
        try:
            await self._talk(websocket, listener)
        except (WebSocketDisconnect, KeyError, RuntimeError):
            pass
        finally:
            self._listeners.pop(websocket, None)

    async def _talk(self, websocket: WebSocket, listener: "_Listener") -> None:
        await listener.send([{"T": "success", "msg": "connected"}])
        authenticated = False
        while True:
            message = await websocket.receive()
            if message["type"] == "websocket.disconnect":
                return
            asked = listener.read(message)
            if asked["action"] == "auth":
                authenticated = (asked.get("key"), asked.get("secret")) == (self.key, self.secret)
                answer = {"T": "success", "msg": "authenticated"}
                await listener.send([answer if authenticated else {"T": "error", "code": 402, "msg": "auth failed"}])
            elif not authenticated:
                await listener.send([{"T": "error", "code": 401, "msg": "not authenticated"}])
            elif asked["action"] == "subscribe":
                for channel in ("bars", "updatedBars"):
                    listener.channels.setdefault(channel, set()).update(asked.get(channel, ()))
                self.subscribed.append(set(listener.channels["bars"]))
                lists = {name: sorted(symbols) for name, symbols in listener.channels.items()}
                await listener.send([{"T": "subscription", "trades": [], "quotes": [], **lists}])


class _Listener:
    """One connection: msgpack where the client asks for it, as alpaca-py does, else JSON."""

    def __init__(self, websocket: WebSocket) -> None:
        self._websocket = websocket
        self._packed = websocket.headers.get("content-type") == "application/msgpack"
        self.channels: dict[str, set[str]] = {}
        self.sent = 0

    async def send(self, messages: list[dict[str, Any]]) -> None:
        if not self._packed:
            await self._websocket.send_text(json.dumps(messages))
            return
        import msgpack

        packed = [
            {**each, "t": msgpack.Timestamp.from_datetime(datetime.fromisoformat(each["t"]))} if "t" in each else each
            for each in messages
        ]
        await self._websocket.send_bytes(msgpack.packb(packed))

    def read(self, message: Any) -> dict[str, Any]:
        if message.get("text") is not None:
            return dict(json.loads(message["text"]))
        import msgpack

        return dict(msgpack.unpackb(message["bytes"]))

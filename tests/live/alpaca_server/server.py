"""A server on this machine that speaks Alpaca's protocol, with an account and market data that tests set.

Written from Alpaca's public documentation. Its parts are `Trading` (REST), `TradeUpdates` (a websocket) and
`MarketData` (REST and a websocket); each has `routes()`. Faults are asked for with `server.faults`.
"""

import asyncio
import concurrent.futures
import socket
import threading
import time
from collections.abc import Coroutine
from typing import Any

import uvicorn
from starlette.applications import Starlette

from tests.live.alpaca_server.faults import Faults
from tests.live.alpaca_server.market_data import MarketData
from tests.live.alpaca_server.trade_updates import TradeUpdates
from tests.live.alpaca_server.trading import Trading

KEY, SECRET = "PKTESTKEY0000000", "secret-of-the-tests"
_START_S, _END_S = 30.0, 10.0


class AlpacaServer:
    """Runs in a thread on 127.0.0.1 until it is closed; a context manager.

    url: of trading and market data by REST. stream_url: of order updates. data_stream_url: of bars, quotes and trades.
    """

    def __init__(self) -> None:
        self.faults = Faults()
        self.updates = TradeUpdates(KEY, SECRET)
        self.trading = Trading(KEY, SECRET, self.updates)
        self.market_data = MarketData(KEY, SECRET)
        self._loop: asyncio.AbstractEventLoop | None = None
        # The protocol is named, since asyncio sends small answers at once only on what it knows to be TCP.
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        self._socket.bind(("127.0.0.1", 0))
        port = self._socket.getsockname()[1]
        self.url = self.data_url = f"http://127.0.0.1:{port}"
        self.stream_url = f"ws://127.0.0.1:{port}/stream"
        self.data_stream_url = f"ws://127.0.0.1:{port}/v2/iex"
        routes = [*self.trading.routes(), *self.updates.routes(), *self.market_data.routes()]
        config = uvicorn.Config(
            self.faults.around(Starlette(routes=routes)),
            ws="websockets-sansio",
            log_level="critical",
            lifespan="off",
            timeout_graceful_shutdown=1,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._serve, name="alpaca server", daemon=True)
        self._thread.start()
        end = time.monotonic() + _START_S
        while not self._server.started and self._thread.is_alive() and time.monotonic() < end:
            time.sleep(0.005)
        assert self._server.started, "the server did not start"

    def call(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Runs a coroutine in the server's thread, and gives what it returns."""
        assert self._loop is not None
        future: concurrent.futures.Future[Any] = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        return future.result(_END_S)

    def close(self) -> None:
        """End it; may be called twice. Its address then refuses connections."""
        self.faults.release()
        self._server.should_exit = True
        self._thread.join(_END_S)
        self._socket.close()
        assert not self._thread.is_alive(), "the server did not end"

    def __enter__(self) -> "AlpacaServer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _serve(self) -> None:
        async def serve() -> None:
            self._loop = asyncio.get_running_loop()
            self.updates.loop = self._loop
            await self._server.serve(sockets=[self._socket])

        asyncio.run(serve())

"""What goes wrong on the way to the server and back, as tests ask for it."""

import asyncio
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from starlette.types import ASGIApp, Message, Receive, Scope, Send

Kind = Literal["answer", "silence", "cut", "drip"]


@dataclass
class Fault:
    """One kind of fault for the next `times` requests that begin with `request`, such as "POST /v2/orders".

    kind: another answer with `status` and `body`, or with what is no JSON (`raw`); no answer at all; an answer that
    breaks off; or one that drips in, byte by byte. taken: whether the server does what was asked before that.
    """

    request: str
    kind: Kind
    status: int = 500
    body: object = None
    raw: bytes | None = None
    taken: bool = False
    times: int = 1
    after: int = 0
    """So many requests go through before it."""
    met: int = 0
    """How many requests have met it."""


class Faults:
    """The faults to come, and every request that came: `requests`, such as "GET /v2/account"."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        self._faults: list[Fault] = []
        self._lock = threading.Lock()
        self._silent: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    def answer(
        self,
        request: str,
        status: int,
        body: object = None,
        *,
        raw: bytes | None = None,
        times: int = 1,
        after: int = 0,
        taken: bool = False,
    ) -> Fault:
        """Answer with this status in place of the true answer."""
        return self._add(Fault(request, "answer", status, body, raw, taken=taken, times=times, after=after))

    def silence(self, request: str, *, taken: bool = False, times: int = 1, after: int = 0) -> Fault:
        """Never answer."""
        return self._add(Fault(request, "silence", taken=taken, times=times, after=after))

    def cut(self, request: str, *, taken: bool = False, times: int = 1, after: int = 0) -> Fault:
        """Break the connection off in the middle of the answer."""
        return self._add(Fault(request, "cut", taken=taken, times=times, after=after))

    def drip(self, request: str, *, times: int = 1) -> Fault:
        """Answer slower than anyone waits, but never fall silent."""
        return self._add(Fault(request, "drip", times=times))

    def clear(self) -> None:
        with self._lock:
            self._faults.clear()

    def release(self) -> None:
        """Let go of the requests that are not answered."""
        with self._lock:
            silent, self._silent = self._silent, []
            self._faults.clear()
        for loop, event in silent:
            loop.call_soon_threadsafe(event.set)

    def _add(self, fault: Fault) -> Fault:
        with self._lock:
            self._faults.append(fault)
        return fault

    def _next(self, request: str) -> Fault | None:
        with self._lock:
            self.requests.append(request)
            for fault in self._faults:
                if request.startswith(fault.request) and fault.times:
                    if fault.after:
                        fault.after -= 1
                        continue
                    fault.times -= 1
                    fault.met += 1
                    return fault
        return None

    def around(self, app: ASGIApp) -> Callable[[Scope, Receive, Send], Any]:
        """The application with these faults before it."""

        async def with_faults(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                await app(scope, receive, send)
                return
            fault = self._next(f"{scope['method']} {scope['path']}")
            if fault is None:
                await app(scope, receive, send)
                return
            if fault.taken:
                await app(scope, receive, _into_nothing)
            await self._apply(fault, receive, send)

        return with_faults

    async def _apply(self, fault: Fault, receive: Receive, send: Send) -> None:
        if fault.kind == "silence":
            event = asyncio.Event()
            with self._lock:
                self._silent.append((asyncio.get_running_loop(), event))
            gone = asyncio.create_task(_until_gone(receive))
            released = asyncio.create_task(event.wait())
            await asyncio.wait({gone, released}, return_when=asyncio.FIRST_COMPLETED)
            gone.cancel()
            released.cancel()
            fault = Fault(fault.request, "answer", 503)
        if fault.kind == "drip":
            await _drip(receive, send)
            return
        body = fault.raw or json.dumps(fault.body or {"message": "asked for by a test"}).encode()
        length = len(body) + (100 if fault.kind == "cut" else 0)
        status = 200 if fault.kind == "cut" else fault.status
        headers = [(b"content-type", b"application/json"), (b"content-length", str(length).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body, "more_body": fault.kind == "cut"})
        # Of a cut answer the rest is missing: uvicorn then breaks the connection off.


async def _into_nothing(message: Message) -> None:
    """Swallows an answer."""


async def _drip(receive: Receive, send: Send) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", b"100000")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    gone = asyncio.create_task(_until_gone(receive))
    while not gone.done():
        await send({"type": "http.response.body", "body": b" ", "more_body": True})
        await asyncio.sleep(0.02)


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass

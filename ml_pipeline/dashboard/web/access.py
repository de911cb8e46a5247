"""Access control of the server: checks of the Host header, of the origin of a request, and of tokens; time limits.

Any page in the user's browser can send requests to 127.0.0.1, and another site's name may resolve to it (DNS
rebinding). So the Host header must name this machine, and requests from other origins are refused, including reads,
unless their address has the ticket of a report.
"""

import asyncio
import hmac
import html
import ipaddress
import re
import secrets
import socket
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from starlette.requests import HTTPConnection, Request
from starlette.responses import HTMLResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from ml_pipeline.dashboard.web.http import JsonAnswer

LOOPBACK = ("localhost", "127.0.0.1", "::1")
CHANGES_HEADER = "x-dashboard-token"
_HOST = re.compile(r"(?:\[(?P<v6>[0-9a-fA-F:.]+)\]|(?P<name>[\w.-]+))(?::\d{1,5})?", re.ASCII)
_BEARER = "Bearer "
FILES = "/files/"
"""Path prefix of reports and the files that they link to."""


class Refusal(NamedTuple):
    status: int
    sentence: str


def is_loopback(host: str) -> bool:
    """True if a server on this address is reachable from this machine only."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Tickets:
    """Secret address parts, one per report folder, that give access to the files below it while the server runs."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)

    def of(self, kind: str, top: str) -> str:
        """kind: "runs" or "sessions". top: the folder below their root."""
        return hmac.digest(self._key, f"{kind}/{top}".encode(errors="surrogateescape"), "sha256").hex()[:40]

    def opens(self, path: str) -> bool:
        """True if the path of a request has the ticket of its folder."""
        ticket, kind, top, *_ = [*path.removeprefix(FILES).split("/"), "", "", ""]
        return path.startswith(FILES) and hmac.compare_digest(ticket.encode(), self.of(kind, top).encode())


@dataclass(frozen=True)
class Access:
    """host: the address of the server. token: required for all requests; None: every user of this machine may read.

    page_token: sent by the page with requests that change something. cookie: name of the cookie with the token.
    tickets: give access to reports through the links of other reports.
    """

    host: str
    port: int
    token: str | None = None
    page_token: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    tickets: Tickets = field(default_factory=Tickets)

    @property
    def cookie(self) -> str:
        return f"ml_pipeline_dashboard_{self.port}"  # cookies of one machine are shared by its ports

    def refusal(self, request: HTTPConnection, *, changes: bool) -> Refusal | None:
        """The reason to refuse a request; None if it is allowed. changes: True if the request changes something."""
        host = request.headers.get("host", "")
        if not self._is_own_name(host):
            return Refusal(403, "This is not the address of this server; open the address that the command printed.")
        if self._follows_a_report(request, changes=changes):
            return None
        if self._is_foreign(request, host):
            return Refusal(403, "Requests from other sites are refused.")
        if self.token is not None and not self.has_token(request):
            return Refusal(401, "The token is missing or wrong; open the address that the command printed, ?token=...")
        if changes and not (self._has_page_token(request) or self._has_bearer(request)):
            return Refusal(403, f"A request that changes something needs the page's token ({CHANGES_HEADER}).")
        return None

    def _follows_a_report(self, request: HTTPConnection, *, changes: bool) -> bool:
        """True if the browser opens a file below a folder whose report it has opened before.

        A report has no origin, so the browser marks its links as cross-site and does not send the cookie.
        """
        is_opened = request.headers.get("sec-fetch-mode", "navigate") == "navigate" and "origin" not in request.headers
        return not changes and is_opened and self.tickets.opens(request.scope["path"])

    def has_token(self, request: HTTPConnection) -> bool:
        """True if the request has the token, in the page's cookie or in an Authorization header."""
        return self.is_token(request.cookies.get(self.cookie, "")) or self._has_bearer(request)

    def is_token(self, given: str) -> bool:
        return self.token is not None and _same(given, self.token)

    def _has_bearer(self, request: HTTPConnection) -> bool:
        given = request.headers.get("authorization", "")
        return given.startswith(_BEARER) and self.is_token(given.removeprefix(_BEARER))

    def _has_page_token(self, request: HTTPConnection) -> bool:
        return _same(request.headers.get(CHANGES_HEADER, ""), self.page_token)

    def _is_own_name(self, host: str) -> bool:
        found = _HOST.fullmatch(host)
        if found is None:
            return False
        name = (found["v6"] or found["name"]).lower()
        if name in LOOPBACK or name == self.host.lower():
            return True
        if self.host not in ("0.0.0.0", "::"):
            return False
        # The server listens on all addresses: accept any IP address, and this machine's names.
        return _is_address(name) or name in (socket.gethostname().lower(), socket.getfqdn().lower())

    def _is_foreign(self, request: HTTPConnection, host: str) -> bool:
        origin = request.headers.get("origin")
        if origin is not None and origin.lower() not in (f"http://{host}".lower(), f"https://{host}".lower()):
            return True
        site = request.headers.get("sec-fetch-site", "none")
        is_link = request.url.path == "/" and request.headers.get("sec-fetch-mode") == "navigate"
        is_top = request.headers.get("sec-fetch-dest", "document") == "document"
        return site not in ("same-origin", "none") and not (is_link and is_top)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _same(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode(), expected.encode())


PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "frame-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
# A report has its own scripts and is shown within the page: it runs in a sandbox without network access.
REPORT_POLICY = (
    "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)
# For the page around a report that is opened in its own tab: a page's own policy cannot prevent navigation to another
# site, but that of the surrounding page can.
FRAME_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; frame-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": PAGE_POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}
_COOKIE_AGE_S = 30 * 24 * 3600
_READING = ("GET", "HEAD")


class Guard:
    """Middleware: answers requests that `access` refuses, and adds missing security headers to all answers."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def with_headers(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                given = {name.lower() for name, _ in message["headers"]}
                added = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
                message["headers"] = [*message["headers"], *(each for each in added if each[0] not in given)]
            await send(message)

        request = Request(scope)
        refusal = self._access.refusal(request, changes=scope["method"] not in _READING)
        answer: ASGIApp = self._app
        if request.url.path == "/" and "token" in request.query_params and (refusal is None or refusal.status == 401):
            answer = self._with_token(request.query_params["token"])
        elif refusal is not None:
            answer = _refused(refusal, request)
        await answer(scope, receive, with_headers)

    def _with_token(self, token: str) -> Response:
        """Store the token in a cookie, and open the page at an address without the token.

        An intermediate page does this: after a redirect from a link on another site, the cookie would not be sent.
        """
        response = plain_page("Signing in ...", to_the_page=True)
        if self._access.token is not None:
            if not self._access.is_token(token):
                return plain_page("This token is wrong: open the address that the command printed.", status=401)
            response.set_cookie(
                self._access.cookie, token, max_age=_COOKIE_AGE_S, path="/", httponly=True, samesite="strict"
            )
        return response


def _refused(refusal: Refusal, request: Request) -> Response:
    if request.scope["path"] == "/" or request.scope["path"].startswith(FILES):
        return plain_page(refusal.sentence, status=refusal.status)
    return JsonAnswer({"error": refusal.sentence}, refusal.status)


def plain_page(sentence: str, *, status: int = 200, to_the_page: bool = False) -> HTMLResponse:
    """A page with one sentence. to_the_page: it opens the dashboard automatically."""
    refresh = '<meta http-equiv="refresh" content="0; url=/">' if to_the_page else ""
    link = '<p><a href="/">To the page</a></p>' if to_the_page else ""
    return HTMLResponse(
        f'<!doctype html><html lang="en"><head><meta charset="utf-8">{refresh}<title>ml-pipeline</title>'
        f'<link rel="stylesheet" href="/assets/page.css"></head><body class="plain"><p>{html.escape(sentence)}</p>'
        f"{link}</body></html>",
        status,
    )


REQUEST_S = 10.0
"""Time limit for receiving a complete request, including its body."""
_READ_S = 20.0
"""Time limit for a client that does not read its answer."""
MOST_OPEN = 400
"""With more connections, the one that has waited longest for a request is closed, so idle ones do not block others."""


class LimitedConnection(H11Protocol):
    """A connection with time limits for its client, and a limit on open connections.

    uvicorn only limits the time between two requests: a client that sends nothing, or half of a request, could stay
    connected indefinitely and use up the open connections. Runs in the server's event loop.
    """

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
        """Start or stop the timer for a complete request; partial data does not extend it."""
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

"""Who may ask the server for what: the name it was called by, where the request comes from, and the token.

Every page in the user's browser can send requests to 127.0.0.1, and a name of its own may lead there (DNS rebinding):
so the Host header must name this machine, and a request that another site began is refused, reads included, unless its
address holds the ticket of a report.
"""

import hmac
import ipaddress
import re
import secrets
import socket
from dataclasses import dataclass, field
from typing import NamedTuple

from starlette.requests import HTTPConnection

LOOPBACK = ("localhost", "127.0.0.1", "::1")
CHANGES_HEADER = "x-dashboard-token"
_HOST = re.compile(r"(?:\[(?P<v6>[0-9a-fA-F:.]+)\]|(?P<name>[\w.-]+))(?::\d{1,5})?", re.ASCII)
_BEARER = "Bearer "
FILES = "/files/"
"""Below this path reports lie, and what they link to."""


class Refusal(NamedTuple):
    status: int
    sentence: str


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a server on this address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Tickets:
    """Secret parts of addresses, one per folder of a report: they open the files below it while the server runs."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)

    def of(self, kind: str, top: str) -> str:
        """kind: "runs" or "sessions". top: the folder below their root."""
        return hmac.digest(self._key, f"{kind}/{top}".encode(errors="surrogateescape"), "sha256").hex()[:40]

    def opens(self, path: str) -> bool:
        """Whether the path of a request carries the ticket of its folder."""
        ticket, kind, top, *_ = [*path.removeprefix(FILES).split("/"), "", "", ""]
        return path.startswith(FILES) and hmac.compare_digest(ticket.encode(), self.of(kind, top).encode())


@dataclass(frozen=True)
class Access:
    """host: the address that the server listens on. token: needed for everything; None where anyone here may read.

    page_token: what the page sends with requests that change something. cookie: the name of the one with the token.
    tickets: what opens reports by the links of other reports.
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
        """Why a request is not answered; None where it is. changes: whether it is to change something."""
        host = request.headers.get("host", "")
        if not self._is_own_name(host):
            return Refusal(403, "This server answers to its own address alone; open the one that its command printed.")
        if self._follows_a_report(request, changes=changes):
            return None
        if self._is_foreign(request, host):
            return Refusal(403, "This request was begun by another site, and is refused.")
        if self.token is not None and not self.has_token(request):
            return Refusal(401, "The token is missing or wrong; open the address that the command printed, ?token=...")
        if changes and not (self._has_page_token(request) or self._has_bearer(request)):
            return Refusal(403, f"A request that changes something needs the page's token ({CHANGES_HEADER}).")
        return None

    def _follows_a_report(self, request: HTTPConnection, *, changes: bool) -> bool:
        """Whether the browser opens a file below a folder whose report it has opened before.

        A report has no origin: the browser says of its links that another site began them, and leaves out the cookie.
        """
        is_opened = request.headers.get("sec-fetch-mode", "navigate") == "navigate" and "origin" not in request.headers
        return not changes and is_opened and self.tickets.opens(request.scope["path"])

    def has_token(self, request: HTTPConnection) -> bool:
        """In the cookie that the page was given, or in an Authorization header."""
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
        # On every address: by number, which no other site's name is, or by this machine's name.
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

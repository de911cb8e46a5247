"""How ranks find each other: all connect to rank 0, which recognizes them by a token from the store.

Rank 0 notices at once if a rank ends meanwhile. Connections from other programs are ignored, and delay nothing.

gloo uses the address of this machine's host name, which is 127.0.0.1 or 127.0.1.1 on many Linux systems, where ranks on
other machines cannot reach it. The interface that leads to rank 0 is right on every machine.
"""

import contextlib
import ipaddress
import json
import secrets
import selectors
import socket
import time
from typing import Any, NamedTuple

import psutil

_KEY = "meeting"
_TOKEN_BYTES, _RANK_BYTES = 32, 4
_GREETING_BYTES = _TOKEN_BYTES + _RANK_BYTES
_TELLS_S = 5.0  # extra time after the timeout, in which rank 0 reports to the others which ranks are missing
_LOOK_S = 0.05


class Rendezvous(NamedTuple):
    """connections: from rank 0 to all others, and from each of them to rank 0. name: unique, and equal on all ranks."""

    connections: dict[int, socket.socket]
    name: str


class _NotAllCame(ConnectionError):
    """Rank 0 reported that ranks are missing."""


def rendezvous(store: Any, rank: int, size: int, *, address: str, timeout_s: float) -> Rendezvous:
    """Connect to the other ranks; returns when all ranks are connected.

    store: the store of torch, shared by all ranks; that of torchrun keeps its keys over restarts. address: of rank 0.
    Raises OSError or RuntimeError if a rank ends meanwhile, cannot be reached, or does not connect within timeout_s.
    """
    if rank:
        return _connect_to_first(store, rank, address, timeout_s)
    meeting = _First(size)
    try:
        meeting.hold(store, timeout_s)
    except BaseException as error:
        meeting.end(next(iter(str(error).splitlines()), type(error).__name__))
        raise
    finally:
        meeting.close()
    return Rendezvous(meeting.ranks, meeting.token)


class _First:
    """The part of rank 0. ranks: connections of the ranks so far. token: identifies ranks."""

    def __init__(self, size: int) -> None:
        self.ranks: dict[int, socket.socket] = {}
        self._size = size
        self.token = secrets.token_hex(_TOKEN_BYTES // 2)
        self._said: dict[socket.socket, bytes] = {}  # bytes from connections that are not identified yet
        self._server = socket.create_server(("", 0), backlog=size)
        self._server.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._server, selectors.EVENT_READ)

    def hold(self, store: Any, timeout_s: float) -> None:
        """Wait for all ranks, and report to them that all are connected."""
        store.set(_KEY, json.dumps([self._server.getsockname()[1], self.token]))
        deadline = time.monotonic() + timeout_s
        while missing := [f"rank {rank}" for rank in range(1, self._size) if rank not in self.ranks]:
            if time.monotonic() >= deadline:
                raise TimeoutError(f"{' and '.join(missing)} did not come within {timeout_s:g} s")
            for key, _ in self._selector.select(deadline - time.monotonic()):
                if key.fileobj is self._server:
                    self._let_in()
                elif isinstance(key.data, int):
                    raise ConnectionError(f"rank {key.data} ended before all were there")
                else:
                    self._hear(key.fileobj)
        self.end("")

    def end(self, why: str) -> None:
        """Send the reason of a failure to all connected ranks; "" means success."""
        for connection in self.ranks.values():
            connection.setblocking(True)
            with contextlib.suppress(OSError):  # a lost connection is noticed when receiving
                connection.sendall(f"{why}\n".encode())
            if why:
                connection.close()

    def close(self) -> None:
        self._selector.close()
        for each in (self._server, *self._said):
            each.close()

    def _let_in(self) -> None:
        with contextlib.suppress(OSError):  # the connection may be closed already
            connection, _ = self._server.accept()
            connection.setblocking(False)
            self._said[connection] = b""
            self._selector.register(connection, selectors.EVENT_READ)

    def _hear(self, connection: Any) -> None:
        said = b""
        with contextlib.suppress(OSError):
            said = connection.recv(_GREETING_BYTES - len(self._said[connection]))
        self._said[connection] += said
        greeting = self._said[connection]
        if said and len(greeting) < _GREETING_BYTES:
            return
        del self._said[connection]
        if greeting[:_TOKEN_BYTES] == self.token.encode() and len(greeting) == _GREETING_BYTES:
            rank = int.from_bytes(greeting[_TOKEN_BYTES:], "little")
            self.ranks[rank] = connection
            self._selector.modify(connection, selectors.EVENT_READ, rank)
        else:  # another program
            self._selector.unregister(connection)
            connection.close()


def _connect_to_first(store: Any, rank: int, address: str, timeout_s: float) -> Rendezvous:
    """The part of the other ranks.

    A port that does not answer may be from before a restart; rank 0 then stores a new one.
    """
    deadline = time.monotonic() + timeout_s + _TELLS_S
    tried, failure = None, ConnectionError()
    while True:
        noted = store.get(_KEY)
        if noted != tried:
            tried = noted
            port, token = json.loads(noted)
            greeting = token.encode() + rank.to_bytes(_RANK_BYTES, "little")
            try:
                return Rendezvous({0: _greeted(address, port, greeting, deadline)}, token)
            except _NotAllCame:
                raise
            except OSError as error:
                failure = ConnectionError(
                    f"rank 0 does not answer at port {port}: {error}; let ranks connect to each other on all ports, "
                    "and let MASTER_ADDR name the machine of rank 0"
                )
        elif time.monotonic() > deadline:
            raise failure
        else:
            time.sleep(_LOOK_S)


def _greeted(address: str, port: int, greeting: bytes, deadline: float) -> socket.socket:
    """A connection to rank 0, after it has reported that all ranks are connected."""
    connection = socket.create_connection((address, port), timeout=max(deadline - time.monotonic(), _LOOK_S))
    with contextlib.ExitStack() as on_failure:
        on_failure.enter_context(connection)
        connection.sendall(greeting)
        why = _line(connection)
        if why:
            raise _NotAllCame(why)
        on_failure.pop_all()
    return connection


def _line(connection: socket.socket) -> str:
    """The next line, without reading further. Raises OSError if the connection ends before."""
    received = b""
    while (byte := connection.recv(1)) != b"\n":
        if not byte:
            raise ConnectionError("the connection was closed")
        received += byte
    return received.decode()


_ANY_PORT = 9  # nothing is sent, because connecting a UDP socket only selects the route


def interface_towards(host: str) -> str | None:
    """The name of the interface that leads to a host, which may be this machine.

    None for the loopback interface, which gloo finds by itself, and if no route or interface is found.

    >>> interface_towards("127.0.0.1") is None
    True
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, _ANY_PORT, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as towards:
            towards.connect(address)
            own = towards.getsockname()[0]
    except OSError:
        return None
    if ipaddress.ip_address(own.partition("%")[0]).is_loopback:
        return None
    names = (name for name, addresses in psutil.net_if_addrs().items() if own in {each.address for each in addresses})
    return next(names, None)

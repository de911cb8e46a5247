"""Short messages between ranks while they collect and learn, about lost ranks and requests to stop.

Every rank is connected to rank 0, which forwards each message to all. All ranks therefore receive the same messages in
the same order. Nothing is sent unless something happens: the end of a process closes its connection, and kernels notice
the loss of a machine or its network even if the processes are busy.
"""

import contextlib
import itertools
import json
import selectors
import socket
import threading
from collections.abc import Callable, Mapping
from typing import Any

_SILENCE_S = 20  # long enough to survive a network that is cut for 10 s
_PROBE_AFTER_S, _PROBE_EVERY_S = 5, 2


def end_when_unreachable(connection: socket.socket) -> None:
    """Make this TCP connection fail after 20 s without an answer, if the system supports it."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        ("TCP_KEEPIDLE", _PROBE_AFTER_S),
        ("TCP_KEEPINTVL", _PROBE_EVERY_S),
        ("TCP_KEEPCNT", (_SILENCE_S - _PROBE_AFTER_S) // _PROBE_EVERY_S),
        ("TCP_USER_TIMEOUT", _SILENCE_S * 1000),  # for data without acknowledgment, during which no probes are sent
    ):
        if hasattr(socket, option):  # Linux has all of them
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


Message = dict[str, Any]

_CHUNK_BYTES = 1 << 16


class SideChannel:
    """One rank's end of the channel. Its thread calls each listener with every message and its sender.

    Messages with the key "left" or "lost" come from the channel itself, about a rank that ended normally or was lost.
    """

    def __init__(self, rank: int, connections: Mapping[int, socket.socket]) -> None:
        """connections: from `rendezvous`; the channel closes them."""
        self._rank = rank
        self._handlers: list[Callable[[int, Message], None]] = []
        self._backlog: list[tuple[int, Message]] = []
        self._numbers = itertools.count()
        self._lock = threading.Condition()  # notified about ranks that are gone
        self._peers = {rank: _Connection(each) for rank, each in connections.items()}
        self._gone: set[int] = set()
        self._here, self._wake = socket.socketpair()
        self._closing = False
        self._thread = threading.Thread(target=self._serve, name="side-channel", daemon=True)
        self._thread.start()

    def next_number(self) -> int:
        """The numbers 0, 1, 2 ... for consecutive objects of this rank; equal on ranks that create the same objects.

        Messages carry them, because later listeners also receive the messages for earlier ones.
        """
        return next(self._numbers)

    def listen(self, handler: Callable[[int, Message], None]) -> None:
        """Call handler(sender, message) for every message in order, including those before this call."""
        with self._lock:
            self._handlers.append(handler)
            for sender, message in self._backlog:
                handler(sender, message)

    def ignore(self, handler: Callable[[int, Message], None]) -> None:
        """Stop calling this handler; does nothing if it does not listen."""
        with self._lock, contextlib.suppress(ValueError):
            self._handlers.remove(handler)

    def post(self, message: Message) -> None:
        """Send a message to all ranks, including this one. A message that can no longer be sent is dropped."""
        if self._rank == 0:
            with self._lock:
                self._deliver(0, message)
        else:
            self._peers[0].send([self._rank, message])

    def wait_for_end_of(self, rank: int) -> None:
        """Return once that rank has left or is lost."""
        with self._lock:
            self._lock.wait_for(lambda: rank in self._gone)

    def close(self, why: str | None = None) -> None:
        """Leave the channel; may be called twice. why: the error of this rank, which is sent to the others."""
        if self._closing:
            return
        self.post({"left": self._rank} if why is None else {"lost": self._rank, "why": why})
        self._closing = True
        self._wake.send(b"x")
        self._thread.join()
        for each in [self._here, self._wake, *(peer.socket for peer in self._peers.values())]:
            each.close()

    def _serve(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._here, selectors.EVENT_READ, None)
            for rank, peer in self._peers.items():
                selector.register(peer.socket, selectors.EVENT_READ, rank)
            while not self._closing:
                for key, _ in selector.select():
                    if key.data is not None and not self._receive(key.data):
                        selector.unregister(key.fileobj)

    def _receive(self, rank: int) -> bool:
        """Deliver the messages of this peer; return whether more may follow."""
        messages, ended = self._peers[rank].receive()
        with self._lock:
            for sender, message in messages:
                self._deliver(sender, message)
            if ended and rank not in self._gone:
                self._deliver(rank, {"lost": rank, "why": ended})
        return not ended

    def _deliver(self, sender: int, message: Message) -> None:
        self._gone.update(message[key] for key in ("left", "lost") if key in message)
        self._lock.notify_all()
        if self._rank == 0:
            for peer in self._peers.values():
                peer.send([sender, message])
        self._backlog.append((sender, message))
        for handler in self._handlers:
            handler(sender, message)


class _Connection:
    """A socket for lines of JSON, monitored by the kernel."""

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected
        self._sending = threading.Lock()
        self._received = b""
        connected.settimeout(None)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        end_when_unreachable(connected)

    def send(self, message: Any) -> None:
        with self._sending, contextlib.suppress(OSError):  # a lost connection is noticed when receiving
            self.socket.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> tuple[list[Any], str]:
        """Complete messages, and the reason why no more will follow, or ""."""
        try:
            received = self.socket.recv(_CHUNK_BYTES)
            ended = "" if received else "its process ended"
        except OSError as error:
            received, ended = b"", f"it cannot be reached ({error.strerror})"
        *lines, self._received = (self._received + received).split(b"\n")
        return [json.loads(line) for line in lines], ended

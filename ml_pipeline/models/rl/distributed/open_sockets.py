"""The sockets of this process, for connections that a library keeps to itself. On Linux; elsewhere it finds none."""

import contextlib
import os
import socket
from collections.abc import Callable, Collection, Iterator

from ml_pipeline.models.rl.distributed.tcp_keepalive import end_when_unreachable

_FOLDER = "/proc/self/fd"


def open_sockets() -> dict[str, int]:
    """File descriptors by the name that the kernel gives their sockets."""
    found = {}
    with contextlib.suppress(OSError):
        for name in os.listdir(_FOLDER):
            with contextlib.suppress(OSError):  # it was closed meanwhile
                target = os.readlink(f"{_FOLDER}/{name}")
                if target.startswith("socket:"):
                    found[target] = int(name)
    return found


@contextlib.contextmanager
def sockets_opened() -> Iterator[set[str]]:
    """The names of the sockets that this process opened within the block; filled at its end."""
    opened: set[str] = set()
    others = open_sockets().keys()
    try:
        yield opened
    finally:
        opened |= open_sockets().keys() - others


def watch(names: Collection[str]) -> None:
    """Let the connections of these sockets end when the other machine cannot be reached."""
    _each(names, end_when_unreachable)


def cut(names: Collection[str]) -> None:
    """End the connections of these sockets: who waits for them is told at once. Those that listen stay as they are."""
    _each(names, lambda connection: connection.shutdown(socket.SHUT_RDWR))


def _each(names: Collection[str], function: Callable[[socket.socket], object]) -> None:
    """Call a function with each of these sockets that is a TCP connection."""
    for name, descriptor in open_sockets().items():
        if name in names:
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as connection:
                is_tcp = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PROTOCOL) == socket.IPPROTO_TCP
                if is_tcp and not connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    function(connection)

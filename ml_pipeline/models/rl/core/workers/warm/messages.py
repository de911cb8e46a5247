"""Messages between a pool of warm workers, these workers, and whoever leases them: JSON, and open files with it.

The sockets keep messages apart. An address is a name in Linux's abstract namespace, and no file: nothing can be left
behind, and the path of no folder can be too long. Only processes of the same user are answered.
"""

import contextlib
import json
import os
import secrets
import socket
import struct
import sys
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

_LONGEST, _MOST_FILES = 1 << 17, 8
_PREFIX = "ml-env-pool-"
_own: "weakref.WeakSet[socket.socket]" = weakref.WeakSet()


def why_unavailable() -> str | None:
    """A sentence where the system cannot lend processes; None where it can."""
    needed = ("AF_UNIX" in dir(socket), hasattr(socket, "send_fds"), hasattr(os, "pidfd_open"))
    if sys.platform == "linux" and all(needed):
        with contextlib.suppress(OSError):  # a sandbox may forbid it
            os.close(os.pidfd_open(os.getpid()))
            return None
    return "Warm workers need Linux and its pidfd_open; without a pool, each ParallelEnv starts workers of its own."


def listen() -> tuple[socket.socket, str]:
    """A socket that waits for connections, and its address."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    address = f"{_PREFIX}{os.getpid()}-{secrets.token_hex(8)}"
    try:
        listener.bind(f"\0{address}")
        listener.listen(128)
    except BaseException:
        listener.close()
        raise
    return listener, address


def connect(address: str, *, timeout_s: float) -> socket.socket:
    """A connection to the pool with this address, closed in every fork of this process. Raises OSError."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.settimeout(timeout_s)
        connection.connect(f"\0{address}")
        if not is_of_this_user(connection):
            raise PermissionError("it is another user's")
    except BaseException:
        connection.close()
        raise
    return close_in_forks(connection)


def pair() -> tuple[socket.socket, socket.socket]:
    """Two ends of a new connection."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def close_in_forks(connection: socket.socket) -> socket.socket:
    """Has a fork of this process close its copy, which would hide that this process is gone."""
    _own.add(connection)
    return connection


def is_of_this_user(connection: socket.socket) -> bool:
    """Whether the other end belongs to a process of the same user."""
    return _credentials(connection)[1] == os.geteuid()


def pid_of(connection: socket.socket) -> int:
    """The process that connected."""
    return _credentials(connection)[0]


def send(connection: socket.socket, message: Mapping[str, Any], files: Sequence[int] = ()) -> None:
    """Sends a message and copies of open files. Raises OSError where the other end is gone or does not read."""
    socket.send_fds(connection, [json.dumps(message).encode()], files)


def receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Waits for a message, and open files that are now this process's own. Raises EOFError where the other end is gone,
    TimeoutError after the connection's time.
    """
    try:
        data, files, flags, _ = socket.recv_fds(connection, _LONGEST, _MOST_FILES, socket.MSG_CMSG_CLOEXEC)
    except ConnectionResetError:
        raise EOFError from None
    if not data:
        raise EOFError
    assert not flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC)
    return json.loads(data), files


def _credentials(connection: socket.socket) -> tuple[int, int, int]:
    pid, user, group = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return pid, user, group


def _close_own() -> None:
    for connection in list(_own):
        connection.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_own)

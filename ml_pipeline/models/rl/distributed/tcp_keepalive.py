"""How long the other end of a connection may be unreachable before the kernel ends it."""

import socket

_SILENCE_S = 20  # a network that was cut for 10 s costs nothing
_PROBE_AFTER_S, _PROBE_EVERY_S = 5, 2


def end_when_unreachable(connection: socket.socket) -> None:
    """Let whoever uses this TCP connection get an error after 20 s without an answer, where the system can."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        ("TCP_KEEPIDLE", _PROBE_AFTER_S),
        ("TCP_KEEPINTVL", _PROBE_EVERY_S),
        ("TCP_KEEPCNT", (_SILENCE_S - _PROBE_AFTER_S) // _PROBE_EVERY_S),
        ("TCP_USER_TIMEOUT", _SILENCE_S * 1000),  # the probes find nobody while data waits to be acknowledged
    ):
        if hasattr(socket, option):  # all of them on Linux
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)

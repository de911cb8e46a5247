"""A TCP port for a server that another process, or another library, is about to start."""

import socket


def free_port() -> int:
    """A port of this machine that nothing listened on a moment ago, at none of its addresses."""
    with socket.socket() as taken:
        taken.bind(("", 0))
        return int(taken.getsockname()[1])

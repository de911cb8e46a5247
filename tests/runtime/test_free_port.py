"""A free port can be listened on, at every address of this machine."""

import socket

from ml_pipeline.runtime.free_port import free_port


def test_a_free_port_can_be_listened_on():
    port = free_port()
    with socket.create_server(("", port)) as server:
        assert server.getsockname()[1] == port

"""Connections that somebody else holds are found by the kernel's names, watched and cut; all other sockets stay."""

import os
import socket
import sys

import pytest

from ml_pipeline.models.rl.distributed.lost_ranks import cut, open_sockets, watch

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems do not list a process's sockets")


@pytest.fixture
def connection():
    """A listening socket and the two ends of a connection."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as near,
        server.accept()[0] as far,
    ):
        yield server, near, far


def names_of(*sockets):
    numbers = [each.fileno() for each in sockets]
    return {name for name, number in open_sockets().items() if number in numbers}


def is_watched(connected):
    return connected.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1


def test_sockets_are_found_while_they_are_open_and_files_are_not(tmp_path):
    before = open_sockets()
    with socket.socket() as one, open(tmp_path / "file", "w"):
        found = open_sockets()
        assert [found[name] for name in found.keys() - before.keys()] == [one.fileno()]
    assert open_sockets().keys() == before.keys()


def test_a_connection_that_is_cut_ends_for_both_and_no_other_does(connection):
    server, near, far = connection
    with socket.create_connection(server.getsockname()) as other, server.accept()[0] as its_end:
        cut(names_of(server, near))
        assert (near.recv(1), far.recv(1)) == (b"", b"")
        its_end.sendall(b"x")
        assert other.recv(1) == b"x"
        with socket.create_connection(server.getsockname()):  # it still listens
            pass
        os.fstat(near.fileno())  # who holds it closes it


def test_connections_alone_are_watched(connection):
    server, near, far = connection
    with socket.socket(type=socket.SOCK_DGRAM) as datagrams, socket.socket(socket.AF_UNIX) as local:
        watch(names_of(server, near, datagrams, local))
        assert is_watched(near)
        assert not any(is_watched(each) for each in (server, far, datagrams, local))


def test_names_of_sockets_that_are_closed_are_passed_over():
    with socket.socket() as closed:
        names = names_of(closed)
    watch(names)
    cut(names)

"""Ranks come together, are told at once of one that ends meanwhile, and are not held up by anybody else;
and which interface leads to another machine."""

import json
import socket
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from ml_pipeline.models.rl.distributed import rendezvous as module
from ml_pipeline.models.rl.distributed.rendezvous import interface_towards, rendezvous
from ml_pipeline.runs.ranks.launcher import free_port
from tests.models.rl.distributed.groups_of_threads import Store

TIMEOUT_S = 600.0  # longer than a test may take: what a test waits for comes before


@pytest.fixture
def pool():
    with ThreadPoolExecutor(3) as pool:
        yield pool


def coming(pool, store, rank, size, timeout_s=TIMEOUT_S):
    return pool.submit(rendezvous, store, rank, size, address="127.0.0.1", timeout_s=timeout_s)


def connection_of_a_stranger(store, said=b""):
    port, _ = json.loads(store.get("meeting"))
    connection = socket.create_connection(("127.0.0.1", port))
    connection.sendall(said)
    return connection


def greeting(store, rank):
    _, token = json.loads(store.get("meeting"))
    return token.encode() + rank.to_bytes(4, "little")


def closed(*all_met):
    for met in all_met:
        for connection in met.connections.values():
            connection.close()


def test_all_return_once_the_last_has_come(pool):
    store = Store()
    first, second = coming(pool, store, 0, 3), coming(pool, store, 1, 3)
    third = rendezvous(store, 2, 3, address="127.0.0.1", timeout_s=TIMEOUT_S)
    assert sorted(first.result().connections) == [1, 2]
    assert first.result().name == second.result().name == third.name
    first.result().connections[1].sendall(b"a message")
    assert second.result().connections[0].recv(9) == b"a message"
    closed(first.result(), second.result(), third)


@pytest.mark.parametrize("said", [b"", b"GET ", b"GET / HTTP/1.1\r\nHost: localhost:8000\r\n\r\n"])
def test_a_stranger_neither_counts_nor_holds_anybody_up(pool, said):
    store = Store()
    first = coming(pool, store, 0, 2)
    with connection_of_a_stranger(store, said):
        second = rendezvous(store, 1, 2, address="127.0.0.1", timeout_s=TIMEOUT_S)
        assert sorted(first.result().connections) == [1]
        closed(first.result(), second)


def test_a_stranger_that_is_gone_again_is_forgotten(pool):
    store = Store()
    first = coming(pool, store, 0, 2)
    connection_of_a_stranger(store, b"GET ").close()
    second = rendezvous(store, 1, 2, address="127.0.0.1", timeout_s=TIMEOUT_S)
    closed(first.result(), second)


def test_a_greeting_may_come_in_parts(pool):
    store = Store()
    first = coming(pool, store, 0, 2)
    with connection_of_a_stranger(store) as connection:
        for byte in greeting(store, 1):
            connection.sendall(bytes([byte]))
        assert connection.recv(1) == b"\n"
        closed(first.result())


def test_a_rank_that_ends_before_all_are_there_is_told_to_the_others_at_once(pool):
    store = Store()
    first = coming(pool, store, 0, 4)
    why = "rank 2 ended before all were there"
    with connection_of_a_stranger(store, greeting(store, 1)) as second:
        connection_of_a_stranger(store, greeting(store, 2)).close()  # as the kernel does for a process that was killed
        with pytest.raises(ConnectionError, match=f"^{why}$"):
            first.result()
        assert second.makefile().read() == f"{why}\n"


def test_the_first_rank_names_those_that_did_not_come(pool):
    with pytest.raises(TimeoutError, match=r"^rank 1 and rank 2 did not come within 0\.1 s$"):
        coming(pool, Store(), 0, 3, timeout_s=0.1).result()


def test_what_a_store_holds_of_before_a_restart_is_passed_over(pool):
    store = Store()
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        store.set("meeting", json.dumps([free_port(), "a" * 32]))
        second = coming(pool, store, 1, 2)
        store.set("meeting", json.dumps([stranger.getsockname()[1], "a" * 32]))
        accepted, _ = stranger.accept()
        accepted.close()
        first = rendezvous(store, 0, 2, address="127.0.0.1", timeout_s=TIMEOUT_S)
    closed(first, second.result())


def test_a_first_rank_that_answers_nowhere_is_told(pool, monkeypatch):
    monkeypatch.setattr(module, "_TELLS_S", 0.0)
    store = Store()
    store.set("meeting", json.dumps([free_port(), "a" * 32]))
    with pytest.raises(ConnectionError, match=r"^rank 0 does not answer at port \d+: .*; let ranks connect"):
        coming(pool, store, 1, 2, timeout_s=0.1).result()


class GoneStore(Store):
    """torch's, whose process was the first rank's, when a second look is taken."""

    n_looks = 0

    def get(self, key):
        self.n_looks += 1
        if self.n_looks > 1:
            raise RuntimeError("Connection reset by peer")
        return super().get(key)


def test_the_end_of_the_first_rank_ends_the_wait_for_it(pool):
    store = GoneStore()
    store.set("meeting", json.dumps([free_port(), "a" * 32]))
    with pytest.raises(RuntimeError, match="Connection reset by peer"):
        coming(pool, store, 1, 2).result()


OWN = [
    (name, each.address)
    for name, addresses in psutil.net_if_addrs().items()
    for each in addresses
    if each.family == socket.AF_INET and not each.address.startswith("127.")
]


@pytest.mark.parametrize(("name", "address"), OWN, ids=[name for name, _ in OWN])
def test_an_own_address_is_reached_through_its_interface(name, address):
    assert interface_towards(address) == name


def test_this_machine_and_unknown_names_take_none():
    assert interface_towards("localhost") is None
    assert interface_towards("no-such-machine.invalid") is None

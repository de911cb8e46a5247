"""systemd hears that a session is ready, alive and ending; without it, and with a broken one, nothing happens."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from ml_pipeline.live.supervision.service_manager import ServiceManager


@pytest.fixture
def listener(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """A socket as systemd's. Its path is relative: one of a socket may have 107 bytes."""
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bound:
        bound.bind("notify")
        bound.settimeout(30)
        yield bound


def test_it_hears_each_step(listener):
    manager = ServiceManager({"NOTIFY_SOCKET": "notify", "WATCHDOG_USEC": "3000000"})
    manager.ready()
    manager.alive()
    manager.says("Traded 3 bars.\nAnd more.")
    manager.stopping()
    heard = [listener.recv(1_000).decode() for _ in range(4)]
    assert heard == ["READY=1", "WATCHDOG=1", "STATUS=Traded 3 bars. And more.", "STOPPING=1"]


def test_an_abstract_socket_is_found():
    name = f"ml-pipeline-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bound:
        bound.bind(f"\0{name}")
        bound.settimeout(30)
        ServiceManager({"NOTIFY_SOCKET": f"@{name}"}).ready()
        assert bound.recv(1_000) == b"READY=1"


@pytest.mark.parametrize(
    ("environment", "watchdog_s"),
    [
        ({"WATCHDOG_USEC": "30000000"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getppid())}, None),  # it watches the parent
        ({"WATCHDOG_USEC": "much"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({}, None),
    ],
)
def test_it_watches_where_it_says_so(environment, watchdog_s):
    assert ServiceManager({"NOTIFY_SOCKET": "notify", **environment}).watchdog_s == watchdog_s
    assert ServiceManager(environment).watchdog_s is None


def test_without_a_watchdog_no_sign_of_life_is_sent(listener):
    manager = ServiceManager({"NOTIFY_SOCKET": "notify"})
    manager.alive()
    manager.ready()
    assert listener.recv(1_000) == b"READY=1"


@pytest.mark.parametrize("address", ["", "nowhere", "/" + "x" * 300])
def test_a_socket_that_is_not_there_is_no_matter(address, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ServiceManager({"NOTIFY_SOCKET": address}).ready()


def test_a_manager_that_does_not_read_does_not_hold_up_the_session(listener):
    manager = ServiceManager({"NOTIFY_SOCKET": "notify"})
    for _ in range(2_000):  # more than any queue of datagrams holds
        manager.says("x" * 190)

"""A heartbeat is young while the loop goes round, grows old where it hangs, and tells which process it is of."""

import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.live.session_files import HEARTBEAT_FILE
from ml_pipeline.live.supervision.heartbeat import Heartbeat, Pulse, ServiceManager, read_pulse
from ml_pipeline.runtime.process_identity import this_process


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


class Heard(ServiceManager):
    """Notes what systemd would hear."""

    def __init__(self, watchdog_s: float | None = None) -> None:
        super().__init__({})
        self.watchdog_s = watchdog_s
        self.steps: list[str] = []
        self.signs = threading.Semaphore(0)

    def _send(self, text: str) -> None:
        self.steps.append(text)
        if text == "WATCHDOG=1":
            self.signs.release()

    def hears_signs(self, n: int) -> bool:
        return all(self.signs.acquire(timeout=60) for _ in range(n))


def make_old(folder: Path) -> None:
    os.utime(folder / HEARTBEAT_FILE, (1.0, 1.0))


def is_touched(folder: Path) -> bool:
    return (folder / HEARTBEAT_FILE).stat().st_mtime > 1.0


def test_the_process_is_told_with_its_start(tmp_path):
    with Heartbeat(tmp_path, manager=Heard()):
        pulse = read_pulse(tmp_path)
        assert pulse.process == this_process()
        assert pulse.alive is True
        assert pulse.age_s < 3_600
        assert f"process {os.getpid()} " in pulse.in_words(late_s=3_600)


def test_it_beats_again_and_again_from_a_thread(tmp_path):
    heard = Heard(watchdog_s=60)
    with Heartbeat(tmp_path, every_s=0.001, manager=heard):
        assert heard.hears_signs(3)
        make_old(tmp_path)
        assert heard.hears_signs(2)  # one of them may have been under way
        assert is_touched(tmp_path)
    assert {"READY=1", "STOPPING=1"} < {*heard.steps}
    assert not any(thread.name == "heartbeat" for thread in threading.enumerate())


def test_a_loop_that_hangs_is_no_longer_shown_as_alive(tmp_path):
    heart = Heartbeat(tmp_path, patience_s=100.0, manager=(heard := Heard(watchdog_s=60)))
    (tmp_path / HEARTBEAT_FILE).touch()
    for hung_for_s, shows_life in ((0.0, True), (99.0, True), (101.0, False)):
        make_old(tmp_path)
        heard.steps.clear()
        heart._last = time.monotonic() - hung_for_s
        heart._show_life()
        assert (is_touched(tmp_path), heard.steps == ["WATCHDOG=1"]) == (shows_life, shows_life)
    heart.beat()
    heart._show_life()
    assert is_touched(tmp_path)


def test_three_signs_of_life_fit_into_the_watchdog(tmp_path):
    assert Heartbeat(tmp_path, every_s=5.0, manager=Heard(watchdog_s=6.0))._every_s == 2.0
    assert Heartbeat(tmp_path, every_s=5.0, manager=Heard(watchdog_s=600.0))._every_s == 5.0


def test_a_disk_that_fails_does_not_end_it(tmp_path):
    heard = Heard(watchdog_s=60)
    with Heartbeat(tmp_path, every_s=0.001, manager=heard):
        (tmp_path / HEARTBEAT_FILE).unlink()
        assert heard.hears_signs(3)


def test_it_may_be_closed_twice(tmp_path):
    heart = Heartbeat(tmp_path, manager=Heard())
    heart.close()
    with heart:
        heart.close()
        heart.close()


def test_a_folder_that_is_missing_is_told(tmp_path):
    with pytest.raises(UserError, match="heartbeat cannot be written"), Heartbeat(tmp_path / "none", manager=Heard()):
        pass


def test_a_process_that_is_gone_is_told(tmp_path):
    # Of a boot long past, whatever process has its pid today.
    gone = this_process()._replace(started="another-boot/1")
    (tmp_path / HEARTBEAT_FILE).write_text(json.dumps(gone._asdict()))
    pulse = read_pulse(tmp_path)
    assert pulse.alive is False
    assert "is gone" in pulse.in_words()


@pytest.mark.parametrize(
    ("age_s", "alive", "words"),
    [
        (3, True, "runs"),
        (300, True, "hangs"),
        (300, None, "is gone or hangs"),
        (3, None, "runs"),
        (3, False, "is gone"),
    ],
)
def test_a_pulse_in_words(age_s, alive, words):
    assert f" {words};" in Pulse(age_s, this_process(), alive).in_words()


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"host": 1, "pid": "x", "started": null, "namespace": null}'])
def test_a_file_that_is_no_heartbeat_is_none(tmp_path, text):
    (tmp_path / HEARTBEAT_FILE).write_text(text)
    assert read_pulse(tmp_path) is None
    assert read_pulse(tmp_path / "none") is None

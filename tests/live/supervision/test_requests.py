"""The kill switch: what is asked is done even if the process dies meanwhile, and what is not understood stops."""

import errno
import os
import threading
from pathlib import Path

import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.live.session_files import DECISION_FILE, REQUEST_FILE
from ml_pipeline.live.supervision import requests
from ml_pipeline.live.supervision.requests import Requests, ask


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "_BETWEEN_LOOKS_S", 0.0)


def what(folder: Path) -> str | None:
    found = Requests(folder).poll()
    return None if found is None else found.what


def test_nothing_is_asked_at_first(tmp_path):
    assert Requests(tmp_path).poll() is None


@pytest.mark.parametrize("word", ["stop", "flatten"])
def test_what_is_asked_is_asked_until_it_is_done(tmp_path, word):
    ask(tmp_path, word)
    asked = Requests(tmp_path)
    assert [asked.poll().what, asked.poll().what, what(tmp_path)] == [word, word, word]  # also after a restart
    assert asked.done(word) is None
    assert (asked.poll(), what(tmp_path)) == (None, None)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["stop", "STOP\n", "  Stop \r\n"])
def test_a_request_may_be_written_by_hand(tmp_path, text):
    (tmp_path / REQUEST_FILE).write_text(text)
    assert Requests(tmp_path).poll() == ("stop", "A user requested a stop.")
    (tmp_path / REQUEST_FILE).write_text(text.lower().replace("stop", "Flatten"))
    assert what(tmp_path) == "flatten"


@pytest.mark.parametrize("data", [b"", b"flat", b"\xff\xfe\x00", b"flatten please", b"x" * 5_000, b'{"stop": 1}'])
def test_what_is_not_understood_stops_and_is_told(tmp_path, data):
    (tmp_path / REQUEST_FILE).write_bytes(data)
    found = Requests(tmp_path).poll()
    assert found.what == "stop"
    assert "not stop or flatten, which counts as a stop" in found.why
    assert len(found.why) < 300
    assert "\n" not in found.why


def test_a_file_that_is_just_being_written_is_waited_for(tmp_path, monkeypatch):
    (tmp_path / REQUEST_FILE).write_text("")
    monkeypatch.setattr(requests.time, "sleep", lambda s: (tmp_path / REQUEST_FILE).write_text("flatten"))
    assert what(tmp_path) == "flatten"


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink("elsewhere", path)])
def test_what_is_no_file_stops(tmp_path, make):
    make(tmp_path / REQUEST_FILE)
    asked = Requests(tmp_path)
    assert asked.poll().what == "stop"
    asked.done("stop")
    assert asked.poll() is None


def test_a_file_that_cannot_be_removed_is_told(tmp_path):
    (tmp_path / REQUEST_FILE).mkdir()
    (tmp_path / REQUEST_FILE / "more").touch()
    with pytest.raises(UserError, match="remove it before you restart the session"):
        Requests(tmp_path).done("stop")


def test_to_flatten_is_not_taken_back_by_a_stop(tmp_path):
    ask(tmp_path, "flatten")
    ask(tmp_path, "stop")
    assert what(tmp_path) == "flatten"


def test_to_flatten_counts_before_a_stop_of_this_process(tmp_path):
    asked = Requests(tmp_path)
    asked.ask("stop", "Stopped by SIGTERM.")
    assert asked.poll() == ("stop", "Stopped by SIGTERM.")
    ask(tmp_path, "flatten")
    assert asked.poll().what == "flatten"
    asked = Requests(tmp_path / "other")
    asked.ask("stop", "The page asked.")
    asked.ask("flatten", "The owner asked.")
    asked.ask("flatten", "Again.")
    assert asked.poll() == ("flatten", "The owner asked.")
    asked.done("flatten")
    assert asked.poll() is None


def test_to_flatten_that_came_while_a_stop_was_done_is_still_asked(tmp_path):
    asked = Requests(tmp_path)
    ask(tmp_path, "stop")
    assert asked.poll().what == "stop"
    ask(tmp_path, "flatten")
    assert asked.done("stop").what == "flatten"
    assert asked.poll().what == "flatten"
    assert asked.done("flatten") is None


def test_a_session_that_is_not_there_cannot_be_asked(tmp_path):
    with pytest.raises(UserError, match="There is no session"):
        ask(tmp_path / "none", "stop")
    with pytest.raises(UserError, match="request must be one of stop, flatten"):
        ask(tmp_path, "sell")


def test_many_who_ask_at_once_ask_to_flatten(tmp_path):
    threads = [threading.Thread(target=ask, args=(tmp_path, "flatten" if i == 3 else "stop")) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert what(tmp_path) == "flatten"
    assert [path.name for path in tmp_path.iterdir()] == [REQUEST_FILE]


def test_on_a_full_disk_a_request_takes_the_place_of_a_file_that_is_there(tmp_path, monkeypatch):
    def full(*arguments, **options):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(requests, "written_whole", full)
    with pytest.raises(UserError, match="request cannot be written: No space left on device"):
        requests.leave_request(tmp_path, "flatten")
    (tmp_path / DECISION_FILE).write_text("a longer text" * 100)

    requests.leave_request(tmp_path, "flatten")

    assert Requests(tmp_path).poll().what == "flatten"
    assert (tmp_path / "request").read_text() == "flatten\n"

"""A lock between processes keeps out whoever comes later, and leaves nothing behind."""

import threading

import pytest

from ml_pipeline.runtime import file_lock
from ml_pipeline.runtime.file_lock import alone


def test_whoever_waited_for_the_lock_keeps_out_those_who_come_later(tmp_path, monkeypatch):
    opened, lock, entered = threading.Event(), file_lock._lock, []

    def lock_and_tell(descriptor, deadline):
        opened.set()
        lock(descriptor, deadline)

    def wait_for_it():
        with alone(tmp_path / "lock"):
            entered.append((tmp_path / "lock").exists())  # what others would lock

    waiting = threading.Thread(target=wait_for_it)
    with alone(tmp_path / "lock"):
        monkeypatch.setattr(file_lock, "_lock", lock_and_tell)
        waiting.start()
        assert opened.wait(30)
        assert entered == []
    waiting.join(30)
    assert entered == [True]
    assert list(tmp_path.iterdir()) == []


def test_a_wait_with_an_end_ends(tmp_path):
    with alone(tmp_path / "lock"), pytest.raises(TimeoutError), alone(tmp_path / "lock", timeout_s=0.05):
        raise AssertionError("two at the same time")
    with alone(tmp_path / "lock", timeout_s=0.05):
        assert (tmp_path / "lock").exists()

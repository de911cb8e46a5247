"""The service's thread: it is woken, goes on after failures, and tells each of them once."""

import threading
from contextlib import closing, contextmanager

import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.service import loop
from ml_pipeline.service.loop import EventLog, Loop


@pytest.fixture
def said():
    return []


@pytest.fixture
def log(tmp_path, said):
    return EventLog(tmp_path / "service.log", said.append)


class Steps:
    """Does one thing after another, the last one again and again: raises an error, or returns."""

    def __init__(self, *things):
        self.things, self.n_calls, self.done = things, 0, threading.Semaphore(0)

    def __call__(self):
        thing = self.things[min(self.n_calls, len(self.things) - 1)]
        self.n_calls += 1
        self.done.release()
        if isinstance(thing, Exception):
            raise thing

    def wait(self, n):
        for _ in range(n):
            assert self.done.acquire(timeout=60)


@contextmanager
def running(log, steps):
    with closing(Loop(log)) as thread:
        thread.start(steps)
        yield thread


def test_a_failure_is_told_once_as_long_as_it_is_the_same(log, said, monkeypatch):
    monkeypatch.setattr(loop, "_AFTER_FAILURE_S", 0.001)
    monkeypatch.setattr(loop, "_PAUSE_S", 0.001)
    full = UserError("the disk is full")
    steps = Steps(full, full, full, None, full, None)
    with running(log, steps):
        steps.wait(6)
    assert said == ["the disk is full"] * 2


def test_a_mistake_of_ours_is_logged_with_its_traceback_and_does_not_end_the_thread(log, said, monkeypatch):
    monkeypatch.setattr(loop, "_AFTER_FAILURE_S", 0.001)
    steps = Steps(ZeroDivisionError("of ours"), ZeroDivisionError("of ours"), None)
    with running(log, steps):
        steps.wait(3)
    assert said == ["The service failed and tries again: ZeroDivisionError: of ours"]
    assert log.path.read_text().count("Traceback (most recent call last)") == 1


def test_it_is_woken(log, monkeypatch):
    monkeypatch.setattr(loop, "_PAUSE_S", 1000.0)
    steps = Steps(None)
    with running(log, steps) as thread:
        steps.wait(1)
        thread.wake()
        steps.wait(1)
    thread.close()
    thread.wake()  # which does nothing any more


def test_who_listens_does_not_break_the_log(tmp_path):
    def fails(sentence):
        raise ValueError(sentence)

    EventLog(tmp_path / "service.log", fails).tell("one")
    EventLog(tmp_path / "gone" / "service.log", None).tell("nowhere")
    assert (tmp_path / "service.log").read_text().endswith(" one\n")

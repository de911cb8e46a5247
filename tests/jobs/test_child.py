"""What a child process and its parent promise each other, whoever of both ends, and however."""

import json
import os
import queue
import signal
import subprocess
import sys
import time

import psutil
import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.jobs import child as child_module
from ml_pipeline.jobs.child import ABANDONED
from tests.jobs.children import MODULE, ROOT, child

PATIENCE_S = 60
posix = pytest.mark.skipif(os.name != "posix", reason="Windows has no such signals")


def is_gone(pid):
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def wait_until(condition):
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.01)


def test_orders_and_answers_arrive_as_they_were_and_the_end_comes_last(monkeypatch):
    monkeypatch.syspath_prepend("/nowhere")
    monkeypatch.setattr(sys, "path", [*sys.path, "/the last"])
    values = {"do": "echo", "ü": [1, -1e-300, None, "a\nb"]}
    with child(values) as echo:
        assert echo.next_event(PATIENCE_S).message == {"heard": values, "path": "/the last"}
        echo.send({"last": True, "code": 7})
        assert echo.next_event(PATIENCE_S).message["heard"] == {"last": True, "code": 7}
        end = echo.next_event(PATIENCE_S)
        assert (end.child, end.message, end.exit_code) == (echo, {}, 7)
        assert echo.exit_code == echo.wait() == 7
        assert echo.next_event() is None
        assert list(echo.events()) == []
        echo.send({"last": True})  # to nobody
        echo.stop()
        echo.kill()


def test_what_libraries_print_is_no_answer_and_stdin_is_empty_for_them(tmp_path):
    with open(tmp_path / "log", "wb") as log, child({"do": "noise"}, log=log) as noisy:
        assert list(noisy.events()) == [{"stdin": ""}]
    printed = (tmp_path / "log").read_text()
    assert all(f"a {who}" in printed for who in ("library prints", "library writes", "program prints"))


def test_half_a_line_is_left_out():
    with child({"do": "torn"}) as torn:
        assert list(torn.events()) == [{"whole": 1}]
        assert torn.exit_code == 3


def test_a_child_that_raises_leaves_its_traceback_in_the_log(tmp_path):
    with open(tmp_path / "log", "wb") as log, child({"do": "raises"}, log=log) as broken:
        assert broken.wait(PATIENCE_S) == 1
    assert "KeyError: 'out of ink'" in (tmp_path / "log").read_text()


@posix
@pytest.mark.parametrize("name", ["SIGKILL", "SIGTERM", "SIGSEGV", "SIGABRT"])
def test_a_child_that_is_killed_tells_by_which_signal(name):
    with child({"do": "waits"}) as waiting:
        next(waiting.events())
        os.kill(waiting.pid, getattr(signal, name))
        assert waiting.next_event(PATIENCE_S).exit_code == -getattr(signal, name)


@posix
def test_ctrl_c_in_the_terminal_reaches_no_child():
    with child({"do": "waits"}) as waiting:
        next(waiting.events())
        assert os.getsid(waiting.pid) == os.getpgid(waiting.pid) == waiting.pid


@pytest.mark.parametrize("busy_s", [0.0, 0.3], ids=["later", "before it can heed it"])
def test_a_child_is_asked_to_stop(busy_s):
    with child({"do": "waits", "busy_s": busy_s}) as waiting:
        if not busy_s:
            next(waiting.events())
        waiting.stop()
        assert list(waiting.events())[-1] == {"stopped": [False]}
        assert waiting.exit_code == 0


def test_one_that_does_not_heed_a_stop_is_killed_with_all_that_it_started():
    with child({"do": "waits", "deaf": True, "starts": True}) as deaf:
        started = next(deaf.events())["started"]
        deaf.stop()
        assert deaf.wait(0.2) is None
        deaf.kill()
        assert deaf.wait(PATIENCE_S) is not None
        if os.name == "posix":
            wait_until(lambda: is_gone(started))
        else:
            psutil.Process(started).kill()
    deaf.close()  # twice does no harm
    assert is_gone(deaf.pid)


def a_killed_parent(order, monkeypatch, grace_s):
    """The pid of a child whose parent was just killed."""
    monkeypatch.setenv("GRACE_S", str(grace_s))
    with child({"do": "parent_of_one", "child": order}) as parent:
        pid = next(parent.events())["pid"]
        psutil.Process(parent.pid).kill()
        return pid


def test_a_child_ends_with_its_parent_wherever_it_is(monkeypatch):
    pid = a_killed_parent({"do": "waits", "deaf": True}, monkeypatch, grace_s=0.0)
    wait_until(lambda: is_gone(pid))


def test_a_child_saves_first_if_it_has_the_time(tmp_path, monkeypatch):
    saved = tmp_path / "saved"
    pid = a_killed_parent({"do": "waits", "saves": str(saved)}, monkeypatch, grace_s=600.0)
    wait_until(lambda: is_gone(pid))
    assert saved.read_text() == "[True]"


def test_the_time_to_save_ends(monkeypatch):
    pid = a_killed_parent({"do": "waits", "deaf": True}, monkeypatch, grace_s=0.2)
    wait_until(lambda: is_gone(pid))


def test_a_child_whose_parent_ends_before_the_first_order_ends_at_once(monkeypatch):
    monkeypatch.setenv("GRACE_S", "600")
    with child(None) as waiting:
        waiting._process.stdin.close()  # as the system does where the parent is killed
        assert waiting.wait(PATIENCE_S) == ABANDONED


def test_nobody_listens_and_the_child_goes_on(tmp_path):
    saved = tmp_path / "saved"
    order = {"order": {"do": "waits", "saves": str(saved)}, "sys_path": sys.path}
    pipe, program = subprocess.PIPE, [sys.executable, "-m", MODULE]
    with subprocess.Popen(program, stdin=pipe, stdout=pipe, text=True, cwd=ROOT) as waiting:
        waiting.stdout.close()
        waiting.stdin.write(f"{json.dumps(order)}\n{json.dumps({'stop': True})}\n")
        waiting.stdin.flush()
        assert waiting.wait(PATIENCE_S) == 0
    assert saved.read_text() == "[False]"


def test_several_children_tell_one_queue():
    told = queue.SimpleQueue()
    with child({"do": "waits"}, into=told) as one, child({"do": "waits"}, into=told) as two:
        assert {told.get(timeout=PATIENCE_S).child for _ in range(2)} == {one, two}


def test_a_process_that_cannot_be_started_is_a_sentence(monkeypatch):
    def refuse(*arguments, **options):
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(child_module.subprocess, "Popen", refuse)
    with pytest.raises(UserError, match=r"No process can be started for a test: Resource temporarily unavailable\."):
        child({})

"""The queue keeps what it was told, one service at a time, and says why where it cannot."""

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections import deque
from contextlib import closing

import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.runtime.process_identity import this_process
from ml_pipeline.service import store as module
from ml_pipeline.service.store import QueuedRun, RootGone, ServiceRuns, Store, StoreUnavailable

SINCE = "2026-01-02T03:04:05+00:00"
HOLD = """
import sys
from pathlib import Path
from ml_pipeline.service.store import Store
store = Store(Path(sys.argv[1]), since="then")
print("held", flush=True)
input()
"""
LOCK = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN EXCLUSIVE")
print("locked", flush=True)
input()
"""


def run(id, **values):
    return QueuedRun(id=id, settings={"n_envs": 2}, changes={}, folder_of_work="/", **values)


@pytest.fixture
def store(tmp_path):
    with closing(Store(tmp_path, since=SINCE)) as opened:
        yield opened


def python(code, *args):
    command = [sys.executable, "-c", code, *map(str, args)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_what_was_added_and_changed_is_there_again_after_opening(tmp_path):
    with closing(Store(tmp_path, since=SINCE)) as store:
        store.add(run("a"))
        store.add(run("b", priority=2, restarts_left=1))
        store.change("a", status="running", process=this_process(), starts=1, stop_asked=True, changes={"x": 1})
    with closing(Store(tmp_path, since=SINCE)) as store:
        a, b = store.runs()
        assert (a.position, a.status, a.process, a.starts, a.stop_asked, a.changes) == (
            *(1, "running", this_process(), 1, True),
            {"x": 1},
        )
        assert (b.position, b.priority, b.restarts_left, b.process) == (2, 2, 1, None)
        assert [each.id for each in store.active()] == ["b", "a"]
        store.remove("b")
        assert (store.get("b"), [each.id for each in store.runs()]) == (None, ["a"])


def test_adding_a_run_again_changes_nothing(store):
    store.add(run("a"))
    store.change("a", status="finished")
    assert store.add(run("a", priority=5)).status == "finished"
    assert [each.priority for each in store.runs()] == [0]


def test_a_run_can_go_behind_all_others(store):
    for id in "ab":
        store.add(run(id))
    store.change("a", to_the_end=True)
    assert [each.id for each in store.active()] == ["b", "a"]


def test_a_second_service_is_refused_and_told_which_one_works(tmp_path):
    with python(HOLD, tmp_path) as other:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(ServiceRuns, match=rf"process {other.pid} on \S+, since then; submit to that one"):
            Store(tmp_path, since=SINCE)
        os.kill(other.pid, signal.SIGKILL)
    Store(tmp_path, since=SINCE).close()  # what a dead one left is taken over


def test_a_second_service_of_the_same_process_is_refused(store, tmp_path):
    with pytest.raises(ServiceRuns, match=f"process {os.getpid()}"):
        Store(tmp_path, since=SINCE)


def test_a_service_of_a_machine_that_cannot_be_asked_is_not_taken_for_dead(tmp_path, monkeypatch):
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(module, "this_process", lambda: this_process()._replace(host="elsewhere"))
        store = Store(tmp_path, since=SINCE)
        store._connection.close()
        store._root_lock.close()  # as on a file system that has no locks between machines
        module._open_here.clear()
    with pytest.raises(ServiceRuns, match="A service of another machine may still work on"):
        Store(tmp_path, since=SINCE)


def test_a_queue_that_another_program_locks_is_told_and_nothing_is_lost(store, tmp_path, monkeypatch):
    store.add(run("a"))
    store._connection.execute("PRAGMA busy_timeout = 50")
    with python(LOCK, store.path) as other:
        assert other.stdout.readline() == "locked\n"
        with pytest.raises(StoreUnavailable, match="another program has locked it"):
            store.change("a", status="finished")
        other.communicate("\n")
    assert store.get("a").status == "queued"
    store.change("a", status="finished")
    assert store.get("a").status == "finished"


def test_a_full_disk_is_told_and_changes_nothing(store):
    store.add(run("a"))
    store._connection.execute("PRAGMA max_page_count = 1")  # no page more than there are: as a full disk
    names = [f"{i:03}" + "x" * 4000 for i in range(200)]
    with pytest.raises(StoreUnavailable, match=r"the disk is full .* the service continues once there is space"):
        deque((store.add(run(name)) for name in names), maxlen=0)
    found = [each.id for each in store.runs()]
    assert found[0] == "a"
    store._connection.execute("PRAGMA max_page_count = 100000")
    store.add(run("after"))
    assert [each.id for each in store.runs()] == [*found, "after"]


def test_a_damaged_queue_is_told_with_what_to_do(tmp_path):
    (tmp_path / ".service").mkdir()
    (tmp_path / ".service" / "queue.sqlite").write_bytes(b"no database, but more than a hundred bytes" * 10)
    with pytest.raises(StoreUnavailable, match=r"damaged .*; move it away\. Run folders are kept"):
        Store(tmp_path, since=SINCE)


def test_a_queue_of_another_version_is_refused(tmp_path):
    Store(tmp_path, since=SINCE).close()
    with closing(sqlite3.connect(tmp_path / ".service" / "queue.sqlite")) as connection:
        connection.execute("PRAGMA user_version = 7")
    with pytest.raises(StoreUnavailable, match="format 7, here 1"):
        Store(tmp_path, since=SINCE)


def test_a_root_that_cannot_be_written_is_refused_in_a_sentence(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StoreUnavailable, match=r"cannot keep its queue in .*: Not a directory; choose another --root"):
        Store(tmp_path / "file", since=SINCE)


def test_a_queue_that_was_deleted_takes_nothing_more_and_lets_no_second_service_in(store, tmp_path):
    store.add(run("a"))
    for file in (tmp_path / ".service").glob("queue.sqlite*"):
        file.unlink()
    for ask in (lambda: store.add(run("b")), lambda: store.change("a", status="finished"), store.runs, store.active):
        with pytest.raises(RootGone, match=r"queue\.sqlite was deleted, moved or replaced while the service used it"):
            ask()
    with pytest.raises(ServiceRuns, match=f"process {os.getpid()} on "):
        Store(tmp_path, since=SINCE)
    store.close()
    with closing(Store(tmp_path, since=SINCE)) as later:
        assert later.runs() == []


@pytest.mark.skipif(sys.platform == "win32", reason="open files cannot be moved there")
@pytest.mark.parametrize("how", ["deleted", "moved", "replaced"])
def test_a_root_that_is_another_folder_takes_nothing_more_and_does_not_come_back(how, tmp_path):
    root = tmp_path / "root"
    with closing(Store(root, since=SINCE)) as store:
        if how == "deleted":
            shutil.rmtree(root)
        else:
            root.rename(tmp_path / "elsewhere")
        other = Store(root, since=SINCE) if how == "replaced" else None
        with pytest.raises(RootGone, match=f"^{root} was deleted, moved or replaced while the service used it"):
            store.add(run("a"))
        if other is not None:
            store.close()  # the other's files stay
            other.add(run("b"))
            other.close()
            with closing(Store(root, since=SINCE)) as again:
                assert [each.id for each in again.runs()] == ["b"]
    assert root.exists() == (how == "replaced")


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("priority", "high"),
        ("priority", 0.5),
        ("settings", "no JSON"),
        ("settings", "[]"),
        ("status", "odd"),
        ("process", "5"),
    ],
)
def test_a_row_that_cannot_be_read_leaves_the_others_as_they_are(column, value, store):
    for id in ("bad", "good"):
        store.add(run(id))
    store._connection.execute(f"UPDATE runs SET {column} = ? WHERE id = 'bad'", (value,))
    assert [each.id for each in store.runs()] == ["good"]
    assert [*store.unreadable] == ["bad"]
    with pytest.raises(UserError, match=r"entry of run bad in .* is unusable"):
        store.get("bad")
    assert store.change("good", status="finished").status == "finished"


def test_closing_twice_is_fine(tmp_path):
    store = Store(tmp_path, since=SINCE)
    store.close()
    store.close()


@pytest.mark.parametrize("id", ["../victim", "/etc", "..", "a/b", ""])
def test_a_run_whose_id_is_no_name_of_a_folder_is_left_out(store, id):
    store.add(run("good"))
    store.add(run("bad"))
    store._connection.execute("UPDATE runs SET id = ? WHERE id = 'bad'", (id,))
    assert [each.id for each in store.runs()] == ["good"]
    assert [*store.unreadable] == [id]
    with pytest.raises(UserError, match=r"The entry of run .* is unusable"):
        store.get(id)

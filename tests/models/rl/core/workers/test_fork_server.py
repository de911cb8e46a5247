"""The fork server's socket: wherever TMPDIR is, and gone with the trainer, which takes nothing else with it."""

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from multiprocessing import Process
from multiprocessing.forkserver import ForkServer
from multiprocessing.util import get_temp_dir
from pathlib import Path

import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.models.rl.core.workers import fork_server
from tests.models.rl.core.workers.probes import have_ended, run_script, start_script, wait_until

pytestmark = pytest.mark.timeout(120)

OPEN_ENVS = """
import multiprocessing, os, sys, time
from multiprocessing import forkserver
from ml_pipeline.models.rl.core.probe_envs import CountingEnv
from ml_pipeline.models.rl.core.vec_env import ParallelEnv

def open_envs():
    envs = ParallelEnv([CountingEnv] * 2, num_workers=2, start_method="forkserver")
    envs.reset(seed=0)
    assert envs.step([0, 0])[1].tolist() == [1.0, 1.0]
    return envs

def folder():
    return os.path.dirname(forkserver._forkserver._forkserver_address)
"""


@pytest.fixture
def short() -> Iterator[Path]:
    """A temporary folder with a short path."""
    path = Path(tempfile.mkdtemp(dir="/tmp"))
    yield path
    shutil.rmtree(path)


def test_the_socket_lies_in_the_users_temporary_folder_where_that_is_short(short: Path, tmp_path: Path) -> None:
    done = run_script(tmp_path, f"{OPEN_ENVS}\nenvs = open_envs()\nprint(folder())\nenvs.close()", TMPDIR=str(short))
    assert (done.returncode, done.stderr) == (0, "")
    assert Path(done.stdout.strip()).parent == short
    wait_until(lambda: list(short.iterdir()) == [])


@pytest.mark.parametrize("length", [60, 87, 200])
def test_workers_start_however_long_the_path_of_the_temporary_folder_is(
    length: int, short: Path, tmp_path: Path
) -> None:
    long = short / ("x" * (length - len(str(short)) - 1))
    long.mkdir()
    assert len(str(long)) == length
    done = run_script(tmp_path, f"{OPEN_ENVS}\nenvs = open_envs()\nprint(folder())\nenvs.close()", TMPDIR=str(long))
    assert (done.returncode, done.stderr) == (0, "")
    wait_until(lambda: not os.path.exists(done.stdout.strip()))
    assert list(long.iterdir()) == []


@pytest.mark.parametrize("with_workers", [True, False])
def test_the_folder_goes_with_a_killed_trainer(with_workers: bool, tmp_path: Path) -> None:
    closing = "" if with_workers else "envs.close()"
    script = f"{OPEN_ENVS}\nenvs = open_envs()\n{closing}\nprint(folder(), flush=True)\ntime.sleep(600)"
    trainer = start_script(tmp_path, script)
    try:
        assert trainer.stdout is not None
        folder = trainer.stdout.readline().strip()
        assert os.path.isdir(folder)
        trainer.kill()
        wait_until(lambda: not os.path.exists(folder))
    finally:
        trainer.kill()
        _, errors = trainer.communicate()
    assert errors == ""


def test_the_next_run_removes_the_folder_where_the_server_was_killed_too(short: Path, tmp_path: Path) -> None:
    begin = f"{OPEN_ENVS}\nenvs = open_envs()\n"
    say = "print(folder(), forkserver._forkserver._forkserver_pid, flush=True)\nsys.stdin.readline()\nenvs.close()"
    places = tmp_path / "killed", tmp_path / "other"
    for place in places:
        place.mkdir()
    killed, other = (start_script(place, begin + say, TMPDIR=str(short)) for place in places)
    try:
        assert killed.stdout is not None
        assert other.stdout is not None
        left, server = killed.stdout.readline().split()
        kept, _ = other.stdout.readline().split()
        os.kill(int(server), signal.SIGKILL)
        killed.kill()
        killed.wait()
        wait_until(lambda: have_ended([int(server)]))
        assert os.path.isdir(left)
        done = run_script(tmp_path, f"{OPEN_ENVS}\nopen_envs().close()", TMPDIR=str(short))
        assert (done.returncode, done.stderr) == (0, "")
        assert not os.path.exists(left)
        assert os.path.isdir(kept)
        assert other.communicate("\n", timeout=100)[1] == ""
    finally:
        for process in (killed, other):
            process.kill()
            process.communicate()
    wait_until(lambda: list(short.iterdir()) == [])


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_a_killed_trainer_leaves_the_process_above_it_whole(method: str, tmp_path: Path) -> None:
    script = (
        OPEN_ENVS
        + f"""
from multiprocessing.util import get_temp_dir

def train(pipe):
    envs = open_envs()
    pipe.send(([child.pid for child in multiprocessing.active_children()], folder()))
    time.sleep(600)

def say(pipe):
    pipe.send("here")

def start(target, method):
    context = multiprocessing.get_context(method)
    ours, theirs = context.Pipe()
    process = context.Process(target=target, args=(theirs,))
    process.start()
    return process, ours.recv()

if __name__ == "__main__":
    start(say, "forkserver")  # its socket is in the temporary folder
    kept = os.path.join(get_temp_dir(), "kept")
    open(kept, "w").close()
    trainer, (workers, trainers_folder) = start(train, {method!r})
    assert trainers_folder != folder(), "the trainer has a server of its own"
    trainer.kill()
    trainer.join()
    print(*workers, trainers_folder, sep="\\t", flush=True)
    sys.stdin.readline()  # until the workers are gone
    assert os.path.exists(kept)
    assert start(say, "forkserver")[1] == "here"
    print("whole")
"""
    )
    parent = start_script(tmp_path, script)
    try:
        assert parent.stdout is not None
        *pids, folder = parent.stdout.readline().rstrip().split("\t")
        wait_until(lambda: have_ended(map(int, pids)))
        wait_until(lambda: not os.path.exists(folder))
        output, errors = parent.communicate(input="\n", timeout=100)
    finally:
        parent.kill()
    assert (output, errors) == ("whole\n", "")


def test_a_server_that_died_is_started_again(tmp_path: Path) -> None:
    script = (
        OPEN_ENVS
        + """
import signal
open_envs().close()
before = folder()
os.kill(forkserver._forkserver._forkserver_pid, signal.SIGKILL)
os.waitid(os.P_PID, forkserver._forkserver._forkserver_pid, os.WEXITED | os.WNOWAIT)
open_envs().close()
print(before == folder())
"""
    )
    done = run_script(tmp_path, script)
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")


def test_workers_start_though_the_folder_was_tidied_up(tmp_path: Path) -> None:
    script = f"""{OPEN_ENVS}
import shutil
with open_envs() as envs:
    shutil.rmtree(folder())
    with open_envs():
        assert os.path.exists(folder())
    assert envs.step([0, 0])[1].tolist() == [2.0, 2.0]
"""
    done = run_script(tmp_path, script)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_server_that_others_started_is_used_and_left(tmp_path: Path) -> None:
    script = (
        OPEN_ENVS
        + """
if __name__ == "__main__":
    forkserver.ensure_running()
    before = folder()
    open_envs().close()
    print(before == folder(), os.path.exists(before))
"""
    )
    done = run_script(tmp_path, script)
    assert (done.returncode, done.stdout, done.stderr) == (0, "True True\n", "")


def test_no_folder_at_all_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: object) -> str:
        raise PermissionError

    monkeypatch.setattr(tempfile, "mkdtemp", refuse)
    with pytest.raises(UserError, match=r'cannot be written to.*pass start_method="spawn"'):
        fork_server._short_folder()


def test_what_multiprocessing_does_not_publish_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server's own attributes, the module's folder, and what a process runs: one function for each."""
    server = ForkServer()
    assert server._forkserver_pid is None
    reading, writing = os.pipe()
    server._forkserver_pid, server._forkserver_address, server._forkserver_alive_fd = 7, b"/tmp/socket", writing
    monkeypatch.setattr(fork_server, "_SERVER", server)
    assert (fork_server._pid(), fork_server._address(), fork_server._preloaded()) == (7, "/tmp/socket", ["__main__"])
    fork_server._forget_server()
    assert (fork_server._pid(), fork_server._address(), os.read(reading, 1)) == (None, "", b"")
    os.close(reading)
    with fork_server._temporary_folder("/tmp/short"):
        assert get_temp_dir() == "/tmp/short"
    assert get_temp_dir() != "/tmp/short"
    monkeypatch.setattr("multiprocessing.current_process", lambda: Process(target=print))
    assert fork_server.is_running(print)
    assert not fork_server.is_running(repr)

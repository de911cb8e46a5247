"""Host, pid and start time identify a process; a pid that was given to another one does not."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ml_pipeline.runtime import process_identity
from ml_pipeline.runtime.process_identity import is_alive, new_owned_folder, owner_of, this_process

IDENTITY = "from ml_pipeline.runtime.process_identity import this_process; print(tuple(this_process()), flush=True)"
by_proc = pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="needs /proc")


@pytest.fixture
def other():
    """A living process and its identity, as it tells it."""
    command = [sys.executable, "-c", f"{IDENTITY}; input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process, process_identity.ProcessIdentity(*eval(process.stdout.readline()))
        process.kill()


def test_this_process_is_alive_and_tells_the_same_each_time():
    assert is_alive(this_process()) is True
    assert this_process() == this_process()
    assert this_process().pid == os.getpid()


def test_another_process_is_alive_until_it_is_killed(other):
    process, identity = other
    assert is_alive(identity) is True
    process.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it has ended and nobody has asked how: a zombie
    assert is_alive(identity) is False
    process.wait()
    assert is_alive(identity) is False


@by_proc
def test_a_pid_that_was_given_to_another_process_is_not_the_earlier_one():
    boot = this_process().started.partition("/")[0]
    assert is_alive(this_process()._replace(started=f"{boot}/1")) is False


@by_proc
def test_no_process_outlives_a_restart_of_its_machine():
    assert is_alive(this_process()._replace(started="another-boot/1")) is False


@pytest.mark.parametrize("unknown", [{"host": "elsewhere"}, {"namespace": "pid:[1]"}, {"started": None}], ids=str)
def test_what_cannot_be_seen_from_here_is_not_guessed(unknown):
    assert is_alive(this_process()._replace(**unknown)) is None


@pytest.mark.skipif(os.name != "posix", reason="needs ps")
def test_where_there_is_no_proc_ps_tells(monkeypatch, tmp_path, other):
    process, _ = other
    monkeypatch.setattr(process_identity, "_PROC", tmp_path)
    identity = this_process()._replace(pid=process.pid, started=process_identity._start_by_ps(process.pid))
    assert is_alive(identity) is True
    assert is_alive(identity._replace(started="Thu Jan 1 00:00:00 1970")) is False
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    assert is_alive(identity) is True
    process.kill()
    process.wait()
    assert is_alive(identity) is False


def test_where_nothing_tells_nothing_is_known(monkeypatch, tmp_path):
    monkeypatch.setattr(process_identity, "_PROC", tmp_path)
    monkeypatch.setenv("PATH", "")
    assert this_process().started is None
    assert is_alive(this_process()) is None


pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs signals")
MAKE = "from ml_pipeline.runtime.process_identity import new_owned_folder; print(new_owned_folder('ours-'), flush=True)"


@pytest.fixture(autouse=True)
def _temporary_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))


@pytest.fixture
def abandoned() -> Path:
    """A folder of a process that was killed."""
    code = f"{MAKE}; import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL
    folder = Path(done.stdout.strip())
    (folder / "socket").touch()
    return folder


def test_a_folder_says_whose_it_is() -> None:
    assert owner_of(new_owned_folder("ours-")) == this_process()


def test_the_folder_of_a_killed_process_is_removed(abandoned: Path) -> None:
    other = abandoned.with_name("pymp-other")
    abandoned.rename(other)
    mine = new_owned_folder("ours-")
    assert other.exists()  # bears another name
    other.rename(abandoned)
    new_owned_folder("ours-")
    assert not abandoned.exists()
    assert mine.exists()


def test_the_folder_of_a_living_process_stays() -> None:
    command = [sys.executable, "-c", f"{MAKE}; input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        folder = Path(other.stdout.readline().strip())
        new_owned_folder("ours-")
        assert folder.exists()
        other.communicate("\n")
    new_owned_folder("ours-")
    assert not folder.exists()


def test_what_may_be_in_use_stays(abandoned: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner_file = abandoned / "owner.json"
    host, *rest, namespace = json.loads(owner_file.read_text())
    for text in (
        "",  # a folder that was made a moment ago
        owner_file.read_text()[:-3],
        "7",
        json.dumps([f"not-{host}", *rest, namespace]),  # the folder is on a network drive
        json.dumps([host, *rest, "pid:[1]"]),  # or shared by containers
    ):
        owner_file.write_text(text)
        new_owned_folder("ours-")
        assert abandoned.exists(), text
    owner_file.unlink()
    new_owned_folder("ours-")
    assert abandoned.exists()
    owner_file.write_text(json.dumps([host, *rest, namespace]))
    with monkeypatch.context() as context:
        context.setattr(os, "geteuid", lambda: os.getuid() + 1)
        new_owned_folder("ours-")
        assert abandoned.exists()  # another user's
    new_owned_folder("ours-")
    assert not abandoned.exists()


def test_a_planted_link_leads_nowhere(abandoned: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    abandoned.rename(elsewhere)
    abandoned.symlink_to(elsewhere)
    new_owned_folder("ours-")
    assert (elsewhere / "socket").exists()

"""A folder of a killed process is removed by the next one; all others stay."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ml_pipeline.runtime.owned_folders import new_owned_folder, owner_of
from ml_pipeline.runtime.process_identity import this_process

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs signals")
MAKE = "from ml_pipeline.runtime.owned_folders import new_owned_folder; print(new_owned_folder('ours-'), flush=True)"


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

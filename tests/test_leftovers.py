"""The check that a session of tests leaves nothing behind finds each kind of thing that may be left."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import psutil
import pytest

from ml_pipeline.models.rl.core.probe_envs import CountingEnv
from ml_pipeline.models.rl.core.vec_env import ParallelEnv
from tests.leftovers import Leftovers, named_shared_memory

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60)]

SLEEP = "import time; print(flush=True); time.sleep(600)"


@pytest.fixture
def leftovers() -> Iterator[Leftovers]:
    with Leftovers() as found:
        yield found


def test_a_clean_session_leaves_nothing(leftovers: Leftovers) -> None:
    with ParallelEnv([CountingEnv] * 2, num_workers=2) as envs:
        envs.reset()
    assert leftovers.find() == []


def test_a_file_is_named_with_the_test_that_left_it(leftovers: Leftovers) -> None:
    leftovers.note("test_before")
    Path(tempfile.mkdtemp(prefix="SB3-")).rename(leftovers.folder / "SB3-2026")
    leftovers.note("test_that_left_it")
    leftovers.note("test_after")
    assert leftovers.find(grace_s=0) == ["SB3-2026 in TMPDIR, first seen after test_that_left_it"]


def test_the_folder_is_that_of_subprocesses_too_and_ends_with_the_session() -> None:
    before = tempfile.gettempdir(), os.environ["TMPDIR"]
    with Leftovers() as leftovers:
        command = [sys.executable, "-c", "import tempfile; print(tempfile.mkdtemp())"]
        made = Path(subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout.strip())
        assert made.parent == leftovers.folder
    assert not leftovers.folder.exists()
    assert (tempfile.gettempdir(), os.environ["TMPDIR"]) == before


def test_a_process_is_found(leftovers: Leftovers) -> None:
    with subprocess.Popen([sys.executable, "-c", SLEEP], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        (sentence,) = leftovers.find(grace_s=0)
        process.kill()
    assert sentence.startswith(f"process {process.pid} (sleeping): ")
    assert leftovers.find() == []


def test_a_process_whose_parent_died_is_found(leftovers: Leftovers) -> None:
    sleep = "import time; time.sleep(600)"
    script = f"import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', {sleep!r}]).pid)"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        orphan = psutil.Process(int(parent.stdout.readline()))
        parent.wait()
    (sentence,) = leftovers.find(grace_s=0)
    orphan.kill()
    assert sentence.startswith(f"process {orphan.pid} (")
    assert leftovers.find() == []


def test_workers_that_still_run_are_found(leftovers: Leftovers) -> None:
    with ParallelEnv([CountingEnv] * 2, num_workers=2):
        assert len([sentence for sentence in leftovers.find(grace_s=0) if sentence.startswith("process ")]) == 2
    assert leftovers.find() == []


needs_proc = pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="open files are not told here")


@needs_proc
def test_shared_memory_is_found(leftovers: Leftovers) -> None:
    memory = SharedMemory(create=True, size=1)
    try:
        assert leftovers.find(grace_s=0) == [f"{memory.name} in shared memory"]
    finally:
        memory.close()
        memory.unlink()
    assert leftovers.find() == []


@needs_proc
def test_what_a_process_has_open_or_mapped_is_known_under_any_name_until_it_has_none(tmp_path: Path) -> None:
    mapped, opened, others = (tmp_path / name for name in ("mapped", "opened", "of others"))
    for path in (mapped, opened, others):
        path.write_bytes(b"1234")
    script = (
        f"import mmap; file, other = open({str(opened)!r}), open({str(mapped)!r}, 'r+')\n"
        "m = mmap.mmap(other.fileno(), 0); other.close()\n"
    )
    with subprocess.Popen([sys.executable, "-c", script + SLEEP], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert named_shared_memory([process.pid], tmp_path) == {"mapped", "opened"}
        os.link(mapped, tmp_path / "another name")  # so does the C library name a semaphore
        mapped.unlink()
        opened.unlink()
        assert named_shared_memory([process.pid], tmp_path) == {"another name"}
        assert named_shared_memory([os.getpid()], tmp_path) == set()
        process.kill()

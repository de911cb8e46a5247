"""Memory that is shared with workers is all there from the beginning, or a sentence says why not."""

import errno
import gc
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.models.rl.core.probe_envs import CountingEnv
from ml_pipeline.models.rl.core.stepping import batch
from ml_pipeline.models.rl.core.stepping.batch import allocate
from ml_pipeline.models.rl.core.vec_env import ParallelEnv
from tests.models.rl.core.workers.probes import START_METHODS

pytestmark = [
    pytest.mark.skipif(os.name != "posix", reason="multiprocessing's own is used there"),
    pytest.mark.filterwarnings("ignore:start_method='fork'"),
    pytest.mark.timeout(120),
]


@pytest.fixture(params=["memory", "folder", "written"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """As on Linux; as where only folders are there; and as on macOS."""
    if request.param == "memory" and not hasattr(os, "memfd_create"):
        pytest.skip("not on this system")
    if request.param != "memory":
        monkeypatch.delattr(os, "memfd_create", raising=False)
        monkeypatch.setattr(batch, "_SHARED_MEMORY", str(tmp_path))
    if request.param == "written":
        monkeypatch.delattr(os, "posix_fallocate", raising=False)
    return request.param


@pytest.mark.usefixtures("kind")
def test_memory_is_zero_and_has_its_place_from_the_beginning(tmp_path: Path) -> None:
    nbytes = 3_000_001
    memory = allocate(nbytes, num_envs=1)
    assert os.fstat(memory._fd).st_blocks * 512 >= nbytes
    assert (len(memory), memory[:]) == (nbytes, bytes(nbytes))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("kind")
@pytest.mark.parametrize("start_method", START_METHODS)
def test_workers_share_it(start_method: Any) -> None:
    with ParallelEnv([CountingEnv] * 2, num_workers=2, start_method=start_method) as envs:
        envs.reset(seed=0)
        assert envs.step([1, 2])[1].tolist() == [11.0, 21.0]


def test_nothing_of_it_stays_open() -> None:
    allocate(1, num_envs=1)
    gc.collect()
    before = psutil.Process().num_fds()
    for _ in range(3):
        allocate(100, num_envs=1)
    gc.collect()
    assert psutil.Process().num_fds() == before


def test_the_next_place_is_taken_where_one_has_no_room(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []
    made = batch._file_without_name

    def full_at_first(place: str, nbytes: int) -> int:
        tried.append(place)
        if len(tried) == 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return made(place, nbytes)

    monkeypatch.setattr(batch, "_file_without_name", full_at_first)
    assert len(allocate(10, num_envs=1)) == 10
    assert tried == batch._places()[:2]


def test_too_little_room_is_one_sentence_with_numbers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full, raising=False)
    monkeypatch.setattr(batch, "_SHARED_MEMORY", str(tmp_path))
    monkeypatch.setattr("shutil.disk_usage", lambda place: psutil.disk_usage(place)._replace(free=1_500_000))
    before = psutil.Process().num_fds()
    with pytest.raises(UserError) as caught:
        allocate(64_000_000, num_envs=8)
    message = str(caught.value)
    assert message.startswith("8 environments need 64.0 MB of shared memory for their workers, but there is no room ")
    assert f"{tmp_path}: No space left on device, 1.5 MB free" in message
    assert "Use fewer environments or num_workers=0" in message
    assert psutil.Process().num_fds() == before
    assert list(tmp_path.iterdir()) == []


def test_a_limit_of_the_system_is_a_sentence_and_no_bus_error() -> None:
    script = (
        "import resource, numpy, gymnasium\n"
        "from ml_pipeline.config.errors import UserError\n"
        "from ml_pipeline.models.rl.core.probe_envs import TimedEnv\n"
        "from ml_pipeline.models.rl.core.vec_env import ParallelEnv\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))\n"
        "try:\n"
        "    ParallelEnv([lambda: TimedEnv(shape=(500_000,))] * 4, num_workers=2)\n"
        "except UserError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith("4 environments need 16.0 MB of shared memory for their workers"), done.stderr
    assert done.stdout.count("\n") == 1
    assert "File too large" in done.stdout

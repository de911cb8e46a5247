"""A worker's end is noticed, and waited for, while a process that one of its environments forked holds its pipes."""

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from ml_pipeline.models.rl.core.probe_envs import CountingEnv
from ml_pipeline.models.rl.core.stepping.errors import WorkerDiedError
from ml_pipeline.models.rl.core.vec_env import ParallelEnv
from tests.models.rl.core.workers.probes import START_METHODS, have_ended, is_gone, wait_until

pytestmark = [
    pytest.mark.filterwarnings("ignore:start_method='fork'"),
    pytest.mark.timeout(120),
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork"),
]

LONGER_THAN_THE_TEST_S = 1000.0
HOLD, DIE = 1, 2


class HoldingEnv(CountingEnv):
    """Forks, in one of its methods, a process of its own session; with DIE, its worker then ends.

    The process stays until the folder of notes is gone, and leaves a note named after its number. Only the first
    worker to get there does so.
    """

    def __init__(self, method: str, notes: Path, then: int) -> None:
        super().__init__(length=50)
        self.method, self.notes, self.then = method, notes, then
        self._hold_in("constructor")

    def reset(self, **kwargs: Any) -> Any:
        self._hold_in("reset")
        return super().reset(**kwargs)

    def step(self, action: int) -> Any:
        if action:
            self._hold_in("step")
        return super().step(0)

    def _hold_in(self, method: str) -> None:
        if method != self.method or multiprocessing.parent_process() is None or any(self.notes.iterdir()):
            return
        copies = [os.dup(descriptor) for descriptor in map(int, os.listdir("/dev/fd")) if is_open(descriptor)]
        if os.fork() == 0:  # which closes the link itself, unless a library in C does it
            os.setsid()
            (self.notes / str(os.getpid())).touch()
            while self.notes.exists():
                time.sleep(0.01)
            os._exit(0)
        for descriptor in copies:
            os.close(descriptor)
        wait_until(lambda: any(self.notes.iterdir()))
        if self.then == DIE:
            os._exit(7)


def is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


@pytest.fixture
def notes(tmp_path: Path) -> Iterator[Path]:
    """A folder in which each process that holds pipes leaves a note; without it they end."""
    folder = tmp_path / "notes"
    folder.mkdir()
    yield folder
    pids = holders(folder)
    assert pids, "nobody held the pipes"
    folder.rename(tmp_path / "released")
    wait_until(lambda: have_ended(pids))


def holders(notes: Path) -> list[int]:
    """The processes that hold pipes now."""
    return [int(note.name) for note in notes.iterdir() if not have_ended([int(note.name)])]


@pytest.fixture
def opened(notes: Path) -> Iterator[Callable[..., ParallelEnv]]:
    """Makes environments of which the second, in a worker of its own, holds pipes in a method."""
    made: list[ParallelEnv] = []

    def make(method: str, then: int, **kwargs: Any) -> ParallelEnv:
        env_fns = [CountingEnv, partial(HoldingEnv, method, notes, then)]
        made.append(ParallelEnv(env_fns, num_workers=2, **kwargs))
        return made[-1]

    yield make
    for envs in made:
        envs.close(terminate=True)
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("start_method", START_METHODS)
@pytest.mark.parametrize("method", ["constructor", "reset", "step"])
def test_a_worker_whose_pipes_are_held_is_named(
    method: str, start_method: Any, opened: Callable[..., ParallelEnv]
) -> None:
    def use() -> None:
        envs = opened(method, DIE, start_method=start_method)
        envs.reset()
        envs.step([0, HOLD])

    doing = "while starting" if method == "constructor" else f"in {method} of environment 1"
    with pytest.raises(WorkerDiedError, match=f"exited with code 7 {doing}"):
        use()


@pytest.mark.parametrize("start_method", START_METHODS)
@pytest.mark.parametrize("method", ["reset", "step"])
def test_a_worker_whose_pipes_are_held_is_replaced(
    method: str, start_method: Any, opened: Callable[..., ParallelEnv], notes: Path
) -> None:
    envs = opened(method, DIE, start_method=start_method, on_worker_failure="restart")
    envs.reset()
    assert envs.step([0, HOLD])[3].tolist() == [False, method == "step"]
    assert envs.num_restarts == 1
    assert holders(notes)


@pytest.mark.parametrize("start_method", START_METHODS)
def test_closing_waits_for_workers_and_not_for_who_holds_their_pipes(
    start_method: Any, opened: Callable[..., ParallelEnv], notes: Path
) -> None:
    envs = opened("reset", HOLD, start_method=start_method)
    envs.reset()
    envs.close(timeout=LONGER_THAN_THE_TEST_S)
    assert holders(notes)


@pytest.mark.parametrize("start_method", START_METHODS)
def test_the_wait_for_an_end_is_not_for_who_holds_the_pipes(
    start_method: Any, opened: Callable[..., ParallelEnv]
) -> None:
    envs = opened("reset", HOLD, start_method=start_method)
    envs.reset()
    worker = envs._pool._processes[1]
    assert not worker.has_ended(0.0)
    worker.process.kill()
    assert worker.has_ended(LONGER_THAN_THE_TEST_S)


def test_a_long_command_to_a_worker_whose_pipes_are_held_is_cut_short(opened: Callable[..., ParallelEnv]) -> None:
    envs = opened("reset", HOLD)
    envs.reset()
    worker = psutil.Process(envs._pool.processes[1].pid)
    worker.kill()
    wait_until(lambda: is_gone(worker))
    with pytest.raises(WorkerDiedError, match="Worker 1"):
        envs.set_attr("text", ["x" * (1 << 20)] * 2)

"""An environment whose os.fork() returns twice: the new process leaves before it writes, and the worker goes on."""

import multiprocessing
import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ml_pipeline.models.rl.core.probe_envs import CountingEnv
from ml_pipeline.models.rl.core.vec_env import ParallelEnv
from tests.models.rl.core.workers.probes import START_METHODS, have_ended, wait_until

pytestmark = [
    pytest.mark.filterwarnings("ignore:start_method='fork'"),
    pytest.mark.timeout(120),
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork"),
]


class TwiceEnv(CountingEnv):
    """Forks in one of its methods once it is told to, and goes on as two; the worker waits until the other is gone."""

    def __init__(self, method: str, *, raises: bool = False) -> None:
        super().__init__(length=1 if method == "later reset" else 50)
        self.method, self.raises = method, raises
        self._go_on_as_two_in("constructor")

    def reset(self, **kwargs: Any) -> Any:
        self._go_on_as_two_in("reset" if self.episode == 0 else "later reset")
        return super().reset(**kwargs)

    def step(self, action: int) -> Any:
        self._go_on_as_two_in("step")
        return super().step(action)

    def get(self) -> int:
        self._go_on_as_two_in("call")
        return 3

    def close(self) -> None:
        self._go_on_as_two_in("close")

    def _go_on_as_two_in(self, method: str) -> None:
        if method == self.method and multiprocessing.parent_process() is not None:
            self.method = ""
            pid = os.fork()
            if pid:
                wait_until(lambda: have_ended([pid]))
            elif self.raises:
                raise ValueError("only in the new process")


class NotingEnv(CountingEnv):
    """Notes which processes call it."""

    def __init__(self, notes: Path) -> None:
        self.notes = notes
        super().__init__(length=50)

    def reset(self, **kwargs: Any) -> Any:
        (self.notes / str(os.getpid())).touch()
        return super().reset(**kwargs)

    def step(self, action: int) -> Any:
        (self.notes / str(os.getpid())).touch()
        return super().step(action)

    def get(self) -> int:
        (self.notes / str(os.getpid())).touch()
        return 3


def use(envs: ParallelEnv) -> list[Any]:
    seen = [envs.reset(seed=0)[0].tolist()]
    for _ in range(3):
        observations, rewards, *_ = envs.step([0, 1])
        seen += [observations.tolist(), rewards.tolist()]
    return seen


@pytest.mark.parametrize("start_method", START_METHODS)
@pytest.mark.parametrize("method", ["constructor", "reset", "step", "later reset", "call", "close"])
def test_what_returns_from_a_fork_leaves_with_a_sentence(
    method: str, start_method: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    env_fns = [partial(TwiceEnv, method), partial(NotingEnv, tmp_path)]
    with ParallelEnv(env_fns, num_workers=1, start_method=start_method) as envs:
        worker = envs._pool.processes[0].pid
        seen = use(envs)
        if method == "call":
            assert envs.call("get") == (3, 3)
    length = 1 if method == "later reset" else 50
    with ParallelEnv([partial(CountingEnv, length), partial(CountingEnv, 50)], num_workers=0) as expected:
        assert seen == use(expected)
    assert {note.name for note in tmp_path.iterdir()} == {str(worker)}
    if start_method == "forkserver":
        return  # its server writes where the test before it did
    (sentence,) = capfd.readouterr().err.splitlines()
    assert "was forked by an environment of worker 0 and returned from it" in sentence
    assert "End it inside the environment, with os._exit()." in sentence


def test_what_raises_after_a_fork_leaves_as_well(capfd: pytest.CaptureFixture[str]) -> None:
    with ParallelEnv(
        [partial(TwiceEnv, "step", raises=True), CountingEnv], num_workers=1, start_method="spawn"
    ) as envs:
        assert use(envs)[-1] == [3.0, 13.0]
    assert "was forked by an environment of worker 0" in capfd.readouterr().err

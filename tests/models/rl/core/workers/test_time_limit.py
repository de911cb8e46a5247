"""Limits count the time for which this process ran, and a suspended training goes on as if nothing had been."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ml_pipeline.models.rl.core.probe_envs import CountingEnv, FaultyEnv
from ml_pipeline.models.rl.core.stepping.errors import StepTimeoutError
from ml_pipeline.models.rl.core.vec_env import ParallelEnv
from ml_pipeline.models.rl.core.workers import process
from ml_pipeline.models.rl.core.workers.process import TimeLimit
from tests.models.rl.core.workers.probes import OddEnv, pass_through, worker_pids

pytestmark = pytest.mark.timeout(120)
HOUR_S = 3600.0


@pytest.fixture
def pass_time(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Lets so much time pass on the clock of limits, which stands still otherwise."""
    now = 0.0

    def go_on(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(process, "time", type("Clock", (), {"monotonic": lambda: now}))
    return go_on


def test_a_limit_passes_while_this_process_runs(pass_time: Callable[[float], None]) -> None:
    limit = TimeLimit(1.0)
    for left_s in (0.75, 0.5, 0.25):
        pass_time(0.25)
        assert (limit.left_s(), limit.is_over()) == (left_s, False)
    pass_time(0.5)
    assert (limit.is_over(), limit.left_s()) == (True, 0.0)


def test_a_suspension_gives_all_the_time_again(pass_time: Callable[[float], None]) -> None:
    limit = TimeLimit(1.0)
    pass_time(0.5)
    assert limit.left_s() == 0.5
    pass_time(HOUR_S)
    assert limit.left_s() == 1.0


def test_many_suspensions_do_not_hide_a_hang(pass_time: Callable[[float], None]) -> None:
    limit = TimeLimit(1.0)
    pass_time(HOUR_S)
    assert limit.left_s() == 1.0
    pass_time(HOUR_S)
    assert limit.left_s() == 0.5  # counts as half a second
    pass_time(HOUR_S)
    assert limit.is_over()


class GatedEnv(CountingEnv):
    """A step with action 1 says where it is, and waits."""

    def __init__(self, folder: Path) -> None:
        super().__init__(length=50)
        self.folder = folder

    def step(self, action: int) -> Any:
        if action == 1:
            (self.folder / "waiting").touch()
            pass_through(self.folder / "gate")
        return super().step(action)


@pytest.mark.parametrize("ends", ["step", "step_wait"])
def test_a_suspension_is_no_hang(ends: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slept_s = 0.0

    def with_sleep() -> float:
        """The time, with an hour in which the computer slept, in the middle of a step that ends soon after it."""
        nonlocal slept_s
        if not slept_s and (tmp_path / "waiting").exists():
            slept_s = HOUR_S
        elif slept_s:
            (tmp_path / "gate").touch()
        return time.monotonic() + slept_s

    with ParallelEnv([lambda: GatedEnv(tmp_path)] * 2, num_workers=2, step_timeout_s=60) as envs:
        envs.reset(seed=0)
        monkeypatch.setattr(process, "time", type("Clock", (), {"monotonic": staticmethod(with_sleep)}))
        if ends == "step":
            rewards = envs.step([1, 0])[1]
        else:
            envs.step_async([1, 0])
            rewards = envs.step_wait(timeout=60)[1]
        assert slept_s == HOUR_S
        assert rewards.tolist() == [11.0, 1.0]


def test_a_worker_that_is_stopped_alone_is_a_hang() -> None:
    with ParallelEnv([OddEnv] * 2, num_workers=2, step_timeout_s=60) as envs:
        envs.reset(seed=0)
        os.kill(worker_pids(envs)[0], signal.SIGSTOP)
        envs._pool._step_timeout_s = 1.0
        with pytest.raises(StepTimeoutError, match=r"its step within step_timeout_s=1: environments? . has not"):
            envs.step([0, 0])


def test_a_hang_is_noticed_while_nobody_waits_for_it() -> None:
    """One group goes on while the other hangs."""
    env_fns = [CountingEnv, lambda: FaultyEnv("hang")]
    with ParallelEnv(env_fns, num_workers=2, num_groups=2, step_timeout_s=60) as envs:
        envs.reset(seed=0)
        envs._pool._step_timeout_s = 0.5
        envs.send([0], [1])
        envs._pool._step_timeout_s = 60

        def step_the_other() -> None:
            while True:
                envs.send([0], [0])
                envs.recv(env_ids=[0])

        with pytest.raises(StepTimeoutError, match=r"Worker 1 .* step_timeout_s=0.5: environment 1 has not returned"):
            step_the_other()

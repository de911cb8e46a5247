import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import psutil
import pytest
from gymnasium import spaces
from gymnasium.error import AlreadyPendingCallError, NoAsyncCallError
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import AutoresetMode

from ml_pipeline.config.errors import UserError
from ml_pipeline.models.rl.core.partial_steps import PartialStep
from ml_pipeline.models.rl.core.probe_envs import CountingEnv, FaultyEnv
from ml_pipeline.models.rl.core.stepping.errors import (
    ActionsError,
    EnvRaisedError,
    ResetRequiredError,
    StepTimeoutError,
    WorkerDiedError,
)
from ml_pipeline.models.rl.core.vec_env import ParallelEnv
from tests.models.rl.core.workers.probes import get_stuck, wait_until

pytestmark = pytest.mark.timeout(120)

N = 6
HALVES = ([0, 1, 2], [3, 4, 5])


def counting() -> list[Callable[[], gymnasium.Env]]:
    return [lambda i=i: CountingEnv(length=3 + i, spread=4) for i in range(N)]


def actions_of(t: int, env_ids: Any) -> np.ndarray:
    return np.array([(t + index) % 2 for index in env_ids])


def assert_same(one: PartialStep, other: PartialStep) -> None:
    assert data_equivalence(tuple(one), tuple(other))


def overlapped(envs: ParallelEnv, n_steps: int) -> list[PartialStep]:
    """One half is always under way while the other is looked at."""
    envs.reset(seed=3)
    steps = []
    for half in HALVES:
        envs.send(actions_of(0, half), half)
    for t in range(n_steps):
        for half in HALVES:
            steps.append(envs.recv(env_ids=half))
            envs.send(actions_of(t + 1, half), half)
    for half in HALVES:
        steps.append(envs.recv(env_ids=half))
    return steps


def in_turn(envs: ParallelEnv, n_steps: int) -> list[PartialStep]:
    envs.reset(seed=3)
    steps = []
    for t in range(n_steps + 1):
        for half in HALVES:
            envs.send(actions_of(t, half), half)
            steps.append(envs.recv(env_ids=half))
    return steps


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
def test_overlapping_halves_change_no_result(mode: AutoresetMode) -> None:
    with (
        ParallelEnv(counting(), num_groups=2, num_workers=0, autoreset_mode=mode) as serial,
        ParallelEnv(counting(), num_groups=2, num_workers=2, autoreset_mode=mode) as parallel,
        ParallelEnv(counting(), num_groups=2, num_workers=5, autoreset_mode=mode) as uneven,
    ):
        expected = in_turn(serial, 20)
        assert any(step.terminated.any() for step in expected)
        for steps in (overlapped(parallel, 20), overlapped(uneven, 20)):
            for mine, theirs in zip(steps, expected, strict=True):
                assert_same(mine, theirs)


def test_halves_step_as_the_whole_does() -> None:
    with (
        ParallelEnv(counting(), num_workers=0) as whole,
        ParallelEnv(counting(), num_groups=2, num_workers=2) as halves,
    ):
        whole.reset(seed=3)
        steps = in_turn(halves, 15)
        for t in range(16):
            observations, rewards, terminated, truncated, infos = whole.step(actions_of(t, range(N)))
            for half, step in zip(HALVES, steps[2 * t : 2 * t + 2], strict=True):
                for mine, theirs in zip(step[1:5], (observations, rewards, terminated, truncated), strict=True):
                    np.testing.assert_array_equal(mine, theirs[half])
                for index, info in zip(half, step.infos, strict=True):
                    assert ("final_obs" in info) == (terminated[index] or truncated[index])
                    if "final_obs" in info:
                        np.testing.assert_array_equal(info["final_obs"], infos["final_obs"][index])


class GatedEnv(CountingEnv):
    """Action 1 waits for a file."""

    def __init__(self, gate: Path) -> None:
        super().__init__(length=100)
        self._gate = gate

    def step(self, action: int) -> Any:
        while action == 1 and not self._gate.exists():
            time.sleep(0.001)
        return super().step(0)


def test_what_is_ready_comes_back_while_others_are_under_way(tmp_path: Path) -> None:
    with ParallelEnv([lambda: GatedEnv(tmp_path / "gate")] * 4, num_groups=4, num_workers=4) as envs:
        envs.reset(seed=0)
        envs.send([0, 1, 0, 0], range(4))
        first = envs.recv(min_ready=3)
        assert sorted(first.env_ids.tolist()) == [0, 2, 3]
        assert first.observations[:, 1].tolist() == [1, 1, 1]
        envs.send([0], [2])
        assert envs.recv().env_ids.tolist() == [2]
        (tmp_path / "gate").touch()
        last = envs.recv(min_ready=9)  # no more than there are
        assert (last.env_ids.tolist(), last.rewards.tolist()) == ([1], [1.0])
        assert envs.step([0] * 4)[0][:, 1].tolist() == [2, 2, 3, 2]


def test_calls_out_of_order_are_named_and_harmless() -> None:
    with ParallelEnv([CountingEnv] * 4, num_groups=2, num_workers=2) as envs:
        envs.reset(seed=0)
        with pytest.raises(NoAsyncCallError, match="without any prior call to `send`"):
            envs.recv()
        envs.send([0, 0], [0, 1])
        with pytest.raises(AlreadyPendingCallError, match=r"\[0, 1\] are already stepping"):
            envs.send([0, 0], [0, 1])
        with pytest.raises(NoAsyncCallError, match=r"\[2, 3\] are not stepping"):
            envs.recv(env_ids=[2, 3])
        for call in (lambda: envs.step([0] * 4), envs.reset, lambda: envs.call("render")):
            with pytest.raises(AlreadyPendingCallError, match="pending call to `send`"):
                call()
        with pytest.raises(ValueError, match=r"whole groups.*got \[2\].*\[\[0, 1\], \[2, 3\]\]"):
            envs.send([0], [2])
        with pytest.raises(ValueError, match="from 0 to 3, but got 9"):
            envs.send([0], [9])
        for actions in ([0, 0, 0], 1):
            with pytest.raises(ActionsError, match=r"actions must be int64 of shape \(2,\)"):
                envs.send(actions, [2, 3])
        assert envs.recv().observations[:, 1].tolist() == [1, 1]
        envs.step_async([0] * 4)
        with pytest.raises(AlreadyPendingCallError, match="pending call to `step`"):
            envs.send([0, 0], [0, 1])
        assert envs.step_wait()[0][:, 1].tolist() == [2, 2, 1, 1]


def test_actions_follow_the_order_of_the_ids(tmp_path: Path) -> None:
    with ParallelEnv([lambda: GatedEnv(tmp_path / "gate")] * 2, num_groups=2, num_workers=2) as envs:
        envs.reset(seed=0)
        envs.send([1, 0], [1, 0])
        assert envs.recv().env_ids.tolist() == [0]
        (tmp_path / "gate").touch()
        assert envs.recv().env_ids.tolist() == [1]


@pytest.mark.parametrize("env_ids", [None, [2, 3]])
def test_a_step_that_never_returns_is_named(stuck: Path, env_ids: list[int] | None) -> None:
    class StuckEnv(CountingEnv):
        def step(self, action: int) -> Any:
            if action == 1:
                get_stuck(stuck)
            return super().step(action)

    with ParallelEnv([StuckEnv] * 4, num_groups=2, num_workers=2, step_timeout_s=60) as envs:
        envs.reset(seed=0)
        envs.send([0, 1], [2, 3])
        with pytest.raises(StepTimeoutError, match=r"step within step_timeout_s=60: environment 3 has not returned"):
            envs.recv(env_ids=env_ids)
        assert envs.closed


def test_one_group_has_nothing_to_send() -> None:
    with ParallelEnv([CountingEnv] * 2, num_workers=0) as envs, pytest.raises(UserError, match="num_groups is 1"):
        envs.send([0, 0], [0, 1])


@pytest.mark.parametrize(
    ("num_groups", "num_workers", "message"),
    [(0, "auto", "from 1 to 3"), (4, "auto", "from 1 to 3"), (3, 2, "num_groups=3 groups needs its own worker")],
)
def test_groups_that_cannot_be_are_refused(num_groups: int, num_workers: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        ParallelEnv([CountingEnv] * 3, num_groups=num_groups, num_workers=num_workers)


class TextEnv(CountingEnv):
    """Observations and actions that are not of fixed size."""

    def __init__(self) -> None:
        super().__init__(length=3)
        self.observation_space = spaces.Text(30)
        self.action_space = spaces.Text(5)

    def step(self, action: str) -> Any:
        return super().step(len(action))

    def _observe(self) -> Any:
        return f"{self.episode} {self._t}"


def test_spaces_not_of_fixed_size() -> None:
    with ParallelEnv([TextEnv] * 4, num_groups=2, num_workers=2) as envs:
        envs.reset(seed=0)
        with pytest.raises(ActionsError, match="one action per environment, 2, but got 3"):
            envs.send(("a", "b", "c"), [2, 3])
        for _ in range(3):
            envs.send(("a", "b"), [2, 3])
            step = envs.recv()
        assert step.terminated.tolist() == [True, True]
        assert [info["final_obs"].split()[1] for info in step.infos] == ["3", "3"]
        assert [observation.split()[1] for observation in step.observations] == ["0", "0"]


def test_an_environment_that_raises_leaves_the_rest_usable() -> None:
    with ParallelEnv([CountingEnv, lambda: FaultyEnv("raise"), CountingEnv], num_groups=3, num_workers=3) as envs:
        envs.reset(seed=0)
        envs.send([0, 0, 0], range(3))
        with pytest.raises(EnvRaisedError, match="environment 1 of 3"):
            envs.recv(env_ids=[1])
        with pytest.raises(ResetRequiredError, match="cut short"):
            envs.send([0], [0])
        envs.reset(seed=0)
        envs.send([0], [2])
        assert envs.recv().observations[:, 1].tolist() == [1]


def test_finished_environments_wait_for_a_reset_where_that_is_disabled() -> None:
    with ParallelEnv(
        [lambda: CountingEnv(length=1)] * 2, num_groups=2, num_workers=2, autoreset_mode="Disabled"
    ) as envs:
        envs.reset(seed=0)
        envs.send([0], [1])
        assert envs.recv().terminated.tolist() == [True]
        with pytest.raises(ResetRequiredError, match=r"environments \[1\] are over"):
            envs.send([0, 0], [0, 1])
        envs.reset(options={"reset_mask": np.array([False, True])})
        envs.send([0, 0], [0, 1])
        assert envs.recv(env_ids=[0, 1]).terminated.tolist() == [True, True]


class MortalEnv(CountingEnv):
    """Action 1 kills its process."""

    def __init__(self) -> None:
        super().__init__(length=100)

    def step(self, action: int) -> Any:
        if action == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


def test_a_killed_worker_is_named() -> None:
    with ParallelEnv([MortalEnv] * 3, num_groups=3, num_workers=3) as envs:
        envs.reset(seed=0)
        envs.send([0, 1, 0], range(3))
        with pytest.raises(WorkerDiedError, match="SIGKILL"):
            envs.recv(min_ready=3)
        assert envs.closed


class Waits:
    """How long recv() may wait for other groups, or may not."""

    @staticmethod
    def for_a_group(envs: ParallelEnv) -> None:
        envs.recv(env_ids=[0, 1])

    @staticmethod
    def for_any(envs: ParallelEnv) -> None:
        envs.recv(min_ready=2)

    @staticmethod
    def briefly_again_and_again(envs: ParallelEnv) -> None:
        wait_until(lambda: envs.send([0, 0], [4, 5]) or envs.recv(env_ids=[4, 5]) is None)


@pytest.mark.parametrize("victim", ["idle", "stepping"])
@pytest.mark.parametrize("wait", [Waits.for_a_group, Waits.for_any, Waits.briefly_again_and_again])
def test_a_death_is_noticed_while_other_groups_are_in_a_long_step(
    tmp_path: Path, wait: Callable[[ParallelEnv], None], victim: str
) -> None:
    gate = tmp_path / "gate"  # which nobody opens: the long step does not end before the death is noticed
    with ParallelEnv([lambda: GatedEnv(gate)] * 6, num_groups=3, num_workers=3) as envs:
        envs.reset(seed=0)
        worker = psutil.Process(envs.apply(lambda env: os.getpid(), env_ids=[2])[0])
        envs.send([1, 1], [0, 1])
        if victim == "stepping":
            envs.send([1, 1], [2, 3])
            wait_until(lambda: envs._batch.current_env[1] == 2)
        worker.kill()
        activity = "in step of environment 2" if victim == "stepping" else "while idle"
        with pytest.raises(WorkerDiedError, match=rf"Worker 1 .*SIGKILL {activity}"):
            wait(envs)
        assert envs.closed


def test_a_killed_worker_is_replaced_and_every_step_accounted_for() -> None:
    with ParallelEnv([MortalEnv] * 3, num_groups=3, num_workers=3, on_worker_failure="restart") as envs:
        envs.reset(seed=0)
        counts = np.zeros(3, int)
        for t in range(12):
            envs.send([int((t, index) in {(4, 0), (7, 2)}) for index in range(3)], range(3))
            n_received = 0
            while n_received < 3:
                step = envs.recv()
                n_received += len(step.env_ids)
                counts[step.env_ids] += 1
                for index, truncated, info in zip(step.env_ids, step.truncated, step.infos, strict=True):
                    assert truncated == ((t, index) in {(4, 0), (7, 2)})
                    assert info.get("worker_restarted", False) == truncated
                    if truncated:
                        assert info["final_obs"][1] == t
        assert envs.num_restarts == 2
        assert counts.tolist() == [12, 12, 12]

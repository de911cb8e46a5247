"""on_worker_failure="restart": what a lost worker's environments report, and that everything else goes on."""

import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from gymnasium import spaces

from ml_pipeline.config.errors import UserError
from ml_pipeline.models.rl.core.probe_envs import CountingEnv
from ml_pipeline.models.rl.core.stepping.errors import WorkerDiedError
from ml_pipeline.models.rl.core.vec_env import ParallelEnv
from tests.models.rl.core.workers.probes import get_stuck, in_the_background, is_gone, pass_through, wait_until

pytestmark = pytest.mark.timeout(120)

KILL, HANG = 3, 2


class FragileEnv(CountingEnv):
    """Counts; one action kills its process."""

    def __init__(self) -> None:
        super().__init__(length=50)

    def step(self, action: int) -> Any:
        result = super().step(0)  # the observation has changed when it dies
        if action == KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    def pid(self) -> int:
        return os.getpid()


class FragileWords(FragileEnv):
    """The same with observations that are not of fixed size."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Text(30)

    def _observe(self) -> Any:
        return f"{self.episode} {self._t}"


def disarm(path: Path) -> bool:
    """Whether this process, of several that try, took the file away."""
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    return True


def restarting(**kwargs: Any) -> ParallelEnv:
    env_fns = [kwargs.pop("env", FragileEnv)] * 4
    return ParallelEnv(env_fns, **{"num_workers": 2, "on_worker_failure": "restart", **kwargs})


def kill_worker_of(envs: ParallelEnv, index: int) -> None:
    worker = psutil.Process(envs.call("pid")[index])
    worker.kill()
    wait_until(lambda: is_gone(worker))


def test_lost_episodes_are_truncated_where_they_were_last_seen() -> None:
    with restarting() as envs:
        envs.reset(seed=0)
        before, *_ = envs.step([0, 0, 0, 0])
        observations, rewards, terminated, truncated, infos = envs.step([0, 0, 0, KILL])
        # Environments 2 and 3 were in one process. 2 had made its step; it is dropped with the worker.
        assert truncated.tolist() == [False, False, True, True]
        assert not terminated.any()
        assert rewards.tolist() == [2.0, 2.0, 0.0, 0.0]
        np.testing.assert_array_equal(np.stack(infos["final_obs"][2:]), before[2:])
        assert infos["_final_obs"].tolist() == infos["_worker_restarted"].tolist() == truncated.tolist()
        assert observations[:, :2].tolist() == [[1, 2], [1, 2], [1, 0], [1, 0]]
        assert envs.num_restarts == 1
        assert envs.step([0] * 4)[1].tolist() == [3.0, 3.0, 1.0, 1.0]


def test_new_episodes_have_new_seeds_and_repeat_from_run_to_run() -> None:
    def run() -> list[np.ndarray]:
        with restarting() as envs:
            seen = [envs.reset(seed=0)[0]]
            for actions in ([0, 0, 0, KILL], [0] * 4, [KILL, 0, 0, 0], [0, 0, 0, KILL], [0] * 4):
                seen.append(envs.step(actions)[0])
            assert envs.num_restarts == 3
            return seen

    first, second = run(), run()
    np.testing.assert_array_equal(first, second)
    beginnings = [first[0][3, 2], first[1][3, 2], first[4][3, 2]]
    assert len(set(beginnings)) == 3


@pytest.mark.parametrize("mode", ["NextStep", "Disabled"])
def test_other_autoreset_modes_show_the_last_observation_first(mode: str) -> None:
    with restarting(autoreset_mode=mode) as envs:
        envs.reset(seed=0)
        before, *_ = envs.step([0] * 4)
        observations, rewards, _, truncated, _ = envs.step([KILL, 0, 0, 0])
        assert truncated.tolist() == [True, True, False, False]
        assert rewards.tolist() == [0.0, 0.0, 2.0, 2.0]
        np.testing.assert_array_equal(observations[:2], before[:2])
        if mode == "NextStep":
            observations, rewards, *_ = envs.step([0] * 4)
            assert rewards.tolist() == [0.0, 0.0, 3.0, 3.0]
        else:
            observations, _ = envs.reset(options={"reset_mask": truncated})
        assert observations[:2, 1].tolist() == [0, 0]
        assert envs.step([0] * 4)[0][:2, 1].tolist() == [1, 1]


@pytest.mark.parametrize("mode", ["SameStep", "NextStep"])
def test_observations_not_of_fixed_size_are_kept_too(mode: str) -> None:
    with restarting(env=FragileWords, autoreset_mode=mode) as envs:
        envs.reset(seed=0)
        envs.step([0] * 4)
        observations, *_, infos = envs.step([0, 0, 0, KILL])
        if mode == "SameStep":
            assert observations == ("1 2", "1 2", "1 0", "1 0")
            assert infos["final_obs"].tolist() == [None, None, "1 1", "1 1"]
        else:
            assert observations == ("1 2", "1 2", "1 1", "1 1")
            assert envs.step([0] * 4)[0] == ("1 3", "1 3", "2 0", "2 0")


class SometimesStuck(FragileEnv):
    """One action hangs it; so does the method that a file, which it takes away, is named after."""

    def __init__(self, stuck: Path) -> None:
        super().__init__()
        self.stuck = stuck
        self._get_stuck_in("constructor")

    def reset(self, **kwargs: Any) -> Any:
        self._get_stuck_in("reset")
        return super().reset(**kwargs)

    def step(self, action: int) -> Any:
        if action == HANG:
            get_stuck(self.stuck)
        return super().step(action)

    def _get_stuck_in(self, method: str) -> None:
        if multiprocessing.parent_process() is not None and disarm(self.stuck.parent / method):
            get_stuck(self.stuck)


def test_a_stuck_worker_is_replaced(stuck: Path) -> None:
    with restarting(env=lambda: SometimesStuck(stuck), step_timeout_s=60) as envs:
        envs.reset(seed=0)
        assert envs.step([0, HANG, 0, 0])[3].tolist() == [True, True, False, False]
        assert envs.step([0] * 4)[1].tolist() == [1.0, 1.0, 2.0, 2.0]


@pytest.mark.slow
@pytest.mark.parametrize("stuck_in", ["constructor", "reset"])
def test_a_successor_that_gets_stuck_is_replaced_as_well(stuck_in: str, stuck: Path) -> None:
    with restarting(env=lambda: SometimesStuck(stuck), step_timeout_s=60) as envs:
        envs.reset(seed=0)
        (stuck.parent / stuck_in).touch()
        assert envs.step([KILL, 0, 0, 0])[3].tolist() == [True, True, False, False]
        assert envs.num_restarts == 2
        assert "did not finish its start within 120 s" in envs.take_failures()[1]
        assert envs.step([0] * 4)[1].tolist() == [1.0, 1.0, 2.0, 2.0]


def test_a_stuck_reset_is_begun_anew(stuck: Path) -> None:
    with restarting(env=lambda: SometimesStuck(stuck), step_timeout_s=60) as envs:
        first, _ = envs.reset(seed=0)
        (stuck.parent / "reset").touch()
        np.testing.assert_array_equal(envs.reset(seed=0)[0], first)
        assert envs.num_restarts == 1


def test_a_worker_lost_while_idle_is_reported_by_the_next_step() -> None:
    with restarting() as envs:
        envs.reset(seed=0)
        before, *_ = envs.step([0] * 4)
        kill_worker_of(envs, 0)
        states = envs.get_states()  # a checkpoint in between takes the new episodes
        observations, _, _, truncated, infos = envs.step([0] * 4)
        assert truncated.tolist() == [True, True, False, False]
        np.testing.assert_array_equal(infos["final_obs"][0], before[0])
        assert observations[:, 1].tolist() == [0, 0, 2, 2]
        envs.set_states(states)
        assert envs.step([0] * 4)[0][:, 1].tolist() == [1, 1, 2, 2]


def test_a_reset_after_a_loss_leaves_nothing_to_report() -> None:
    with restarting() as envs:
        first, _ = envs.reset(seed=0)
        kill_worker_of(envs, 0)
        np.testing.assert_array_equal(envs.reset(seed=0)[0], first)
        assert not envs.step([0] * 4)[3].any()
        assert envs.num_restarts == 1


def test_what_keeps_failing_is_raised() -> None:
    with restarting() as envs:
        envs.reset(seed=0)
        for _ in range(3):
            envs.step([KILL, 0, 0, 0])  # the step that reports the loss does not step: each is its first
        assert envs.num_restarts == 3
        with pytest.raises(WorkerDiedError, match="killed by SIGKILL in step of environment 0"):
            envs.step([KILL, 0, 0, 0])
        assert envs.closed


def test_a_step_in_between_is_a_new_chance() -> None:
    with restarting() as envs:
        envs.reset(seed=0)
        for _ in range(5):
            envs.step([KILL, 0, 0, 0])
            envs.step([0] * 4)
        assert envs.num_restarts == 5


def test_an_environment_that_raises_is_raised_all_the_same() -> None:
    class Raising(FragileEnv):
        def step(self, action: int) -> Any:
            raise ValueError("no such step")

    with restarting(env=Raising) as envs:
        envs.reset()
        with pytest.raises(ValueError, match="no such step"):
            envs.step([0] * 4)
        assert envs.num_restarts == 0


def test_restart_needs_workers() -> None:
    with pytest.raises(UserError, match="need worker processes"):
        restarting(num_workers=0)
    with restarting(num_workers="auto") as envs:
        assert envs.num_workers >= 1


def test_new_seeds_do_not_depend_on_who_else_was_lost() -> None:
    def beginning_of_3(actions: list[list[int]]) -> float:
        with restarting() as envs:
            envs.reset(seed=0)
            for each in actions:
                observations, *_ = envs.step(each)
            return float(observations[3, 2])

    alone = beginning_of_3([[0, 0, 0, KILL]])
    assert beginning_of_3([[KILL, 0, 0, 0], [0, 0, 0, KILL]]) == alone
    assert beginning_of_3([[KILL, 0, 0, KILL]]) == alone


class Gated(FragileEnv):
    """One action waits for a file."""

    def __init__(self, gate: Path) -> None:
        super().__init__()
        self.gate = gate

    def step(self, action: int) -> Any:
        if action == 1:
            pass_through(self.gate)
        return super().step(action)


@pytest.mark.parametrize("num_groups", [1, 2])
def test_a_lost_worker_is_replaced_while_others_are_in_a_long_step(num_groups: int, tmp_path: Path) -> None:
    gate = tmp_path / "gate"

    def open_once_replaced() -> None:
        wait_until(lambda: envs.num_restarts == 1)
        gate.touch()

    with restarting(env=lambda: Gated(gate), num_groups=num_groups) as envs:
        envs.reset(seed=0)
        worker = psutil.Process(envs.call("pid")[3])
        with in_the_background(open_once_replaced):
            if num_groups == 1:
                truncated = envs.step([0, 1, 0, KILL])[3]
            else:
                envs.send([0, 1], [0, 1])
                worker.kill()  # idle meanwhile
                assert not envs.recv(env_ids=[0, 1]).truncated.any()
                envs.send([0, 0], [2, 3])
                truncated = np.append([False] * 2, envs.recv().truncated)
        assert truncated.tolist() == [False, False, True, True]
        assert envs.step([0] * 4)[1].tolist() == [2.0, 2.0, 1.0, 1.0]

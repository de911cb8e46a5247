"""on_worker_failure="restart": what a lost worker's environments report, and that everything else goes on."""

import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import psutil
import pytest
from gymnasium import spaces

from ml_pipeline.config.errors import UserError
from ml_pipeline.models.rl.core.probe_envs import CountingEnv
from ml_pipeline.models.rl.core.stepping.errors import WorkerDiedError
from ml_pipeline.models.rl.core.vec_env import ParallelEnv
from ml_pipeline.models.rl.core.workers import pool as worker_pool
from tests.models.rl.core.workers.probes import is_gone, wait_until

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import a test module
pytestmark = pytest.mark.timeout(30)

KILL, HANG = 3, 2


class FragileEnv(CountingEnv):
    """Counts; one action kills its process, another hangs it."""

    def __init__(self) -> None:
        super().__init__(length=50)

    def step(self, action: int) -> Any:
        result = super().step(0)  # the observation has changed when it dies
        if action == KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        if action == HANG:
            time.sleep(3600)
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


def test_a_stuck_worker_is_replaced() -> None:
    with restarting(step_timeout_s=0.3) as envs:
        envs.reset(seed=0)
        assert envs.step([0, HANG, 0, 0])[3].tolist() == [True, True, False, False]
        assert envs.step([0] * 4)[1].tolist() == [1.0, 1.0, 2.0, 2.0]


@pytest.mark.slow
@pytest.mark.parametrize("stuck_in", ["constructor", "reset"])
def test_a_successor_that_gets_stuck_is_replaced_as_well(
    stuck_in: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_pool, "_START_S", 1.0)

    class OnceStuck(FragileEnv):
        def __init__(self) -> None:
            super().__init__()
            self._get_stuck_in("constructor")

        def reset(self, **kwargs: Any) -> Any:
            self._get_stuck_in("reset")
            return super().reset(**kwargs)

        def _get_stuck_in(self, method: str) -> None:
            if method == stuck_in and disarm(tmp_path / "armed"):
                threading.Event().wait()

    with restarting(env=OnceStuck, step_timeout_s=0.3) as envs:
        envs.reset(seed=0)
        (tmp_path / "armed").touch()
        assert envs.step([KILL, 0, 0, 0])[3].tolist() == [True, True, False, False]
        assert envs.num_restarts == 2
        assert envs.step([0] * 4)[1].tolist() == [1.0, 1.0, 2.0, 2.0]


def test_a_stuck_reset_is_begun_anew(tmp_path: Path) -> None:
    class SlowOnce(FragileEnv):
        def reset(self, **kwargs: Any) -> Any:
            if disarm(tmp_path / "armed"):
                threading.Event().wait()
            return super().reset(**kwargs)

    with restarting(env=SlowOnce, step_timeout_s=0.3) as envs:
        first, _ = envs.reset(seed=0)
        (tmp_path / "armed").touch()
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

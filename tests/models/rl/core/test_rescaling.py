"""Environments that move to other workers between two steps go on as if they had not, and stay where that fails."""

import gc
import os
import random
import re
import signal
import threading
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import psutil
import pytest
from gymnasium import spaces
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError
from gymnasium.utils import EzPickle
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ml_pipeline.config.errors import UserError
from ml_pipeline.models.rl.core import arguments, vec_env
from ml_pipeline.models.rl.core.probe_envs import CountingEnv
from ml_pipeline.models.rl.core.stepping.errors import (
    EnvRaisedError,
    FactoryNotPicklableError,
    ResetRequiredError,
    StateNotAvailable,
    VectorEnvError,
    WorkerDiedError,
)
from ml_pipeline.models.rl.core.vec_env import ParallelEnv, RescaleLater, SerialEnv
from ml_pipeline.models.rl.core.workers import open as opening
from ml_pipeline.models.rl.core.workers.choice import Division
from ml_pipeline.models.rl.core.workers.pool import WorkerPool
from ml_pipeline.testing.vector_envs import MODES, assert_equal
from ml_pipeline.trading.settings import TradingConfig
from ml_pipeline.trading.task import TradingTask
from tests.examples import COSTLY
from tests.models.rl.core.workers.probes import is_gone, wait_until

pytestmark = pytest.mark.timeout(120)

N = 5
SCHEDULE = [(2, False), (0, False), (1, True), (5, False), (3, True), (1, False), (0, False)]


@pytest.fixture(scope="module", autouse=True)
def _fork_server() -> None:
    """Starts what stays until the tests end, before any of them counts processes and files."""
    ParallelEnv([CountingEnv], num_workers=1).close()


class Words(CountingEnv):
    """Observations that are not of fixed size."""

    def __init__(self) -> None:
        super().__init__(length=3, spread=2)
        self.observation_space = spaces.Text(30)

    def _observe(self) -> Any:
        return f"{self.episode} {self._t} {self.np_random.integers(9)}"


class Forgetful(CountingEnv, EzPickle):
    """Its pickle would begin anew."""


def cartpole() -> gymnasium.Env:
    return gymnasium.make("CartPole-v1", max_episode_steps=4)


def counting() -> gymnasium.Env:
    return CountingEnv(length=2, spread=2)


KINDS: dict[str, Callable[[], Any]] = {
    "plain": lambda: [cartpole] * N,
    "pickled": lambda: [counting] * N,
    "words": lambda: [Words] * N,
    "trading": lambda: TradingTask(TradingConfig()).train_env_fns(N),
}


def steps(envs: Any, n_steps: int, rng: random.Random) -> list[Any]:
    """What steps return; where an episode is over and nobody else resets it, it is reset."""
    seen: list[Any] = []
    for _ in range(n_steps):
        draws = np.array([rng.random() for _ in range(N)])
        if isinstance(envs.single_action_space, spaces.Discrete):
            actions: Any = (draws * 2).astype(int)
        else:
            shape = envs.action_space.shape
            actions = np.broadcast_to(draws.reshape(N, *[1] * (len(shape) - 1)), shape).astype(np.float32)
        seen.append(deepcopy(envs.step(actions)))  # views, of which the next call makes others
        done = seen[-1][2] | seen[-1][3]
        if envs.autoreset_mode == MODES[-1] and done.any():
            seen.append(envs.reset(options={"reset_mask": done}))
    return seen


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", MODES)
def test_no_schedule_of_workers_changes_a_bit(kind: str, mode: Any) -> None:
    env_fns = KINDS[kind]()
    with (
        SerialEnv(env_fns, autoreset_mode=mode) as serial,
        ParallelEnv(env_fns, num_workers=1, autoreset_mode=mode) as envs,
    ):
        assert_equal(envs.reset(seed=7), serial.reset(seed=7))
        for number, (num_workers, steps_here) in enumerate(SCHEDULE):
            envs.rescale(num_workers, steps_here=steps_here)
            assert envs.num_workers == min(num_workers, N - steps_here)
            assert envs.steps_here == (steps_here or num_workers == 0)
            assert_equal(steps(envs, 3, random.Random(number)), steps(serial, 3, random.Random(number)))
        assert_equal(envs.reset(), serial.reset())


@pytest.mark.slow
@settings(max_examples=COSTLY, suppress_health_check=list(HealthCheck))
@given(
    kind=st.sampled_from(["plain", "pickled"]),
    mode=st.sampled_from(MODES),
    copy=st.booleans(),
    schedule=st.lists(st.tuples(st.integers(0, N + 1), st.booleans(), st.integers(0, 3)), max_size=5),
)
def test_no_random_schedule_changes_a_bit(kind: str, mode: Any, copy: bool, schedule: list[Any]) -> None:
    env_fns = KINDS[kind]()
    with (
        SerialEnv(env_fns, autoreset_mode=mode) as serial,
        ParallelEnv(env_fns, num_workers=0, autoreset_mode=mode, copy=copy) as envs,
    ):
        assert_equal(envs.reset(seed=1), serial.reset(seed=1))
        for number, (num_workers, steps_here, n_steps) in enumerate(schedule):
            envs.rescale(num_workers, steps_here=steps_here)
            for step in range(n_steps):
                rng = partial(random.Random, 10 * number + step)
                assert_equal(steps(envs, 1, rng()), steps(serial, 1, rng()))


def test_environments_move_before_their_first_reset() -> None:
    with SerialEnv([counting] * N) as serial, ParallelEnv([counting] * N, num_workers=0) as envs:
        envs.rescale(2)
        assert_equal(envs.reset(seed=3), serial.reset(seed=3))
        assert_equal(steps(envs, 4, random.Random(0)), steps(serial, 4, random.Random(0)))


def test_groups_move_and_are_stepped_apart() -> None:
    halves = [range(3), range(3, N)]
    with ParallelEnv([counting] * N, num_workers=2, num_groups=2) as envs, SerialEnv([counting] * N) as serial:
        envs.reset(seed=0)
        serial.reset(seed=0)
        for num_workers in (4, 0, 2):
            envs.rescale(num_workers)
            expected = serial.step([1] * N)
            for half in halves:
                envs.send([1] * len(half), half)
            for half in halves:
                np.testing.assert_array_equal(envs.recv(env_ids=half).observations, expected[0][half])


def test_views_stay_readable_and_the_next_step_has_its_own() -> None:
    with ParallelEnv([counting] * N, num_workers=2, copy=False) as envs:
        before, _ = envs.reset(seed=0)
        seen = before.copy()
        envs.rescale(3)
        np.testing.assert_array_equal(before, seen)
        after = envs.step([0] * N)[0]
        assert not np.shares_memory(before, after)
        np.testing.assert_array_equal(before, seen)


def test_counts_go_on_and_the_old_workers_end() -> None:
    with ParallelEnv([counting] * N, num_workers=2, on_worker_failure="restart") as envs:
        envs.reset(seed=0)
        psutil.Process(envs.apply(lambda env: os.getpid())[0]).kill()
        envs.step([0] * N)
        left = [psutil.Process(pid) for pid in set(envs.apply(lambda env: os.getpid()))]
        waited_s = envs.waited_s
        envs.rescale(3)
        assert envs.waited_s == pytest.approx(waited_s, abs=60.0)
        assert envs.waited_s >= waited_s
        assert envs.num_restarts == 1
        assert len(envs.take_failures()) == 1
        wait_until(lambda: all(is_gone(each) for each in left))
        assert "num_workers=3" in repr(envs)


def test_the_same_number_moves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with ParallelEnv([Forgetful] * 2, num_workers=1) as envs:
        envs.reset(seed=0)
        monkeypatch.setattr(WorkerPool, "post", None)
        envs.rescale(1)


def test_auto_measures_anew_and_leaves_the_environments_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def fastest(example: gymnasium.Env, num_envs: int) -> Division:
        asked.append(num_envs)
        example.reset(seed=99)
        example.step(1)
        return Division(1, steps_here=True)

    with SerialEnv([counting] * N) as serial, ParallelEnv([counting] * N, num_workers=0) as envs:
        assert_equal(envs.reset(seed=0), serial.reset(seed=0))
        monkeypatch.setattr(arguments, "_fastest", fastest)
        envs.rescale("auto")
        assert (asked, envs.num_workers, envs.steps_here) == ([N], 1, True)
        assert_equal(envs.step([1] * N), serial.step([1] * N))


# What is refused leaves everything as it was


def refused(envs: ParallelEnv, error: type[Exception] | tuple[type[Exception], ...], match: str, *args: Any) -> None:
    """Rescaling raises, and the next steps are those of environments that never tried."""
    before = envs.num_workers, envs.steps_here
    processes = [process.pid for process in envs._pool.processes]
    files = len(os.listdir("/dev/fd")) if os.path.isdir("/dev/fd") else 0
    children = {child.pid for child in psutil.Process().children(recursive=True)}
    with pytest.raises(error, match=match):
        envs.rescale(*args)
    assert (envs.num_workers, envs.steps_here) == before
    assert [process.pid for process in envs._pool.processes] == processes
    assert not envs.closed
    wait_until(lambda: {child.pid for child in psutil.Process().children(recursive=True)} <= children)
    gc.collect()  # the error holds the frames of what was refused
    assert not os.path.isdir("/dev/fd") or len(os.listdir("/dev/fd")) <= files
    assert envs.step([1] * envs.num_envs)[1].tolist() == [11.0] * envs.num_envs


@pytest.mark.parametrize("num_workers", [0, 2])
def test_states_that_cannot_be_had_are_named_and_everything_stays(num_workers: int) -> None:
    with ParallelEnv([Forgetful] * 3, num_workers=num_workers) as envs:
        envs.reset(seed=0)
        with pytest.raises(StateNotAvailable, match=r"environment 0 is not available: .*EzPickle"):
            envs.rescale(1)
        assert envs.num_workers == num_workers
        assert envs.step([1] * 3)[1].tolist() == [11.0] * 3


class Breaks(CountingEnv):
    """Breaks where a file says so, in a process that is not `home`."""

    def __init__(self, note: Path, home: int) -> None:
        super().__init__()
        self.note, self.home = note, home
        self._break_in("constructor")

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._break_in("state")

    def _break_in(self, where: str) -> None:
        how = self.note.read_text() if self.note.exists() else ""
        if os.getpid() != self.home and how.startswith(where):
            if how.endswith("killed"):
                os.kill(os.getpid(), signal.SIGKILL)
            raise ValueError(f"broken in {where}")


@pytest.mark.parametrize(
    ("how", "error", "match"),
    [
        ("constructor raises", EnvRaisedError, "broken in constructor"),
        ("constructor killed", WorkerDiedError, "SIGKILL"),
        ("state raises", StateNotAvailable, "cannot be restored .*broken in state"),
        ("state killed", WorkerDiedError, "SIGKILL"),
    ],
)
def test_new_workers_that_fail_leave_the_old_ones(how: str, error: type[Exception], match: str, tmp_path: Path) -> None:
    note = tmp_path / "note"
    with ParallelEnv([partial(Breaks, note, os.getpid())] * 3, num_workers=0) as envs:
        envs.reset(seed=0)
        note.write_text(how)
        refused(envs, error, match, 2)
        note.unlink()
        envs.rescale(2)
        assert envs.step([1] * 3)[1].tolist() == [12.0] * 3


def test_in_restart_mode_a_new_worker_that_dies_costs_no_episode(tmp_path: Path) -> None:
    note = tmp_path / "note"
    with ParallelEnv([partial(Breaks, note, 0)] * 2, num_workers=1, on_worker_failure="restart") as envs:
        envs.reset(seed=0)
        note.write_text("state killed")
        refused(envs, WorkerDiedError, "SIGKILL", 2)
        assert envs.num_restarts == 0


def test_a_factory_that_cannot_travel_leaves_the_old_ones() -> None:
    lock = threading.Lock()
    with ParallelEnv([lambda: CountingEnv() if lock else None] * 2, num_workers=0) as envs:
        envs.reset(seed=0)
        refused(envs, FactoryNotPicklableError, "cannot be sent to a worker", 1)


def test_a_factory_that_returns_its_one_environment_again_is_refused() -> None:
    env = CountingEnv()
    with ParallelEnv([lambda: env, CountingEnv], num_workers=0) as envs:
        envs.reset(seed=0)
        with pytest.raises(EnvRaisedError, match="returned an environment that is in use"):
            envs.rescale(1, steps_here=True)
        with pytest.raises(EnvRaisedError, match="returned an environment that is in use"):
            envs.rescale("auto")
        assert envs.step([1, 1])[1].tolist() == [11.0, 11.0]


def test_too_little_memory_leaves_the_old_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(nbytes: int, *, num_envs: int) -> Any:
        raise UserError(f"{num_envs} environments need {nbytes} bytes")

    with ParallelEnv([CountingEnv] * 3, num_workers=1) as envs:
        envs.reset(seed=0)
        monkeypatch.setattr("ml_pipeline.models.rl.core.workers.start.allocate", refuse)
        refused(envs, UserError, "3 environments need", 2)


def test_too_few_open_files_leave_the_old_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    resource = pytest.importorskip("resource", reason="Windows has no such limit")
    with ParallelEnv([CountingEnv] * 3, num_workers=1) as envs:
        envs.reset(seed=0)
        limit = len(os.listdir("/dev/fd")) + 8
        monkeypatch.setattr(resource, "getrlimit", lambda which: (limit, limit))
        refused(envs, UserError, "workers need .* open files", 3)


def test_a_process_that_cannot_be_started_leaves_the_old_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Any, number: int, block: range) -> Any:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    with ParallelEnv([CountingEnv] * 3, num_workers=1) as envs:
        envs.reset(seed=0)
        monkeypatch.setattr("ml_pipeline.models.rl.core.workers.start.WorkerStarter._start", refuse)
        refused(envs, OSError, "temporarily unavailable", 2)


@pytest.mark.parametrize(
    ("options", "arguments", "match"),
    [
        ({}, {"num_workers": -1}, "num_workers must be"),
        ({}, {"num_workers": 1.5}, "num_workers must be"),
        ({}, {"num_workers": "dynamic"}, "num_workers must be"),
        ({}, {"num_workers": "auto", "steps_here": True}, "needs a number of workers"),
        ({"num_groups": 2}, {"num_workers": 1}, "needs its own worker"),
        ({"num_groups": 2}, {"num_workers": 2, "steps_here": True}, "only workers may"),
        ({"on_worker_failure": "restart"}, {"num_workers": 0}, "need worker processes"),
        ({"step_timeout_s": 60.0}, {"num_workers": 1, "steps_here": True}, "only workers may"),
    ],
)
def test_numbers_that_cannot_be_are_named(options: Any, arguments: Any, match: str) -> None:
    with ParallelEnv([CountingEnv] * 3, num_workers=3, **options) as envs:
        envs.reset(seed=0)
        with pytest.raises(UserError, match=re.escape(match)):
            envs.rescale(**arguments)
        assert envs.step([1] * 3)[1].tolist() == [11.0] * 3


def test_a_pending_step_and_a_closed_one_are_errors() -> None:
    with ParallelEnv([CountingEnv] * 2, num_workers=1) as envs:
        envs.reset(seed=0)
        envs.step_async([1, 1])
        with pytest.raises(AlreadyPendingCallError, match="rescale"):
            envs.rescale(2)
        assert envs.step_wait()[1].tolist() == [11.0, 11.0]
    with pytest.raises(ClosedEnvironmentError):
        envs.rescale(2)


def test_a_reset_that_was_needed_still_is() -> None:
    with ParallelEnv([CountingEnv] * 2, num_workers=1) as envs:
        envs.reset(seed=0)
        with pytest.raises(StateNotAvailable):
            envs.set_states([b"", b""])
        envs.rescale(2)
        with pytest.raises(ResetRequiredError):
            envs.step([0, 0])
        envs.reset(seed=0)
        envs.step([0, 0])


def test_a_lost_worker_is_reported_before_others_take_over() -> None:
    with ParallelEnv([CountingEnv] * 4, num_workers=2, on_worker_failure="restart") as envs:
        envs.reset(seed=0)
        envs.step([0] * 4)
        lost = psutil.Process(envs.apply(lambda env: os.getpid())[0])
        lost.kill()
        wait_until(lambda: is_gone(lost))
        with pytest.raises(RescaleLater):
            envs.rescale(3)
        with pytest.raises(RescaleLater):
            envs.rescale(3)
        assert envs.step([0] * 4)[3].tolist() == [True, True, False, False]
        envs.rescale(3)
        assert envs.step([0] * 4)[1].tolist() == [1.0, 1.0, 3.0, 3.0]


def test_an_environment_that_is_lost_again_elsewhere_begins_with_another_seed() -> None:
    def lose(envs: ParallelEnv) -> float:
        process = psutil.Process(envs.apply(lambda env: os.getpid())[3])
        process.kill()
        wait_until(lambda: is_gone(process))
        return float(envs.step([0] * 4)[0][3, 2])

    def run(*numbers: int) -> list[float]:
        with ParallelEnv([CountingEnv] * 4, num_workers=2, on_worker_failure="restart") as envs:
            envs.reset(seed=0)
            drawn = []
            for number in numbers:
                envs.rescale(number)
                drawn.append(lose(envs))
            return drawn

    stayed = run(2, 2, 2)
    assert len(set(stayed)) == 3
    assert run(2, 4, 1) == stayed


class ClosedOnce(CountingEnv):
    """Its close() raises in the process `home`."""

    def __init__(self, home: int) -> None:
        super().__init__()
        self.home = home

    def close(self) -> None:
        if os.getpid() == self.home:
            raise ValueError("already closed")


def test_a_failing_close_of_what_was_left_is_a_warning() -> None:
    with ParallelEnv([partial(ClosedOnce, os.getpid())] * 2, num_workers=0) as envs:
        envs.reset(seed=0)
        with pytest.warns(RuntimeWarning, match=r"failed in close\(\): ValueError: already closed"):
            envs.rescale(1)
        assert envs.step([1, 1])[1].tolist() == [11.0, 11.0]


def test_ctrl_c_while_workers_start_leaves_the_old_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with ParallelEnv([CountingEnv] * 3, num_workers=1) as envs:
        envs.reset(seed=0)
        with monkeypatch.context() as patched:
            patched.setattr(vec_env, "check_space_mismatches", interrupt)
            with pytest.raises(KeyboardInterrupt):
                envs.rescale(2)
        assert envs.step([1] * 3)[1].tolist() == [11.0] * 3
        with monkeypatch.context() as patched:
            patched.setattr(opening.PoolOpener, "open", interrupt)
            with pytest.raises(KeyboardInterrupt):
                envs.rescale(2)
        assert envs.step([1] * 3)[1].tolist() == [12.0] * 3


class OtherTheSecondTime(CountingEnv):
    """Its spaces are others when it is made once more, in whichever process."""

    def __init__(self, note: Path) -> None:
        super().__init__()
        if note.exists():
            self.observation_space = spaces.Box(-1, 1, (7,), np.float32)


def test_environments_with_other_spaces_than_before_are_refused(tmp_path: Path) -> None:
    with ParallelEnv([partial(OtherTheSecondTime, tmp_path / "note")] * 2, num_workers=1) as envs:
        envs.reset(seed=0)
        (tmp_path / "note").touch()
        for number in (2, 0):
            with pytest.raises(VectorEnvError, match="observation_space"):
                envs.rescale(number)
        assert envs.step([1, 1])[1].tolist() == [11.0, 11.0]


def test_the_global_generators_are_left_as_they_were() -> None:
    with ParallelEnv([lambda: CountingEnv(spread=int(np.random.randint(3)))] * 2, num_workers=1) as envs:
        envs.reset(seed=0)
        np.random.seed(5)
        expected = np.random.random()
        np.random.seed(5)
        envs.rescale(0)
        assert np.random.random() == expected

"""What the trainer says of workers and environments that fail, and how soon."""

import multiprocessing
import os
import re
import signal
import threading
import warnings
from pathlib import Path
from typing import Any

import gymnasium
import psutil
import pytest

from ml_pipeline.models.rl.core import arguments
from ml_pipeline.models.rl.core.probe_envs import CountingEnv, FaultyEnv
from ml_pipeline.models.rl.core.stepping.errors import (
    EnvRaisedError,
    EnvResultError,
    FactoryNotPicklableError,
    ReplyNotReadableError,
    StepTimeoutError,
    WorkerDiedError,
)
from ml_pipeline.models.rl.core.vec_env import ParallelEnv
from ml_pipeline.models.rl.core.workers.choice import Division
from ml_pipeline.models.rl.core.workers.process import ProcessWorker
from tests.models.rl.core.workers.probes import START_METHODS, OddEnv, get_stuck, is_gone, wait_until

pytestmark = [pytest.mark.filterwarnings("ignore:start_method='fork'"), pytest.mark.timeout(120)]


@pytest.mark.parametrize(
    ("start_method", "cause"),
    [("forkserver", signal.SIGKILL), ("spawn", signal.SIGSEGV), ("fork", signal.SIGUSR2)],
)
def test_a_worker_killed_while_idle_is_named(start_method: Any, cause: signal.Signals) -> None:
    envs = ParallelEnv([OddEnv] * 5, num_workers=2, start_method=start_method)
    envs.reset()
    pid = envs.call("surroundings")[3][0]
    process = psutil.Process(pid)
    process.send_signal(cause)
    wait_until(lambda: is_gone(process))
    with pytest.raises(
        WorkerDiedError, match=rf"Worker 1 \(environments 3 to 4\) was killed by {cause.name} "
    ) as caught:
        envs.step([0] * 5)
    assert (caught.value.worker, caught.value.signal, list(caught.value.environments)) == (1, cause.name, [3, 4])
    assert envs.closed
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("start_method", START_METHODS)
def test_a_worker_killed_in_mid_step_is_named_though_others_are_busy(start_method: Any) -> None:
    env_fns = [lambda: FaultyEnv("hang", armed=False)] * 2 + [lambda: FaultyEnv("kill", at=2)] * 2
    envs = ParallelEnv(env_fns, num_workers=2, start_method=start_method)
    envs.reset()
    envs.step([0] * 4)
    envs.set_attr("armed", True)  # environment 0 now hangs for an hour, and its worker is the first to be waited for
    with pytest.raises(WorkerDiedError, match="killed by SIGKILL in step of environment 2"):
        envs.step([0] * 4)
    assert envs.closed
    assert not multiprocessing.active_children()


def test_a_worker_that_exits_is_named() -> None:
    class Exiting(CountingEnv):
        def step(self, action: int) -> Any:
            os._exit(7)

    envs = ParallelEnv([Exiting], num_workers=1)
    envs.reset()
    with pytest.raises(WorkerDiedError, match="exited with code 7") as caught:
        envs.step([0])
    assert (caught.value.exitcode, caught.value.signal) == (7, None)


def test_a_worker_that_dies_while_starting_is_named() -> None:
    def deadly() -> gymnasium.Env:
        if multiprocessing.parent_process() is not None:
            os.kill(os.getpid(), signal.SIGSEGV)
        return CountingEnv()

    with pytest.raises(WorkerDiedError, match="killed by SIGSEGV while starting"):
        ParallelEnv([deadly] * 2, num_workers=2)
    assert not multiprocessing.active_children()


class StuckEnv(CountingEnv):
    """Never returns from one of its methods, in a worker."""

    def __init__(self, method: str, note: Path) -> None:
        super().__init__(length=1)
        self.method, self.note = method, note
        self._get_stuck_in("constructor")

    def reset(self, **kwargs: Any) -> Any:
        self._get_stuck_in("first reset" if self.episode == 0 else "later reset")
        return super().reset(**kwargs)

    def step(self, action: int) -> Any:
        self._get_stuck_in("step")
        return super().step(action)

    def _get_stuck_in(self, method: str) -> None:
        if method == self.method and multiprocessing.parent_process() is not None:
            get_stuck(self.note)


def envs_with_one_stuck(method: str, note: Path) -> ParallelEnv:
    return ParallelEnv([CountingEnv] * 3 + [lambda: StuckEnv(method, note)], num_workers=2, step_timeout_s=60)


def test_a_step_that_never_returns_is_named(stuck: Path) -> None:
    envs = envs_with_one_stuck("step", stuck)
    envs.reset()
    with pytest.raises(
        StepTimeoutError, match=r"Worker 1 .* its step within step_timeout_s=60: environment 3 has not returned"
    ) as caught:
        envs.step([0] * 4)
    assert isinstance(caught.value, multiprocessing.TimeoutError)
    assert caught.value.index == 3
    assert caught.value.stack.startswith("Stack (most recent call first):\n")
    assert re.search(r", line \d+ in _get_stuck_in\n", caught.value.stack)
    assert caught.value.stack in str(caught.value)
    assert envs.closed
    assert not multiprocessing.active_children()


def test_a_step_is_overdue_after_its_time() -> None:
    with ParallelEnv([lambda: FaultyEnv("hang")], num_workers=1, step_timeout_s=60) as envs:
        envs.reset()
        envs._pool._step_timeout_s = 0.1  # a reset on a loaded machine may take longer
        with pytest.raises(StepTimeoutError, match=r"step_timeout_s=0.1: environment 0 has not returned"):
            envs.step([0])


def test_a_reset_that_never_returns_is_named(stuck: Path) -> None:
    with envs_with_one_stuck("first reset", stuck) as envs:
        with pytest.raises(StepTimeoutError, match=r"its reset within step_timeout_s=60: environment 3 has") as caught:
            envs.reset()
        assert "in _get_stuck_in" in caught.value.stack
        assert envs.closed


def test_a_reset_after_an_episode_that_never_returns_is_named(stuck: Path) -> None:
    with envs_with_one_stuck("later reset", stuck) as envs:
        envs.reset()
        with pytest.raises(StepTimeoutError, match=r"its step within step_timeout_s=60: environment 3 has"):
            envs.step([0] * 4)


def test_a_construction_that_never_returns_is_named(stuck: Path) -> None:
    with pytest.raises(StepTimeoutError, match=r"Worker 1 did not finish its start within 120 s: environments 2 to 3"):
        envs_with_one_stuck("constructor", stuck)
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("hanging", [0, 1])
def test_a_failure_is_told_while_others_are_still_busy(hanging: int) -> None:
    faults: list[Any] = ["raise", "raise"]
    faults[hanging] = "hang"
    with ParallelEnv([lambda fault=fault: FaultyEnv(fault) for fault in faults], num_workers=2) as envs:
        envs.reset()
        with pytest.raises(EnvRaisedError, match=rf"Worker {1 - hanging} \(environment . of 2\) raised ValueError"):
            envs.step([0, 0])
        envs.close(terminate=True)


def test_what_cannot_be_unpickled_is_still_told() -> None:
    with ParallelEnv([OddEnv] * 2, num_workers=2) as envs:
        envs.reset()
        with pytest.raises(EnvRaisedError, match=r"Worker 1 \(environment 1 of 2\) raised StubbornError(.|\n)*1 and 2"):
            envs.step([0, 1])
        envs.reset()
        with pytest.raises(EnvResultError, match=r"environment 0 of 2\) returned an unusable result in step 1: .*lock"):
            envs.step([2, 0])


class PickledOneWay:
    """Can be unpickled in the trainer only, or in workers only."""

    def __init__(self, *, in_workers: bool) -> None:
        self.in_workers = in_workers

    def __setstate__(self, state: dict[str, bool]) -> None:
        if state["in_workers"] != (multiprocessing.parent_process() is not None):
            raise LookupError("no such module here")
        self.__dict__ = state


class SendingEnv(CountingEnv):
    def take(self, value: PickledOneWay) -> int:
        return 7

    def step(self, action: int) -> Any:
        *rest, info = super().step(action)
        return *rest, {"value": PickledOneWay(in_workers=True)} if action == 1 else info


def test_arguments_that_a_worker_cannot_open_are_told_and_harmless() -> None:
    with ParallelEnv([SendingEnv] * 3, num_workers=2) as envs:
        envs.reset(seed=0)
        with pytest.raises(EnvRaisedError, match="raised LookupError in the unpickling of the arguments of call"):
            envs.call("take", PickledOneWay(in_workers=False))
        assert envs.call("take", PickledOneWay(in_workers=True)) == (7, 7, 7)
        assert envs.step([0, 0, 0])[1].tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("on_worker_failure", ["raise", "restart"])
def test_a_reply_that_the_trainer_cannot_open_is_told_and_harmless(on_worker_failure: Any) -> None:
    with ParallelEnv([SendingEnv] * 3, num_workers=2, on_worker_failure=on_worker_failure) as envs:
        envs.reset(seed=0)
        with pytest.raises(
            ReplyNotReadableError, match=r"Worker 1 \(environment 2\) sent a reply to step .*no such module"
        ):
            envs.step([0, 0, 1])
        assert not envs.closed
        envs.reset(seed=0)
        assert envs.step([0, 0, 0])[1].tolist() == [1.0, 1.0, 1.0]
        assert envs.num_restarts == 0


def test_no_worker_survives_a_close_that_is_cut_short(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(worker: ProcessWorker, deadline: float) -> None:
        raise KeyboardInterrupt

    envs = ParallelEnv([CountingEnv] * 2, num_workers=2)
    monkeypatch.setattr(ProcessWorker, "drain_until_closed", interrupted)
    with pytest.raises(KeyboardInterrupt):
        envs.close()
    assert not multiprocessing.active_children()


def test_several_failures_are_all_mentioned() -> None:
    with ParallelEnv([lambda: FaultyEnv("raise")] * 2, num_workers=2) as envs:
        envs.reset()
        with pytest.raises(EnvRaisedError, match="Worker 0") as caught:
            envs.step([0, 0])
        assert caught.value.__notes__ == ["Worker 1 failed as well: environment 1 raised ValueError."]


def test_a_factory_that_cannot_travel_is_told() -> None:
    lock = threading.Lock()
    with pytest.raises(FactoryNotPicklableError, match=r"environment 1 cannot be sent .*_thread.lock"):
        ParallelEnv([CountingEnv, lambda: (lock, CountingEnv())[1]], num_workers=2)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")  # Python's own, from 3.12 on
def test_fork_warns_once_threads_run() -> None:
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    try:
        with pytest.warns(RuntimeWarning, match="start_method='fork' copies"):
            ParallelEnv([CountingEnv], num_workers=1, start_method="fork").close()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            ParallelEnv([CountingEnv], num_workers=1, start_method="forkserver").close()
    finally:
        stop.set()
        thread.join()


def test_a_worker_is_named_though_closing_this_processs_share_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise ValueError("already closed")

    monkeypatch.setattr(arguments, "_fastest", lambda example, n: Division(n_workers=1, steps_here=True))
    envs = ParallelEnv([CountingEnv, CountingEnv])
    envs.reset(seed=0)
    envs.apply(lambda env: setattr(env, "close", refuse), env_ids=[0])
    with pytest.raises(WorkerDiedError, match="SIGKILL"):
        envs.apply(lambda env: os.kill(os.getpid(), signal.SIGKILL), env_ids=[1])

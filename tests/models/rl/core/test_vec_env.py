"""ParallelEnv's processes: their order of calls, their failures, and what they leave behind."""

import gc
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import cloudpickle
import gymnasium
import numpy as np
import psutil
import pytest
from gymnasium.error import AlreadyPendingCallError, NoAsyncCallError

from ml_pipeline.config.errors import UserError
from ml_pipeline.models.rl.core import vec_env, worker_pool
from ml_pipeline.models.rl.core.probe_envs import CountingEnv, FaultyEnv, TimedEnv
from ml_pipeline.models.rl.core.vec_env import ParallelEnv
from ml_pipeline.models.rl.core.vec_errors import (
    EnvRaisedError,
    EnvResultError,
    FactoryNotPicklableError,
    ResetRequiredError,
    StateNotAvailable,
    StepTimeoutError,
    WorkerDiedError,
)
from ml_pipeline.models.rl.core.worker_choice import Division
from ml_pipeline.models.rl.core.worker_link import WorkerLink

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import a test module

START_METHODS = ["forkserver", "spawn", "fork"]
pytestmark = [pytest.mark.filterwarnings("ignore:start_method='fork'"), pytest.mark.timeout(30)]


class StubbornError(Exception):
    """Can be raised, but not unpickled."""

    def __init__(self, a: int, b: int) -> None:
        super().__init__(f"{a} and {b}")


class OddEnv(CountingEnv):
    """Raises, returns and draws what cannot cross a pipe, or should not."""

    def step(self, action: int) -> Any:
        if action == 1:
            raise StubbornError(1, 2)
        observation, reward, *flags, info = super().step(action)
        return observation, reward, *flags, {"lock": threading.Lock()} if action == 2 else info

    def modules(self) -> set[str]:
        return set(sys.modules)

    def surroundings(self) -> tuple[int, str, str]:
        return os.getpid(), os.environ["OMP_NUM_THREADS"], os.environ.get("ML_PIPELINE_PROBE", "")


def wait_until(condition: Any, timeout_s: float = 10.0) -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


def pass_through(gate: Path) -> None:
    """Holds a worker until the test opens the gate by making the file."""
    while not gate.exists():
        time.sleep(0.001)


def is_gone(process: psutil.Process) -> bool:
    """Whether it has ended; nobody may have asked yet how."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def worker_pids(envs: ParallelEnv) -> list[int]:
    return sorted({pid for pid, *_ in envs.call("surroundings")})


def run_script(tmp_path: Path, text: str, *, popen: bool = False, environ: dict[str, str] | None = None) -> Any:
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(text))
    command = [sys.executable, "-W", "error", str(script)]
    if popen:
        env = {**os.environ, **(environ or {})}
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


# How many, and where


def test_more_workers_than_environments_are_not_started() -> None:
    with ParallelEnv([OddEnv] * 2, num_workers=9) as envs:
        assert envs.num_workers == 2
        assert len(worker_pids(envs)) == 2


def test_no_workers_means_this_process() -> None:
    with ParallelEnv([CountingEnv] * 2, num_workers=0) as envs:
        assert (envs.num_workers, envs.start_method) == (0, None)
        envs.reset(seed=0)
        envs.step_async([1, 2])
        assert envs.step_wait()[1].tolist() == [11.0, 21.0]


@pytest.mark.parametrize("wait_s", [0.0, 2e-3])
def test_auto_measures_the_step(wait_s: float) -> None:
    before = np.random.get_state()[1].tolist()
    with ParallelEnv([lambda: TimedEnv(wait_s=wait_s)] * 6) as envs:
        assert (envs.num_workers > 2) == (wait_s > 0)  # an empty step stays here, waiting is spread
    assert np.random.get_state()[1].tolist() == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_workers": -1}, "num_workers must be"),
        ({"step_timeout_s": 0}, "step_timeout_s must be positive"),
        ({"num_workers": 0, "step_timeout_s": 1.0}, "need worker processes"),
        ({"start_method": "forkserve"}, 'Did you mean "forkserver"?'),
        ({"on_worker_failure": "ignore"}, "on_worker_failure must be"),
        ({"num_workers": "all"}, "num_workers must be"),
        ({"num_workers": 1.5}, "num_workers must be"),
    ],
)
def test_unfit_arguments_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        ParallelEnv([CountingEnv], **arguments)
    with pytest.raises(UserError, match="at least one factory"):
        ParallelEnv([])
    with pytest.raises(UserError, match=r"functions that make environments, .* holds a CountingEnv"):
        ParallelEnv([CountingEnv()])  # type: ignore[list-item]
    with pytest.raises(UserError, match="must be a list of functions that make environments, but is a type"):
        ParallelEnv(CountingEnv)  # type: ignore[arg-type]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_environment_that_two_factories_return_is_named(num_workers: int) -> None:
    env = CountingEnv()
    with pytest.raises(EnvResultError, match=r"nvironment 1 of 2.*its own, but got that of environment 0"):
        ParallelEnv([lambda: env, lambda: gymnasium.Wrapper(env)], num_workers=num_workers)


def test_a_factory_that_returns_nothing_is_named() -> None:
    with pytest.raises(EnvResultError, match=r"gymnasium\.Env, but got a NoneType"):
        ParallelEnv([lambda: None], num_workers=0)  # type: ignore[list-item, return-value]


@pytest.mark.parametrize("start_method", START_METHODS)
def test_workers_know_what_the_script_registered(start_method: Any) -> None:
    class Mine(CountingEnv):
        pass

    gymnasium.register("Mine-v0", Mine, max_episode_steps=3)
    try:
        with ParallelEnv([lambda: gymnasium.make("Mine-v0")] * 2, num_workers=1, start_method=start_method) as envs:
            envs.reset(seed=0)
            assert envs.get_attr("spec")[0].max_episode_steps == 3
    finally:
        del gymnasium.registry["Mine-v0"]


# The order of calls


def test_calls_out_of_order_raise_gymnasiums_errors() -> None:
    with ParallelEnv([CountingEnv] * 2, num_workers=2) as envs:
        for wait, name in ((envs.step_wait, "step"), (envs.reset_wait, "reset"), (envs.call_wait, "call")):
            with pytest.raises(NoAsyncCallError, match=f"Calling `{name}_wait` without any prior call") as missing:
                wait()
            assert missing.value.name == name
        envs.reset_async(seed=0)
        with pytest.raises(AlreadyPendingCallError, match=r"Calling `step_async` while waiting for .*reset") as early:
            envs.step_async([0, 0])
        assert early.value.name == "reset"
        with pytest.raises(NoAsyncCallError):
            envs.step_wait()
        envs.reset_wait()
        envs.call_async("get_wrapper_attr", "length")
        with pytest.raises(AlreadyPendingCallError, match="`call`"):
            envs.get_states()
        assert envs.call_wait() == (5, 5)


def test_close_warns_of_a_pending_call() -> None:
    envs = ParallelEnv([CountingEnv] * 2, num_workers=2)
    envs.reset()
    envs.step_async([0, 0])
    with pytest.warns(UserWarning, match="Calling `close` while waiting for a pending call to `step` to complete"):
        envs.close()


def test_a_late_answer_is_not_taken_for_the_next(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"

    class SlowTwice(CountingEnv):
        def step(self, action: int) -> Any:
            if action == 3:
                pass_through(second if first.exists() else first)
            return super().step(action)

    with ParallelEnv([lambda: SlowTwice(length=50)] * 3, num_workers=3) as envs:
        envs.reset(seed=0)
        envs.step_async([0, 3, 0])
        with pytest.raises(multiprocessing.TimeoutError, match="worker 1 is still busy"):
            envs.step_wait(timeout=0.05)
        with pytest.raises(NoAsyncCallError):
            envs.step_wait()  # that step was given up
        first.touch()
        observations, rewards, *_ = envs.step([1, 1, 2])
        assert rewards.tolist() == [12.0, 12.0, 22.0]  # step 2 of each, with its own action
        assert observations[:, 1].tolist() == [2, 2, 2]
        envs.step_async([0, 3, 0])
        with pytest.raises(multiprocessing.TimeoutError):
            envs.step_wait(timeout=0.05)
        second.touch()
        assert envs.reset(seed=9)[0][:, :2].tolist() == [[1, 0]] * 3
        assert envs.step([1, 0, 0])[1].tolist() == [11.0, 1.0, 1.0]


def test_a_late_reset_is_not_taken_for_the_next(tmp_path: Path) -> None:
    class SlowReset(CountingEnv):
        def reset(self, **kwargs: Any) -> Any:
            pass_through(tmp_path / "gate")
            return super().reset(**kwargs)

    with ParallelEnv([SlowReset] * 2, num_workers=2) as envs:
        envs.reset_async(seed=1)
        with pytest.raises(multiprocessing.TimeoutError):
            envs.reset_wait(timeout=0.05)
        (tmp_path / "gate").touch()
        expected = [CountingEnv().reset(seed=5 + i)[0] for i in range(2)]
        np.testing.assert_array_equal(envs.reset(seed=5)[0], expected)


def test_calls_may_time_out_too(tmp_path: Path) -> None:
    class SlowToSay(CountingEnv):
        def say(self, word: str) -> str:
            pass_through(tmp_path / "gate")
            return word

    with ParallelEnv([SlowToSay] * 2, num_workers=2) as envs:
        envs.call_async("say", "first")
        with pytest.raises(multiprocessing.TimeoutError):
            envs.call_wait(timeout=0.05)
        (tmp_path / "gate").touch()
        assert envs.call("say", "second") == ("second", "second")


# Failures


@pytest.mark.parametrize(
    ("start_method", "cause"),
    [("forkserver", signal.SIGKILL), ("spawn", signal.SIGSEGV), ("fork", signal.SIGTERM)],
)
def test_a_worker_killed_while_idle_is_named(start_method: Any, cause: signal.Signals) -> None:
    envs = ParallelEnv([OddEnv] * 5, num_workers=2, start_method=start_method)
    envs.reset()
    pid = envs.call("surroundings")[3][0]
    process = psutil.Process(pid)
    process.send_signal(cause)
    wait_until(lambda: is_gone(process))
    began = time.monotonic()
    with pytest.raises(
        WorkerDiedError, match=rf"Worker 1 \(environments 3 to 4\) was killed by {cause.name} "
    ) as caught:
        envs.step([0] * 5)
    assert time.monotonic() - began < 1.0
    assert (caught.value.worker, caught.value.signal, list(caught.value.environments)) == (1, cause.name, [3, 4])
    assert envs.closed
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("start_method", START_METHODS)
def test_a_worker_killed_in_mid_step_is_named_though_others_are_busy(start_method: Any) -> None:
    env_fns = [lambda: FaultyEnv("hang", armed=False)] * 2 + [lambda: FaultyEnv("kill", at=2)] * 2
    envs = ParallelEnv(env_fns, num_workers=2, start_method=start_method)
    envs.reset()
    envs.step([0] * 4)
    envs.set_attr("armed", True)  # environment 0 now hangs, and its worker is the first to be waited for
    began = time.monotonic()
    with pytest.raises(WorkerDiedError, match="killed by SIGKILL in step of environment 2"):
        envs.step([0] * 4)
    assert time.monotonic() - began < 1.0
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


def test_a_step_that_never_returns_is_named() -> None:
    envs = ParallelEnv([lambda: FaultyEnv("hang", armed=False)] * 4, num_workers=2, step_timeout_s=0.2)
    envs.reset()
    envs.step([0] * 4)
    envs.set_attr("armed", [False, False, False, True])
    began = time.monotonic()
    with pytest.raises(
        StepTimeoutError, match=r"Worker 1 .*step_timeout_s=0.2: environment 3 has not returned"
    ) as caught:
        envs.step([0] * 4)
    assert time.monotonic() - began < 1.2
    assert isinstance(caught.value, multiprocessing.TimeoutError)
    assert caught.value.index == 3
    assert re.match(r"Stack \(most recent call first\):\n.*, line \d+ in _misbehave\n", caught.value.stack)
    assert caught.value.stack in str(caught.value)
    assert envs.closed
    assert not multiprocessing.active_children()


class StuckEnv(CountingEnv):
    """Never returns from one of its methods, in a worker."""

    def __init__(self, method: str) -> None:
        super().__init__(length=1)
        self.method = method
        self._get_stuck_in("constructor")

    def reset(self, **kwargs: Any) -> Any:
        self._get_stuck_in("first reset" if self.episode == 0 else "later reset")
        return super().reset(**kwargs)

    def _get_stuck_in(self, method: str) -> None:
        if method == self.method and multiprocessing.parent_process() is not None:
            threading.Event().wait()


def test_a_reset_that_never_returns_is_named() -> None:
    with ParallelEnv([CountingEnv, lambda: StuckEnv("first reset")], num_workers=2, step_timeout_s=0.2) as envs:
        with pytest.raises(StepTimeoutError, match=r"its reset within step_timeout_s=0.2: environment 1 has") as caught:
            envs.reset()
        assert "in _get_stuck_in" in caught.value.stack
        assert envs.closed


def test_a_reset_after_an_episode_that_never_returns_is_named() -> None:
    with ParallelEnv([CountingEnv, lambda: StuckEnv("later reset")], num_workers=2, step_timeout_s=0.2) as envs:
        envs.reset()
        with pytest.raises(StepTimeoutError, match=r"its step within step_timeout_s=0.2: environment 1 has"):
            envs.step([0, 0])


def test_a_construction_that_never_returns_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_pool, "_START_S", 1.0)
    with pytest.raises(StepTimeoutError, match=r"Worker 1 did not finish its start within 1.2 s: environment 1 has"):
        ParallelEnv([CountingEnv, lambda: StuckEnv("constructor")], num_workers=2, step_timeout_s=0.2)
    assert not multiprocessing.active_children()


def test_a_failure_is_told_while_others_are_still_busy() -> None:
    env_fns = [lambda: FaultyEnv("hang", armed=False), lambda: FaultyEnv("raise", at=2)]
    with ParallelEnv(env_fns, num_workers=2) as envs:
        envs.reset()
        envs.step([0, 0])
        envs.set_attr("armed", True)
        began = time.monotonic()
        with pytest.raises(EnvRaisedError, match=r"Worker 1 \(environment 1 of 2\) raised ValueError in step 2"):
            envs.step([0, 0])
        assert time.monotonic() - began < 1.0
        envs.close(terminate=True)


def test_what_cannot_be_unpickled_is_still_told() -> None:
    with ParallelEnv([OddEnv] * 2, num_workers=2) as envs:
        envs.reset()
        with pytest.raises(EnvRaisedError, match=r"Worker 1 \(environment 1 of 2\) raised StubbornError(.|\n)*1 and 2"):
            envs.step([0, 1])
        envs.reset()
        with pytest.raises(EnvResultError, match=r"environment 0 of 2\) returned an unusable result in step 1: .*lock"):
            envs.step([2, 0])


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


# What workers are


@pytest.mark.parametrize("start_method", ["forkserver", "spawn"])
def test_workers_are_light_and_know_the_environment(start_method: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ML_PIPELINE_PROBE", start_method)  # set after the fork server was started
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    with ParallelEnv([OddEnv] * 2, num_workers=2, start_method=start_method) as envs:
        for modules in envs.call("modules"):
            assert not modules & {"torch", "polars", "matplotlib", "pydantic", "psutil", "pytest"}
        assert [seen[1:] for seen in envs.call("surroundings")] == [("1", start_method)] * 2
    assert os.environ["OMP_NUM_THREADS"] == "3"


def test_workers_leave_ctrl_c_to_the_trainer() -> None:
    with ParallelEnv([OddEnv] * 2, num_workers=2) as envs:
        envs.reset(seed=0)
        for pid in worker_pids(envs):
            os.kill(pid, signal.SIGINT)
        assert envs.step([0, 0])[1].tolist() == [1.0, 1.0]


def test_ctrl_c_while_waiting_leaves_it_whole(tmp_path: Path) -> None:
    trainer = os.getpid()

    class Interrupting(CountingEnv):
        def step(self, action: int) -> Any:
            if action == 3:
                os.kill(trainer, signal.SIGINT)
                pass_through(tmp_path / "gate")  # so that it is the wait that is interrupted
            return super().step(action)

    with ParallelEnv([Interrupting] * 2, num_workers=1) as envs:
        envs.reset(seed=0)
        with pytest.raises(KeyboardInterrupt):
            envs.step([3, 0])
        assert not envs.closed
        (tmp_path / "gate").touch()
        envs.reset(seed=0)
        assert envs.step([0, 0])[1].tolist() == [1.0, 1.0]


def test_ctrl_c_while_a_command_is_sent_closes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(link: WorkerLink, message: bytes) -> None:
        raise KeyboardInterrupt

    envs = ParallelEnv([CountingEnv] * 2, num_workers=2)
    monkeypatch.setattr(WorkerLink, "send", interrupted)  # after the note that announces it
    with pytest.raises(KeyboardInterrupt):
        envs.reset(seed=0)
    assert envs.closed


def test_ctrl_c_once_a_command_is_sent_asks_for_a_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    post = worker_pool.WorkerPool.post

    def interrupted(pool: worker_pool.WorkerPool, *command: Any) -> None:
        post(pool, *command)
        raise KeyboardInterrupt

    with ParallelEnv([CountingEnv] * 2, num_workers=2) as envs:
        envs.reset(seed=0)
        monkeypatch.setattr(worker_pool.WorkerPool, "post", interrupted)
        with pytest.raises(KeyboardInterrupt):
            envs.step([0, 0])
        monkeypatch.undo()
        with pytest.raises(ResetRequiredError):
            envs.step([0, 0])
        envs.reset(seed=0)
        assert envs.step([0, 0])[1].tolist() == [1.0, 1.0]


def test_states_that_fail_half_way_ask_for_a_reset() -> None:
    with ParallelEnv([CountingEnv] * 2, num_workers=0) as envs:
        envs.reset(seed=0)
        states = envs.get_states()
        envs.step([0, 0])
        with pytest.raises(StateNotAvailable):
            envs.set_states([states[0], b"cut short"])
        with pytest.raises(ResetRequiredError):
            envs.step([0, 0])
        envs.set_states(states)
        assert envs.step([0, 0])[1].tolist() == [1.0, 1.0]


def test_a_worker_is_named_though_closing_this_processs_share_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise ValueError("already closed")

    monkeypatch.setattr(vec_env, "_fastest", lambda example, n: Division(n_workers=1, steps_here=True))
    envs = ParallelEnv([CountingEnv, CountingEnv])
    envs.reset(seed=0)
    envs.apply(lambda env: setattr(env, "close", refuse), env_ids=[0])
    with pytest.raises(WorkerDiedError, match="SIGKILL"):
        envs.apply(lambda env: os.kill(os.getpid(), signal.SIGKILL), env_ids=[1])


@pytest.mark.parametrize("start_method", START_METHODS)
def test_nothing_is_left_behind(start_method: Any) -> None:
    def count() -> tuple[int, int, set[str]]:
        gc.collect()
        return psutil.Process().num_fds(), len(multiprocessing.active_children()), set(os.listdir("/dev/shm"))

    ParallelEnv([CountingEnv] * 3, num_workers=2, start_method=start_method).close()  # starts the fork server, if any
    before = count()
    for _ in range(3):
        with ParallelEnv([CountingEnv] * 3, num_workers=2, start_method=start_method) as envs:
            envs.reset()
            envs.step([0, 0, 0])
            assert set(os.listdir("/dev/shm")) == before[2]
    envs = ParallelEnv([CountingEnv] * 3, num_workers=2, start_method=start_method)
    del envs  # as good as closed
    assert count() == before


def test_a_script_needs_no_guard_and_is_not_imported_again(tmp_path: Path) -> None:
    done = run_script(
        tmp_path,
        """
        print("imported")
        import gymnasium
        from ml_pipeline.models.rl.core.vec_env import ParallelEnv

        class Mine(gymnasium.Wrapper):
            def step(self, action):
                *rest, info = self.env.step(action)
                return *rest, {"mine": Mine}

        for method in ("forkserver", "spawn", "fork"):
            make = lambda: Mine(gymnasium.make("CartPole-v1"))
            envs = ParallelEnv([make] * 2, num_workers=2, start_method=method)
            envs.reset(seed=1)
            assert envs.step([0, 1])[4]["mine"][1] is Mine
        print("done")
        """,
    )
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, ["imported", "done"], "")


@pytest.mark.parametrize("start_method", START_METHODS)
def test_workers_vanish_when_the_trainer_is_killed(tmp_path: Path, start_method: str) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    trainer = run_script(
        tmp_path,
        f"""
        import os, time, multiprocessing
        from ml_pipeline.models.rl.core.probe_envs import FaultyEnv
        from ml_pipeline.models.rl.core.vec_env import ParallelEnv
        make = lambda: FaultyEnv("hang", at=2)
        idle = ParallelEnv([make] * 2, num_workers=2, start_method="{start_method}")
        busy = ParallelEnv([make] * 2, num_workers=2, start_method="{start_method}")
        for envs in (idle, busy):
            envs.reset()
            envs.step([0, 0])
        busy.step_async([0, 0])
        print(*(child.pid for child in multiprocessing.active_children()), flush=True)
        time.sleep(60)
        """,
        popen=True,
        environ={"TMPDIR": str(temporary)},
    )
    try:
        workers = [psutil.Process(int(pid)) for pid in trainer.stdout.readline().split()]
        assert len(workers) == 4
        before = set(os.listdir("/dev/shm"))
        trainer.kill()
        wait_until(lambda: all(is_gone(worker) for worker in workers), timeout_s=2.0)
        assert list(temporary.iterdir()) == []
        assert set(os.listdir("/dev/shm")) <= before
    finally:
        trainer.kill()
        _, errors = trainer.communicate()
    assert errors == ""  # no complaint of a resource tracker


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no limit on open files")
@pytest.mark.parametrize(("hard", "expected"), [(4096, "8 workers step"), (60, "8 workers need")])
def test_a_low_limit_on_open_files_is_raised_or_named(hard: int, expected: str) -> None:
    script = (
        "import resource\n"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, (40, {hard}))\n"
        "from ml_pipeline.config.errors import UserError\n"
        "from ml_pipeline.models.rl.core.probe_envs import CountingEnv\n"
        "from ml_pipeline.models.rl.core.vec_env import ParallelEnv\n"
        "try:\n"
        "    with ParallelEnv([CountingEnv] * 8, num_workers=8) as envs:\n"
        "        envs.reset(seed=0)\n"
        "        print('8 workers step', envs.step([0] * 8)[1].sum())\n"
        "except UserError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True, timeout=60)
    assert expected in done.stdout, done.stderr

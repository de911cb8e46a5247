"""ParallelEnv: who steps, in which order it is called, and what is whole where a call is cut short."""

import multiprocessing
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.error import AlreadyPendingCallError, NoAsyncCallError

from ml_pipeline.config.errors import UserError
from ml_pipeline.models.rl.core import arguments, vec_env
from ml_pipeline.models.rl.core.probe_envs import CountingEnv
from ml_pipeline.models.rl.core.stepping.errors import (
    EnvResultError,
    ResetRequiredError,
    StateNotAvailable,
)
from ml_pipeline.models.rl.core.vec_env import ParallelEnv
from ml_pipeline.models.rl.core.workers import open as opening
from ml_pipeline.models.rl.core.workers import pool as worker_pool
from ml_pipeline.models.rl.core.workers.choice import StepCost
from ml_pipeline.models.rl.core.workers.pipes import WorkerLink
from tests.models.rl.core.workers.probes import OddEnv, pass_through, wait_until, worker_pids

pytestmark = [pytest.mark.filterwarnings("ignore:start_method='fork'"), pytest.mark.timeout(120)]


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


@pytest.mark.parametrize(
    ("cost", "free_cores", "expected"),
    [
        (StepCost(cpu_s=1e-6, wait_s=0.0), [2.0], (0, True)),  # handing over would take longer than all steps
        (StepCost(cpu_s=1e-3, wait_s=0.0), [2.0], (1, True)),  # computing is shared with this process
        (StepCost(cpu_s=1e-5, wait_s=2e-3), [2.0], (6, False)),  # waiting is spread
        (StepCost(cpu_s=1e-3, wait_s=0.0), [1.0, 1.0], (0, True)),  # others keep a core busy
        (StepCost(cpu_s=1e-3, wait_s=0.0), [1.0, 2.0], (1, True)),  # they did so for a moment only
    ],
)
def test_auto_goes_by_the_step_and_by_the_free_cores(
    cost: StepCost, free_cores: list[float], expected: tuple[int, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = iter(free_cores)
    watch = type("Watch", (), {"free_cores": lambda self: next(seen)})
    for name, forced in {
        "measure_step": lambda example: cost,
        "measure_wake": lambda: 6e-5,
        "usable_cores": lambda: 2.0,
        "IdleWatch": watch,
        "_RECHECK_DELAY_S": 0.0,
    }.items():
        monkeypatch.setattr(arguments, name, forced)
    with ParallelEnv([CountingEnv] * 6) as envs:
        assert (envs.num_workers, envs.steps_here) == expected
        envs.reset(seed=0)
        assert envs.step([1] * 6)[1].tolist() == [11.0] * 6


def test_auto_measures_a_known_kind_once_and_then_goes_by_who_was_at_work_since(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    measured, free = [], [2.0, 1.0, 2.0]  # cores: when first looked at, in the time from then on, and after that
    watch = type("Watch", (), {"free_cores": lambda self: free[0]})
    for name, forced in {
        "measure_step": lambda example: measured.append(example) or StepCost(cpu_s=5e-6, wait_s=0.0),
        "measure_wake": lambda: 6e-5,
        "usable_cores": lambda: 2.0,
        "IdleWatch": watch,
        "_RECHECK_DELAY_S": 0.0,
    }.items():
        monkeypatch.setattr(arguments, name, forced)
    known = arguments.KnownCost()
    divisions = []
    for num_envs in (2, 6, 6):
        with arguments.measuring_once(known), ParallelEnv([CountingEnv] * num_envs) as envs:
            divisions.append((envs.num_workers, envs.steps_here))
        free.pop(0)
    assert divisions == [(0, True), (0, True), (1, True)]
    assert len(measured) == 1


def test_auto_takes_a_worker_per_core_where_steps_may_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arguments, "usable_cores", lambda: 3.0)
    monkeypatch.setattr(arguments, "_fastest", None)  # which would call an environment that hangs or kills
    with ParallelEnv([CountingEnv] * 6, on_worker_failure="restart") as envs:
        assert (envs.num_workers, envs.steps_here) == (3, False)


@pytest.mark.parametrize(("platform", "expected"), [("linux", "forkserver"), ("darwin", "spawn"), ("win32", "spawn")])
def test_the_default_start_method_is_the_safe_one_of_the_platform(
    platform: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    assert vec_env._start_method(None) == expected


@pytest.mark.parametrize(("cores", "spins"), [(2.0, False), (2.9, False), (3.0, True), (64.0, True)])
def test_waits_spin_only_where_every_spinner_has_a_core(
    cores: float, spins: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "usable_cores", lambda: cores)
    with ParallelEnv([CountingEnv] * 2, num_workers=2) as envs:  # two workers and this process
        pool = envs._pool
        assert (pool._spin_s > 0) == (pool._starter.spin_s > 0) == spins


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
    with pytest.raises(EnvResultError, match=r"nvironment 1 of 2.*a new environment, but got that of environment 0"):
        ParallelEnv([lambda: env, lambda: gymnasium.Wrapper(env)], num_workers=num_workers)


def test_a_factory_that_returns_nothing_is_named() -> None:
    with pytest.raises(EnvResultError, match=r"gymnasium\.Env, but got a NoneType"):
        ParallelEnv([lambda: None], num_workers=0)  # type: ignore[list-item, return-value]


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


def test_a_late_reply_is_not_taken_for_the_next(tmp_path: Path) -> None:
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


# Calls cut short


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="only Linux tells who sleeps")
@pytest.mark.usefixtures("ctrl_c_raises")
def test_ctrl_c_while_waiting_leaves_it_whole(tmp_path: Path) -> None:
    trainer = os.getpid()

    def is_waiting() -> bool:
        return Path(f"/proc/{trainer}/stat").read_text().rpartition(")")[2].split()[0] == "S"

    class Interrupting(CountingEnv):
        def step(self, action: int) -> Any:
            if action == 3:
                wait_until(is_waiting)
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


def test_it_shows_how_many_environments_and_workers_it_has() -> None:
    with ParallelEnv([CountingEnv] * 3, num_workers=0) as envs:
        assert repr(envs) == "ParallelEnv(num_envs=3, num_workers=0)"
    with ParallelEnv([CountingEnv] * 3, num_workers=2, start_method="spawn") as envs:
        assert repr(envs) == "ParallelEnv(num_envs=3, num_workers=2, start_method='spawn')"
    assert repr(envs) == "ParallelEnv(num_envs=3, num_workers=2, start_method='spawn')"


def test_a_script_that_never_closes_its_workers_ends_quietly():
    script = (
        "import gymnasium\nfrom ml_pipeline import ParallelEnv\n"
        "envs = ParallelEnv([lambda: gymnasium.make('CartPole-v1')] * 2, num_workers=1)\nenvs.reset()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


IN_A_POOL = """
import multiprocessing
import gymnasium
from ml_pipeline import ParallelEnv

def rewards(seed):
    with ParallelEnv([lambda: gymnasium.make("CartPole-v1")] * 2, num_workers=2) as envs:
        envs.reset(seed=seed)
        return envs.step([0, 1])[1].tolist()

if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        print(pool.map(rewards, [0, 1]))
    worker = multiprocessing.get_context("spawn").Process(target=rewards, args=(0,), daemon=True)
    worker.start()
    worker.join()
    print(worker.exitcode)
"""


@pytest.mark.slow
def test_a_daemonic_process_as_of_a_pool_may_have_workers(tmp_path):
    (tmp_path / "in_a_pool.py").write_text(IN_A_POOL)
    command = [sys.executable, str(tmp_path / "in_a_pool.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["[[1.0, 1.0], [1.0, 1.0]]", "0"]

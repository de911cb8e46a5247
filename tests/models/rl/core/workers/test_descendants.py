"""What environments start: allowed, ended with its worker however that ends, and out of the terminal's reach."""

import concurrent.futures
import itertools
import multiprocessing
import os
import pty
import signal
import subprocess
import sys
import termios
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
from ml_pipeline.models.rl.core.workers import fork_server, main
from tests.models.rl.core.workers.probes import START_METHODS, have_ended, run_script, start_script, wait_until

pytestmark = [
    pytest.mark.filterwarnings("ignore:start_method='fork'"),
    pytest.mark.timeout(120),
    pytest.mark.skipif(not hasattr(os, "killpg"), reason="this system has no process groups"),
]

LONGER_THAN_THE_TEST_S = 1000.0
DIE = 1


class StartingEnv(CountingEnv):
    """Starts a process at its first reset, and forgets it; one action kills its worker."""

    def __init__(self, how: str = "subprocess") -> None:
        super().__init__(length=50)
        self.how = how
        self.started: int | None = None

    def reset(self, **kwargs: Any) -> Any:
        if self.started is None and self.how == "subprocess":
            command = [sys.executable, "-c", "import signal; signal.pause()"]
            self.started = subprocess.Popen(command).pid
        elif self.started is None:
            process = multiprocessing.get_context(self.how).Process(target=time.sleep, args=(LONGER_THAN_THE_TEST_S,))
            process.start()
            self.started = process.pid
        return super().reset(**kwargs)

    def step(self, action: int) -> Any:
        if action == DIE:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


@pytest.fixture
def opened() -> Iterator[Callable[..., tuple[ParallelEnv, list[int]]]]:
    """Makes environments which each have started a process, and tells their numbers; they have ended at the end."""
    pids: list[int] = []

    def make(**kwargs: Any) -> tuple[ParallelEnv, list[int]]:
        how = kwargs.pop("how", "subprocess")
        fork_server.ensure_running()  # which is of no use to a fork of this process
        envs = ParallelEnv([partial(StartingEnv, how)] * 2, num_workers=2, **kwargs)
        envs.reset()
        started = list(envs.get_attr("started"))
        assert not have_ended(started)
        pids.extend(started)
        return envs, started

    yield make
    wait_until(lambda: have_ended(pids))


@pytest.mark.parametrize("start_method", START_METHODS)
def test_what_a_killed_worker_had_started_ends(start_method: Any, opened: Callable[..., Any]) -> None:
    envs, (_, lost) = opened(start_method=start_method, on_worker_failure="restart")
    with envs:
        envs.step([0, DIE])
        wait_until(lambda: have_ended([lost]))
        assert envs.num_restarts == 1
        assert envs.step([0, 0])[1].tolist() == [2.0, 1.0]
    envs, _ = opened(start_method=start_method)
    with pytest.raises(WorkerDiedError, match="SIGKILL"):
        envs.step([0, DIE])


@pytest.mark.parametrize("how", ["subprocess", "spawn", "fork", "forkserver"])
@pytest.mark.parametrize("start_method", START_METHODS)
def test_what_a_closed_worker_had_started_ends(how: str, start_method: Any, opened: Callable[..., Any]) -> None:
    envs, _ = opened(how=how, start_method=start_method)
    envs.close(timeout=LONGER_THAN_THE_TEST_S)


def test_what_a_worker_had_started_ends_where_its_link_is_closed(opened: Callable[..., Any]) -> None:
    envs, (first, _) = opened()
    envs._pool._processes[0].link.close()  # as if the trainer were gone
    wait_until(lambda: have_ended([first]))
    envs.close(terminate=True)


class PoolingEnv(CountingEnv):
    """Has processes of its own compute: an executor, which it does not close, and a `ParallelEnv`."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
        self.inner = ParallelEnv([CountingEnv] * 2, num_workers=2)
        self.inner.reset(seed=0)

    def step(self, action: int) -> Any:
        observation, _, *rest = super().step(action)
        reward = self.pool.submit(abs, -7).result() + self.inner.step([0, 1])[1].sum()
        return observation, float(reward), *rest

    def close(self) -> None:
        self.inner.close()


@pytest.mark.parametrize("start_method", START_METHODS)
def test_environments_may_use_multiprocessing(start_method: Any) -> None:
    with ParallelEnv([PoolingEnv] * 2, num_workers=2, start_method=start_method) as envs:
        envs.reset(seed=0)
        assert envs.step([0, 0])[1].tolist() == [7 + 1 + 11] * 2
        started = [process.pid for worker in envs._pool.processes for process in children_of(worker.pid)]
        assert len(started) >= 4
        envs.close(timeout=LONGER_THAN_THE_TEST_S)
    wait_until(lambda: have_ended(started))


def children_of(pid: int | None) -> list[psutil.Process]:
    return psutil.Process(pid).children(recursive=True)


TRAINER = """
import multiprocessing, os, signal, sys, threading, time, warnings
from ml_pipeline.models.rl.core.probe_envs import CountingEnv
from ml_pipeline.models.rl.core.vec_env import ParallelEnv

class StartingEnv(CountingEnv):
    def reset(self, **kwargs):
        self.process = multiprocessing.get_context("fork").Process(target=signal.pause)
        self.process.start()
        self.started = self.process.pid
        return super().reset(**kwargs)

    def step(self, action):
        if action:
            signal.pause()
        return super().step(action)

envs = ParallelEnv([StartingEnv] * 2, num_workers=2, start_method="{start_method}")
envs.reset()
envs.step([0, 0])
print(*envs.get_attr("started"), *(child.pid for child in multiprocessing.active_children()), flush=True)
"""
ENDINGS = {
    "SIGKILL": "envs.step([0, 1])",
    "SIGTERM": "time.sleep(600)",
    "end": "sys.stdin.readline()",
    "end in mid-step": "sys.stdin.readline(); warnings.simplefilter('ignore'); envs.step_async([0, 1])",
    "end with a daemon thread": (
        "threading.Thread(target=lambda envs: time.sleep(600), args=(envs,), daemon=True).start(); sys.stdin.readline()"
    ),
    "os._exit": "sys.stdin.readline(); os._exit(0)",
}


@pytest.mark.parametrize(
    ("ending", "start_method"),
    [
        # By the usual method every ending; by the others the hardest.
        pytest.param(ending, method, marks=[] if method == "forkserver" or ending == "SIGKILL" else pytest.mark.long)
        for ending, method in itertools.product(ENDINGS, START_METHODS)
    ],
)
def test_nothing_outlives_the_trainer(ending: str, start_method: str, tmp_path: Path) -> None:
    trainer = start_script(tmp_path, TRAINER.format(start_method=start_method) + ENDINGS[ending])
    try:
        assert trainer.stdout is not None
        pids = [int(pid) for pid in trainer.stdout.readline().split()]
        assert len(pids) == 4
        if ending.startswith("SIG"):
            trainer.send_signal(signal.Signals[ending])
        _, errors = trainer.communicate("\n", timeout=100)
    finally:
        trainer.kill()
    wait_until(lambda: have_ended(pids))
    assert errors == ""


def test_another_process_that_got_the_number_of_a_worker_is_left_alone() -> None:
    command = [sys.executable, "-c", "print('first', flush=True); print(input())"]
    pipes = dict.fromkeys(("stdin", "stdout"), subprocess.PIPE)
    with subprocess.Popen(command, start_new_session=True, text=True, **pipes) as other:  # type: ignore[call-overload]
        assert other.stdout.readline() == "first\n"
        main.end_group_of(other.pid)
        assert other.communicate("still there")[0] == "still there\n"


@pytest.mark.parametrize("start_method", START_METHODS)
@pytest.mark.parametrize("name", ["SIGHUP", "SIGTERM", "SIGQUIT"])
def test_a_signal_to_the_trainers_group_is_the_trainers_own_affair(
    name: str, start_method: str, tmp_path: Path
) -> None:
    done = run_script(
        tmp_path,
        f"""
        import os, signal
        os.setsid()
        signal.signal(signal.{name}, lambda *_: print("noted"))
        from ml_pipeline.models.rl.core.probe_envs import CountingEnv
        from ml_pipeline.models.rl.core.vec_env import ParallelEnv
        with ParallelEnv([CountingEnv] * 2, num_workers=2, start_method="{start_method}") as envs:
            envs.reset()
            os.killpg(0, signal.{name})
            for _ in range(100):
                envs.step([0, 0])
            codes = [worker.exitcode for worker in envs._pool.processes]
        print(codes)
        """,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "noted\n[None, None]\n", "")


@pytest.mark.parametrize("start_method", START_METHODS)
def test_environments_may_print_to_a_terminal_that_stops_the_background(start_method: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        f"""
from ml_pipeline.models.rl.core.probe_envs import CountingEnv
from ml_pipeline.models.rl.core.vec_env import ParallelEnv

class PrintingEnv(CountingEnv):
    def step(self, action):
        print("a worker prints", flush=True)
        return super().step(action)

with ParallelEnv([PrintingEnv], num_workers=1, start_method="{start_method}") as envs:
    envs.reset()
    envs.step([0])
"""
    )
    pid, terminal = pty.fork()
    if pid == 0:
        flags = termios.tcgetattr(0)
        flags[3] |= termios.TOSTOP
        termios.tcsetattr(0, termios.TCSANOW, flags)
        os.execv(sys.executable, [sys.executable, str(script)])
    try:
        seen = b""
        while b"a worker prints" not in seen:
            seen += os.read(terminal, 1000)
        os.waitpid(pid, 0)
    finally:
        os.close(terminal)


@pytest.mark.parametrize("start_method", START_METHODS)
def test_an_environment_that_reads_the_terminal_fails_and_is_not_stopped(start_method: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        f"""
from ml_pipeline.models.rl.core.probe_envs import CountingEnv
from ml_pipeline.models.rl.core.vec_env import ParallelEnv

class AskingEnv(CountingEnv):
    def step(self, action):
        with open("/dev/tty") as terminal:
            terminal.readline()

with ParallelEnv([AskingEnv], num_workers=1, start_method="{start_method}", step_timeout_s=60) as envs:
    envs.reset()
    try:
        envs.step([0])
    except OSError as error:
        print("failed with", error.errno, flush=True)
"""
    )
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, str(script)])
    try:
        seen = b""
        while b"failed with" not in seen:
            seen += os.read(terminal, 1000)
        os.waitpid(pid, 0)
    finally:
        os.close(terminal)


def _pause_until_terminated(ready: Path, terminated: Path) -> None:
    def end(*_: object) -> None:
        terminated.touch()
        os._exit(0)

    signal.signal(signal.SIGTERM, end)
    ready.touch()
    while True:
        signal.pause()


class FailingToCloseEnv(CountingEnv):
    def __init__(self, folder: Path) -> None:
        super().__init__(length=50)
        self.folder = folder

    def reset(self, **kwargs: Any) -> Any:
        ready = self.folder / "ready"
        process = multiprocessing.get_context("fork").Process(
            target=_pause_until_terminated, args=(ready, self.folder / "terminated")
        )
        process.start()
        wait_until(ready.exists)
        return super().reset(**kwargs)

    def close(self) -> None:
        if multiprocessing.parent_process() is not None:  # the trainer closes one as well, to see its spaces
            raise ValueError("it cannot be closed")


def test_what_an_environment_started_is_terminated_where_its_close_raises(tmp_path: Path) -> None:
    with ParallelEnv([partial(FailingToCloseEnv, tmp_path)], num_workers=1) as envs:
        envs.reset()
    assert (tmp_path / "terminated").exists()


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="this system does not show its shared memory")
@pytest.mark.parametrize("start_method", START_METHODS)
def test_shared_memory_that_a_killed_worker_made_is_removed(start_method: str, tmp_path: Path) -> None:
    done = run_script(
        tmp_path,
        f"""
        import os, signal
        from multiprocessing.shared_memory import SharedMemory
        from ml_pipeline.models.rl.core.probe_envs import CountingEnv
        from ml_pipeline.models.rl.core.vec_env import ParallelEnv

        class SharingEnv(CountingEnv):
            def reset(self, **kwargs):
                self.memory = SharedMemory(create=True, size=100)
                self.name = self.memory.name
                return super().reset(**kwargs)

        envs = ParallelEnv([SharingEnv], num_workers=1, start_method="{start_method}")
        envs.reset()
        print(envs.get_attr("name")[0])
        os.kill(envs._pool.processes[0].pid, signal.SIGKILL)
        try:
            envs.step([0])
        except Exception as error:
            print(error)
        """,
    )
    name, error = done.stdout.splitlines()
    assert "SIGKILL" in error
    wait_until(lambda: not (Path("/dev/shm") / name).exists())

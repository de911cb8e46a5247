"""Environments that tell of the worker they are in, and waiting for what workers do."""

import contextlib
import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cloudpickle
import psutil

from ml_pipeline.models.rl.core import vec_env
from ml_pipeline.models.rl.core.probe_envs import CountingEnv
from ml_pipeline.models.rl.core.vec_env import ParallelEnv

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import a module of tests

ROOT = Path(vec_env.__file__).parents[4]
START_METHODS = ["forkserver", "spawn", "fork"]


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


def wait_until(condition: Callable[[], Any], timeout_s: float = 60.0) -> Any:
    """Waits until `condition()` holds, and returns what it gave. The time is what a loaded machine may take; a test
    that passes needs little."""
    end = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)
    return found


def get_stuck(note: Path) -> None:
    """Never returns; says first in which process. See the fixture `stuck`."""
    draft = note.with_suffix(f".{os.getpid()}")
    draft.write_text(str(os.getpid()))
    draft.rename(note)
    threading.Event().wait()


@contextlib.contextmanager
def in_the_background(act: Callable[[], None]) -> Iterator[None]:
    """Runs `act` in a thread meanwhile, and raises what it raised."""
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(act)
        yield
        running.result()


def pass_through(gate: Path) -> None:
    """Holds a worker until the test opens the gate by making the file."""
    while not gate.exists():
        time.sleep(0.001)


def run_script(tmp_path: Path, text: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Runs it as users run theirs, to its end; warnings are errors."""
    process = start_script(tmp_path, text, **environ)
    try:
        output, errors = process.communicate(timeout=100)
    finally:
        process.kill()
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


def start_script(tmp_path: Path, text: str, **environ: str) -> "subprocess.Popen[str]":
    """The same, without waiting for its end. It imports the package under test, even if another is installed."""
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(text))
    command = [sys.executable, "-W", "error", str(script)]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen(command, text=True, env={**os.environ, "PYTHONPATH": str(ROOT), **environ}, **pipes)  # type: ignore[call-overload]


def have_ended(pids: Iterable[int]) -> bool:
    """Whether none of these processes runs any more."""
    return all(not psutil.pid_exists(pid) or is_gone(psutil.Process(pid)) for pid in pids)


def is_gone(process: psutil.Process) -> bool:
    """Whether it has ended; nobody may have asked yet how."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def worker_pids(envs: ParallelEnv) -> list[int]:
    """The workers' process numbers, as their environments, each an `OddEnv`, tell them."""
    return sorted({pid for pid, *_ in envs.call("surroundings")})

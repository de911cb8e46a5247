"""Environments that tell of the worker they are in, and waiting for what workers do."""

import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import cloudpickle
import psutil

from ml_pipeline.models.rl.core.probe_envs import CountingEnv
from ml_pipeline.models.rl.core.vec_env import ParallelEnv

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import a module of tests

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


def wait_until(condition: Any, timeout_s: float = 10.0) -> None:
    """Returns once `condition()` holds."""
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
    """The workers' process numbers, as their environments, each an `OddEnv`, tell them."""
    return sorted({pid for pid, *_ in envs.call("surroundings")})

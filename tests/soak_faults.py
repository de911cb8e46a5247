"""Faults from outside, again and again: environments with processes of their own, killed and suspended trainers.

What runs in workers is here as well, so nothing here imports torch.
"""

import contextlib
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

from ml_pipeline.models.rl.core.probe_envs import CountingEnv

_MARK = "ML_PIPELINE_SOAK"
_PATIENCE_S = 60.0  # what a loaded machine may take; a soak that passes needs little
_HOLDING_S = 1.0

_TRAINER = """
import itertools, sys
from functools import partial
from ml_pipeline.models.rl.core.vec_env import ParallelEnv
from tests.soak_faults import ParentEnv

start_method, step_timeout_s = sys.argv[1], float(sys.argv[2]) or None
env_fns = [partial(ParentEnv, length=20)] * 4
envs = ParallelEnv(env_fns, num_workers=2, start_method=start_method, step_timeout_s=step_timeout_s)
envs.reset(seed=0)
for number in itertools.count():
    envs.step([0] * 4)
    if number % 100 == 0:
        print(number, flush=True)
"""


class ParentEnv(CountingEnv):
    """Starts three processes in a worker: a program, a fork, and a fork that holds its pipes in a session of its own.

    Only the last one, which ends by itself after a second, may outlive the worker.
    """

    def __init__(self, length: int = 5, spread: int = 0) -> None:
        super().__init__(length, spread)
        if multiprocessing.parent_process() is None:  # the trainer makes an environment to see its spaces
            return
        command = [sys.executable, "-S", "-c", "import signal; signal.pause()"]
        self._program = subprocess.Popen(command)
        if os.fork() == 0:
            signal.pause()
        if os.fork() == 0:
            os.setsid()
            time.sleep(_HOLDING_S)
            os._exit(0)


def kill_trainers(n_trainers: int, dice: random.Random) -> str:
    """Kills trainers with busy workers at any moment: no process is left of them, and no file."""
    for _ in range(n_trainers):
        with tempfile.TemporaryDirectory(prefix="t-") as folder, _trainer(_any_method(dice), folder) as trainer:
            if dice.random() < 0.8:  # or while it starts
                trainer.stdout.readline()
            time.sleep(dice.uniform(0.0, 0.1))
            trainer.kill()
            trainer.wait()
            _wait_until(lambda folder=folder: not list(_marked(folder)), "processes of a killed trainer")
            _wait_until(lambda folder=folder: not os.listdir(folder), "files of a killed trainer")
    return f"{n_trainers} trainers with 2 workers and their {3 * 4} processes"


def suspend_trainers(n_stops: int, dice: random.Random, step_timeout_s: float = 1.0) -> str:
    """Stops a trainer, alone (as Ctrl-Z does) or with all that belongs to it, for longer than a step may take."""
    with tempfile.TemporaryDirectory(prefix="t-") as folder:
        with _trainer(_any_method(dice), folder, step_timeout_s) as trainer:
            for number in range(n_stops):
                _next_number(trainer)
                this = psutil.Process(trainer.pid)
                stopped = [this, *(this.children(recursive=True) if number % 2 else ())]
                for process in stopped:
                    _signal(process, signal.SIGSTOP)
                time.sleep(dice.uniform(0.5, 2.0) * (step_timeout_s or 1.0))
                for process in stopped[::-1]:
                    _signal(process, signal.SIGCONT)
                before = _next_number(trainer)
                while _next_number(trainer) < before + 1000:
                    pass
        _wait_until(lambda: not list(_marked(folder)), "processes of a trainer")
    return f"{n_stops} times"


def marked_environment(folder: str) -> dict[str, str]:
    """By it are processes found, whoever started them."""
    root = Path(__file__).resolve().parent.parent
    return {**os.environ, _MARK: folder, "TMPDIR": folder, "PYTHONPATH": str(root)}


def _next_number(trainer: Any) -> int:
    line = trainer.stdout.readline()
    assert line, "a suspended trainer has ended"
    return int(line)


def _any_method(dice: random.Random) -> str:
    return dice.choice(["forkserver", "fork", "spawn"])


@contextlib.contextmanager
def _trainer(start_method: str, folder: str, step_timeout_s: float = 0.0) -> Iterator[Any]:
    command = [sys.executable, "-c", _TRAINER, start_method, str(step_timeout_s)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=marked_environment(folder)) as trainer:
        try:
            yield trainer
        finally:
            trainer.kill()


def _marked(folder: str) -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(_MARK) == folder and process.status() != psutil.STATUS_ZOMBIE:
                yield process


def _signal(process: psutil.Process, number: signal.Signals) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):  # one that held pipes
        process.send_signal(number)


def _wait_until(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + _PATIENCE_S
    while not condition():
        assert time.monotonic() < end, f"{what} are left"
        time.sleep(0.01)

"""What the pages about clusters call my_module: an environment whose steps wait, and how small trainings of it go."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

SOURCE = """
import time
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv

class SlowEnv(CartPoleEnv):
    def step(self, action):
        time.sleep(0.01)
        return super().step(action)

gymnasium.register("SlowEnv-v0", SlowEnv, max_episode_steps=200)
"""
N_ITERATIONS = 16
SETTINGS = [
    *("--eval-episodes", "1", "--n-workers", "0", "--n-steps", "32", "--minibatch-size", "64", "--n-epochs", "2"),
    *("--hidden-sizes", "8", "--checkpoint-interval", "1", "--iterations", str(N_ITERATIONS)),
]


def write_module(folder: Path) -> None:
    (folder / "my_module.py").write_text(SOURCE)


def n_iterations(run_folder: Path) -> int:
    """How many a run has written down."""
    metrics = run_folder / "metrics.jsonl"
    return len(metrics.read_text().splitlines()) if metrics.exists() else 0


def wait_for(condition: Callable[[], bool], told: Callable[[], str], timeout_s: float = 300.0) -> None:
    pause = threading.Event()
    for _ in range(int(timeout_s / 0.1)):
        if condition():
            return
        pause.wait(0.1)
    pytest.fail(f"it did not come: {told()}")

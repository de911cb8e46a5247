"""Kills workers at random while environments are stepped and a policy is trained, and accounts for every step.

    python -m tests.soak [--seconds 120]

Nothing may hang or get lost: each step that is reported was taken, or says that its worker was lost; the trainer counts
all of them; and processes, descriptors and memory are what they were.
"""

import argparse
import contextlib
import multiprocessing
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from functools import partial

import numpy as np
import psutil

from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.models.rl.algorithms.ppo_trainer import PPOTrainer
from ml_pipeline.models.rl.core.probe_envs import CountingEnv
from ml_pipeline.models.rl.core.vec_env import ParallelEnv
from ml_pipeline.models.rl.networks.policy import Policy

NUM_ENVS, NUM_WORKERS = 6, 3
SIGNALS = [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM]
PAUSE_S = (0.1, 0.6)  # between two kills
GROWTH_BYTES = 32 << 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=120.0, help="how long to go on (default: 120)")
    parser.add_argument("--seed", type=int, default=0, help="of the moments, signals and victims")
    args = parser.parse_args()
    dice = random.Random(args.seed)
    for soak in (step_and_account, train_and_count):
        print(f"{soak.__name__}: {soak(args.seconds / 2, dice)}", flush=True)
    assert multiprocessing.active_children() == []


def step_and_account(seconds: float, dice: random.Random) -> str:
    """Follows every environment's own count of steps, which each reward tells."""
    with _crew() as envs:
        envs.reset(seed=0)
        taken, n_steps, n_lost = np.zeros(NUM_ENVS, np.int64), 0, 0
        with _killing(envs, dice), _no_growth():
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                _, rewards, terminated, truncated, infos = envs.step(np.zeros(NUM_ENVS, np.int64))
                lost = infos.get("worker_restarted", np.zeros(NUM_ENVS, bool)).astype(bool)
                np.testing.assert_array_equal(rewards, np.where(lost, 0, taken + 1))
                assert truncated[lost].all()
                taken = np.where(terminated | truncated, 0, taken + 1)
                n_steps += NUM_ENVS
                n_lost += int(lost.sum())
        assert n_lost > 0
        return f"{n_steps:,} steps, {n_lost} of them lost with {envs.num_restarts} workers, all accounted for"


def train_and_count(seconds: float, dice: random.Random) -> str:
    """Trains meanwhile; the trainer counts every step, and its weights stay finite."""
    config = PPOConfig(n_steps=32, minibatch_size=64, n_epochs=1, hidden_sizes=(8,))
    with _crew() as envs:
        policy = Policy(envs.single_observation_space, envs.single_action_space, hidden_sizes=(8,), seed=0)
        trainer = PPOTrainer(envs, policy, config, total_iterations=1 << 20, seed=0)
        n_iterations = 0
        with _killing(envs, dice), _no_growth():
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                statistics = trainer.train_episode_vectorized()
                n_iterations += 1
                assert statistics.global_step == n_iterations * 32 * NUM_ENVS
        assert envs.num_restarts > 0
        assert all(bool(parameter.isfinite().all()) for parameter in policy.network.parameters())
        return f"{statistics.global_step:,} steps in {n_iterations:,} iterations, {envs.num_restarts} workers replaced"


def _crew() -> ParallelEnv:
    env_fns = [partial(CountingEnv, length=5 + index, spread=20) for index in range(NUM_ENVS)]
    return ParallelEnv(env_fns, num_workers=NUM_WORKERS, on_worker_failure="restart", step_timeout_s=30)


@contextlib.contextmanager
def _killing(envs: ParallelEnv, dice: random.Random) -> Iterator[None]:
    """A thread that ends workers at any moment: idle, in mid-step, or while they start."""
    stop = threading.Event()
    assert envs._pool is not None
    pool = envs._pool

    def kill_now_and_then() -> None:
        while not stop.wait(dice.uniform(*PAUSE_S)):
            with contextlib.suppress(OSError, ValueError, IndexError):  # it is being replaced at this moment
                pid = dice.choice(pool.processes).pid
                assert pid is not None
                os.kill(pid, dice.choice(SIGNALS))

    killer = threading.Thread(target=kill_now_and_then)
    killer.start()
    try:
        yield
    finally:
        stop.set()
        killer.join()


@contextlib.contextmanager
def _no_growth() -> Iterator[None]:
    this = psutil.Process()
    before = this.num_fds(), this.memory_info().rss
    yield
    descriptors, memory = this.num_fds(), this.memory_info().rss
    assert descriptors <= before[0] + 2 * NUM_WORKERS, f"{before[0]} descriptors became {descriptors}"
    assert memory <= before[1] + GROWTH_BYTES, f"{before[1] >> 20} MiB became {memory >> 20}"


if __name__ == "__main__":
    main()

"""Resets, opens, closes, kills and suspends, again and again, steps and trains meanwhile, accounts for every step.

    python -m tests.soak [--seconds 60]

Nothing may hang or get lost: each step that is reported was taken, or says that its worker was lost; the trainer counts
all of them; and processes, descriptors and memory are what they were. Faults from outside are in `tests.soak_faults`.
"""

import argparse
import contextlib
import gc
import multiprocessing
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Literal

import numpy as np
import psutil

from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.models.rl.algorithms.ppo_trainer import PPOTrainer
from ml_pipeline.models.rl.core.probe_envs import CountingEnv
from ml_pipeline.models.rl.core.vec_env import ParallelEnv
from tests.soak_faults import ParentEnv, kill_trainers, suspend_trainers

N_RESETS, N_CYCLES, N_KILLS = 10_000, 200, 1_000
N_KILLS_OF_PARENTS, N_TRAINERS, N_STOPS = 200, 50, 20
NUM_ENVS, NUM_WORKERS = 6, 3
SIGNALS = [signal.SIGKILL, signal.SIGSEGV, signal.SIGUSR2]
PAUSE_S = (0.0, 0.02)  # from a replaced worker's first step to the next kill
KILLED_STARTING = 0.1  # of the kills, how many hit a worker while it takes another's place
GROWTH_BYTES = 16 << 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to train (default: 60)")
    parser.add_argument("--seed", type=int, default=0, help="of the moments, signals and victims")
    args = parser.parse_args()
    dice = random.Random(args.seed)
    for soak in (
        partial(reset_often, N_RESETS),
        partial(open_and_close, N_CYCLES),
        partial(step_through_kills, N_KILLS, dice),
        partial(step_through_kills, N_KILLS_OF_PARENTS, dice, ParentEnv),
        partial(train_through_kills, args.seconds, dice),
        partial(kill_trainers, N_TRAINERS, dice),
        partial(suspend_trainers, N_STOPS, dice),
    ):
        begin = time.monotonic()
        print(f"{soak.func.__name__}: {soak()}, {time.monotonic() - begin:.0f} s", flush=True)
    assert multiprocessing.active_children() == []


def reset_often(n_resets: int) -> str:
    """Every other reset is of some environments only; each is the first of its seed."""
    with _restarting_envs() as envs:
        expected, _ = envs.reset(seed=0)
        some = np.arange(NUM_ENVS) % 2 == 0
        with _no_growth():
            for number in range(n_resets):
                mask = {"reset_mask": some} if number % 2 else None
                observations, _ = envs.reset(seed=0, options=mask)
                np.testing.assert_array_equal(observations, expected)
        return f"{n_resets:,} resets of {NUM_ENVS} environments"


def open_and_close(n_cycles: int, start_method: Literal["forkserver", "fork", "spawn"] = "forkserver") -> str:
    """Every third is dropped instead of closed, and every other one closed in mid-step."""

    def open_once(number: int) -> None:
        envs = ParallelEnv([CountingEnv] * NUM_ENVS, num_workers=NUM_WORKERS, start_method=start_method)
        envs.reset(seed=number)
        envs.step(np.zeros(NUM_ENVS, np.int64))
        if number % 3:
            envs.close(terminate=number % 2 == 0)

    open_once(0)  # starts the fork server, which stays
    with _no_growth():
        for number in range(n_cycles):
            open_once(number)
    return f"{n_cycles} times {NUM_WORKERS} workers"


def step_through_kills(n_kills: int, dice: random.Random, env_type: type[CountingEnv] = CountingEnv) -> str:
    """Follows every environment's own count of steps, which each reward tells."""
    with _restarting_envs(env_type) as envs:
        envs.reset(seed=0)
        taken, n_steps, n_lost = np.zeros(NUM_ENVS, np.int64), 0, 0
        with _no_growth(), _killing(envs, dice, n_kills) as killer:
            while killer.is_alive():
                _, rewards, terminated, truncated, infos = envs.step(np.zeros(NUM_ENVS, np.int64))
                lost = infos.get("worker_restarted", np.zeros(NUM_ENVS, bool)).astype(bool)
                np.testing.assert_array_equal(rewards, np.where(lost, 0, taken + 1))
                assert truncated[lost].all()
                taken = np.where(terminated | truncated, 0, taken + 1)
                n_steps += NUM_ENVS
                n_lost += int(lost.sum())
        assert envs.num_restarts == n_kills
        assert n_lost > 0
        return f"{n_steps:,} steps of {env_type.__name__}, {n_lost:,} lost with {n_kills:,} workers, all accounted for"


def train_through_kills(seconds: float, dice: random.Random) -> str:
    """Trains meanwhile; the trainer counts every step, and its weights stay finite."""
    config = PPOConfig(n_steps=32, minibatch_size=64, n_epochs=1, hidden_sizes=(8,))
    with _restarting_envs() as envs:
        trainer = PPOTrainer(envs, config, total_timesteps=1 << 40)
        n_iterations = 0
        trainer.train_episode_vectorized()  # what it allocates once is no growth
        with _no_growth():
            with _killing(envs, dice):
                end = time.monotonic() + seconds
                while time.monotonic() < end:
                    statistics = trainer.train_episode_vectorized()
                    n_iterations += 1
                    assert statistics.global_step == (n_iterations + 1) * 32 * NUM_ENVS
            envs.get_attr("length")  # finds whoever was killed last, and replaces it
        assert envs.num_restarts > 0
        assert all(bool(parameter.isfinite().all()) for parameter in trainer.policy.network.parameters())
        return f"{statistics.global_step:,} steps in {n_iterations:,} iterations, {envs.num_restarts} workers replaced"


def _restarting_envs(env_type: type[CountingEnv] = CountingEnv) -> ParallelEnv:
    env_fns = [partial(env_type, length=5 + index, spread=20) for index in range(NUM_ENVS)]
    return ParallelEnv(env_fns, num_workers=NUM_WORKERS, on_worker_failure="restart", step_timeout_s=30)


@contextlib.contextmanager
def _killing(envs: ParallelEnv, dice: random.Random, n_kills: int | None = None) -> Iterator[threading.Thread]:
    """A thread that ends workers at any moment, so often or until the block ends: idle, in mid-step, or starting."""
    stop = threading.Event()
    pool = envs._pool
    assert pool.restarts is not None

    def wait_until(condition: Callable[[], bool]) -> None:
        while not condition() and not stop.wait(1e-3):
            pass

    def all_have_stepped() -> bool:
        return not any(pool.restarts.in_a_row.values())

    def kill_now_and_then() -> None:
        victim, n_killed = 0, 0
        while n_killed != n_kills and not stop.is_set():
            if all_have_stepped():
                victim = dice.randrange(NUM_WORKERS)
            pid = pool.processes[victim].pid
            assert pid is not None
            os.kill(pid, signal.SIGTERM)  # workers leave it to the trainer: nothing is lost by it
            os.kill(pid, dice.choice(SIGNALS))
            n_killed += 1
            wait_until(lambda expected=n_killed: envs.num_restarts == expected)
            if n_killed % 2 or dice.random() > 2 * KILLED_STARTING:  # never twice: the pool gives up after three
                wait_until(all_have_stepped)
                stop.wait(dice.uniform(*PAUSE_S))

    killer = threading.Thread(target=kill_now_and_then)
    killer.start()
    try:
        yield killer
    finally:
        stop.set()
        killer.join()


@contextlib.contextmanager
def _no_growth() -> Iterator[None]:
    """As many descriptors and processes at the end, and nearly as much memory."""
    this = psutil.Process()

    def count() -> tuple[int, int]:
        gc.collect()
        return this.num_fds(), len(this.children(recursive=True))

    before, bytes_before = count(), this.memory_info().rss
    yield
    after, bytes_after = count(), this.memory_info().rss
    assert after == before, f"(descriptors, processes) were {before} and are {after}"
    assert bytes_after <= bytes_before + GROWTH_BYTES, f"{bytes_before >> 20} MiB became {bytes_after >> 20}"


if __name__ == "__main__":
    main()

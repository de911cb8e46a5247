"""Trains again and again and compares hashes of the weights: nothing but seed and configuration may change them.

    python -m tests.determinism

Each task is trained in one process without interruption; then with 1, 2 and 4 workers by every start method, while
other processes want every core, and interrupted at several steps, saved, and resumed with other workers than before.
Weights, optimizer and normalization must come out with the same bits.
"""

import hashlib
import io
import itertools
import multiprocessing
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch
from gymnasium import spaces

from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.models.rl.algorithms.ppo_trainer import PPOTrainer
from ml_pipeline.models.rl.core.vec_env import ParallelEnv, SerialEnv
from ml_pipeline.trading.settings import TradingConfig
from ml_pipeline.trading.task import TradingTask

NUM_ENVS, N_ITERATIONS = 4, 3
CONFIG = PPOConfig(n_steps=32, minibatch_size=50, n_epochs=2, hidden_sizes=(16,), learning_rate_schedule="linear")
N_STEPS = CONFIG.n_steps * N_ITERATIONS
STOPS = (1, 31, 32, 33, 70, N_STEPS - 1)
"""Vector steps in which a run is interrupted: at the ends of a rollout, and inside of one."""

EnvFns = Sequence[Callable[[], gymnasium.Env]]


class Job(NamedTuple):
    """What is trained, and how."""

    env_fns: EnvFns
    config: PPOConfig = CONFIG


class Workers(NamedTuple):
    """Who steps the environments."""

    num_workers: int | None
    start_method: str | None = None

    def make(self, env_fns: EnvFns) -> Any:
        if self.num_workers is None:
            return SerialEnv(env_fns)
        return ParallelEnv(env_fns, num_workers=self.num_workers, start_method=self.start_method, copy=False)

    def __str__(self) -> str:
        return "serial" if self.num_workers is None else f"{self.num_workers} x {self.start_method}"


SERIAL = Workers(None)
CHOICES = [Workers(n, method) for n in (1, 2, 4) for method in multiprocessing.get_all_start_methods()]


def jobs() -> dict[str, Job]:
    """By name: choices, numbers, a market, and a policy of every other kind: memory, masks, a Dict, shared layers."""
    general = replace(CONFIG, memory="gru", memory_size=8, share_layers=True, normalize_values=True)
    return {
        "CartPole-v1": Job([lambda: gymnasium.make("CartPole-v1")] * NUM_ENVS),
        "Pendulum-v1": Job([lambda: gymnasium.make("Pendulum-v1")] * NUM_ENVS),
        "trading": Job(TradingTask(TradingConfig()).train_env_fns(NUM_ENVS)),
        "CartPole-v1 by memory and masks": Job([_masked_cartpole] * NUM_ENVS, general),
    }


def _masked_cartpole() -> gymnasium.Env:
    """Pushing on towards the near end of the track is forbidden."""
    env = gymnasium.make("CartPole-v1")
    return gymnasium.wrappers.TransformObservation(
        env,
        lambda seen: {"seen": seen, "action_mask": np.array([seen[0] > -0.5, seen[0] < 0.5], np.int8)},
        spaces.Dict(seen=env.observation_space, action_mask=spaces.MultiBinary(2)),
    )


def trainer_for(envs: Any, config: PPOConfig) -> PPOTrainer:
    return PPOTrainer(envs, config, total_timesteps=N_ITERATIONS * envs.num_envs * config.n_steps, seed=3)


def trained(job: Job, workers: Workers) -> str:
    """The hash of an uninterrupted run."""
    with closing(workers.make(job.env_fns)) as envs:
        trainer = trainer_for(envs, job.config)
        trainer.train()
        assert trainer.finished
        return hash_of(trainer)


@contextmanager
def every_core_wanted() -> Iterator[None]:
    """Within the block other processes compute on every core without a pause."""
    command = [sys.executable, "-c", "while True: pass"]
    processes = [subprocess.Popen(command) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def resumed(job: Job, stop: int, before: Workers, after: Workers) -> str:
    """The hash of a run that is interrupted in vector step `stop`, and continued with other workers."""
    file = io.BytesIO()
    with closing(before.make(job.env_fns)) as envs:
        trainer = trainer_for(envs, job.config)
        _stop_in(stop, trainer, envs)
        trainer.train()
        assert not trainer.finished
        torch.save(trainer.state_dict(), file)
    file.seek(0)
    with closing(after.make(job.env_fns)) as envs:
        trainer = trainer_for(envs, job.config)
        trainer.load_state_dict(torch.load(file, weights_only=False))
        trainer.train()
        assert trainer.finished
        return hash_of(trainer)


def hash_of(trainer: PPOTrainer) -> str:
    state = trainer.state_dict()
    digest = hashlib.sha256()
    for leaf in _leaves([state["policy"], state["update"], state["collector"]["reward_scaler"]]):
        digest.update(leaf.numpy().tobytes() if isinstance(leaf, torch.Tensor) else repr(leaf).encode())
    return digest.hexdigest()[:16]


def differing(name: str, job: Job) -> list[str]:
    """What the runs of one job were whose weights differ from those of the serial one."""
    expected = trained(job, SERIAL)
    runs = [(str(workers), trained(job, workers)) for workers in CHOICES]
    with every_core_wanted():
        runs += [(f"{workers} on a loaded machine", trained(job, workers)) for workers in (SERIAL, CHOICES[3])]
    others = itertools.cycle([SERIAL, *CHOICES])
    for stop in STOPS:
        before, after = next(others), next(others)
        runs.append((f"{before}, stopped in step {stop}, then {after}", resumed(job, stop, before, after)))
    wrong = [f"{name}: {run} gives {found}, not {expected}" for run, found in runs if found != expected]
    print(f"{name}: {expected} in {len(runs) + 1 - len(wrong)} of {len(runs) + 1} runs", flush=True)
    return wrong


def _stop_in(n: int, trainer: PPOTrainer, envs: Any) -> None:
    steps, step = itertools.count(1), envs.step

    def counting(actions: Any) -> Any:
        if next(steps) == n:
            trainer.request_stop()
        return step(actions)

    envs.step = counting


def _leaves(tree: Any) -> Iterator[Any]:
    if isinstance(tree, dict):
        for key in sorted(tree, key=str):
            yield key
            yield from _leaves(tree[key])
    elif isinstance(tree, list | tuple):
        for part in tree:
            yield from _leaves(part)
    else:
        yield tree


def main() -> int:
    """Return 0 if every run of every job gives the same bits."""
    warnings.filterwarnings("ignore", message=".*fork")
    wrong = [sentence for name, job in jobs().items() for sentence in differing(name, job)]
    print("\n".join(wrong) or "Every run gives the same bits.")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

"""How many workers pay: measures a step on a scratch environment, and compares what each count would take.

The model has three times: what a step computes, what it waits, and what waking a worker costs. Results never depend on
the choice, only speed does.
"""

import math
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import gymnasium
import numpy as np

# Measured on 2 cores at 2.5 GHz, in s: a vector step's fixed cost with workers, and what each worker adds to it.
_WAKE_S = 12e-6
_WAKE_EACH_S = 8e-6


@dataclass(frozen=True, slots=True)
class StepCost:
    """What one step of one environment takes: computing, and waiting (sleep, network, another process), in s."""

    cpu_s: float
    wait_s: float


def measure_step(env: gymnasium.Env, *, budget_s: float = 0.5) -> StepCost | None:
    """The cost of a step of `env`, which is stepped with random actions; None where it refuses them.

    Takes `budget_s`, or one reset and step where these take longer. Leaves the global generators as they were.
    """
    end = time.perf_counter() + budget_s
    costs: list[tuple[float, float]] = []
    with _global_generators_untouched():
        try:
            env.action_space.seed(0)
            env.reset(seed=0)
            while time.perf_counter() < end and len(costs) < 1000:
                action = env.action_space.sample()
                wall, cpu = time.perf_counter(), time.thread_time()
                _, _, terminated, truncated, _ = env.step(action)
                cpu, wall = time.thread_time() - cpu, time.perf_counter() - wall
                costs.append((cpu, max(0.0, wall - cpu)))
                if terminated or truncated:
                    env.reset()
        except Exception:  # random actions may be illegal in it; then nothing is known
            return None
    cpu_s, wait_s = np.mean(np.sort(np.array(costs), axis=0)[: max(1, math.ceil(0.95 * len(costs)))], axis=0)
    return StepCost(float(cpu_s), float(wait_s))


def choose_workers(cost: StepCost | None, num_envs: int, cores: float) -> int:
    """The number of workers with the shortest expected vector step; 0 is stepping in the trainer's process.

    >>> choose_workers(StepCost(cpu_s=2e-6, wait_s=0), num_envs=8, cores=2)
    0
    >>> choose_workers(StepCost(cpu_s=1e-3, wait_s=0), num_envs=8, cores=2)
    2
    >>> choose_workers(StepCost(cpu_s=1e-5, wait_s=2e-3), num_envs=8, cores=2)
    8
    """
    whole_cores = max(1, math.floor(cores))
    if cost is None:
        return 0 if whole_cores == 1 else min(num_envs, whole_cores)
    counts = {min(num_envs, n) for n in (whole_cores, 2, 4, 8, 16, 32, 64, num_envs) if n > 1}
    return min([0, *sorted(counts)], key=lambda n: _vector_step_s(cost, num_envs, n, cores))


def _vector_step_s(cost: StepCost, num_envs: int, n_workers: int, cores: float) -> float:
    """The time of a vector step: bounded by the longest worker, and by the processors that all share."""
    step_s = cost.cpu_s + cost.wait_s
    if n_workers == 0:
        return num_envs * step_s
    longest_s = math.ceil(num_envs / n_workers) * step_s
    shared_s = num_envs * cost.cpu_s / min(cores, n_workers)
    return max(longest_s, shared_s) + _WAKE_S + n_workers * _WAKE_EACH_S


@contextmanager
def _global_generators_untouched() -> Iterator[None]:
    python_state, numpy_state = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)

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
from pathlib import Path

import gymnasium
import numpy as np

# Measured on 2 cores at 2.5 GHz, in s: a vector step's fixed cost with workers, and what each worker adds to it.
_WAKE_S = 12e-6
_WAKE_EACH_S = 8e-6
_ENOUGH_S, _ENOUGH_STEPS = 0.1, 100  # a measurement may end early once it has lasted for both


@dataclass(frozen=True, slots=True)
class StepCost:
    """What one step of one environment takes: computing, and waiting (sleep, network, another process), in s."""

    cpu_s: float
    wait_s: float


def measure_step(env: gymnasium.Env, *, budget_s: float = 0.5) -> StepCost | None:
    """The cost of a step of `env`, resets included; None where it refuses random actions.

    Takes at most `budget_s`, or one reset and step where these take longer. Leaves the global generators as they were.
    """
    with _global_generators_untouched():
        try:
            env.action_space.seed(0)
            actions = [env.action_space.sample() for _ in range(32)]
            env.reset(seed=0)
            n_steps, begin, before = 0, time.perf_counter(), _Clocks.now()
            while True:
                _, _, terminated, truncated, _ = env.step(actions[n_steps % len(actions)])
                if terminated or truncated:
                    env.reset()
                n_steps += 1
                elapsed_s = time.perf_counter() - begin
                if elapsed_s > budget_s or (n_steps >= _ENOUGH_STEPS and elapsed_s > _ENOUGH_S):
                    break
            after = _Clocks.now()
        except Exception:  # random actions may be illegal in it; then nothing is known
            return None
    cpu_s = after.cpu_s - before.cpu_s
    wait_s = max(0.0, after.wall_s - before.wall_s - cpu_s - (after.queued_s - before.queued_s))
    return StepCost(cpu_s / n_steps, wait_s / n_steps)


def choose_workers(cost: StepCost | None, num_envs: int, cores: float) -> int:
    """The fewest workers whose expected vector step is within 3 % of the shortest; 0 steps in the trainer's process.

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
    expected_s = {n: _vector_step_s(cost, num_envs, n, cores) for n in [0, *sorted(counts)]}
    return next(n for n, step_s in expected_s.items() if step_s <= 1.03 * min(expected_s.values()))


@dataclass(frozen=True, slots=True)
class _Clocks:
    """This thread's time: on the wall, on a processor, and queued for one that others had (Linux tells that apart)."""

    wall_s: float
    cpu_s: float
    queued_s: float

    @staticmethod
    def now() -> "_Clocks":
        try:
            queued_s = int(Path("/proc/thread-self/schedstat").read_text().split()[1]) * 1e-9
        except (OSError, IndexError, ValueError):
            queued_s = 0.0
        return _Clocks(time.perf_counter(), time.thread_time(), queued_s)


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

"""Chooses who steps a batch: measures a step of a scratch environment, and estimates what each division would take.

The estimate has three measured times: computing in a step, waiting in a step, and waking a worker. The choice changes
speed, never results.
"""

import math
import os
import statistics
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import gymnasium

from ml_pipeline.runtime.action_masks import reported_mask
from ml_pipeline.runtime.global_random import global_generators_untouched
from ml_pipeline.runtime.random_actions import random_action

# What each worker adds to a vector step: two system calls. What it adds where neither end sleeps: those of both ends.
# Measured on 2 cores at 2.5 GHz.
_WAKE_EACH_S, _SPIN_EACH_S = 8e-6, 12e-6
_NEARLY = 0.35  # of a core, which others may use now and then
_LONGEST_SHARE_S = 0.25  # of a step in the trainer's process, which does not notice meanwhile that a worker died
_COUNTS = (2, 4, 8, 16, 32, 64, 128)  # beyond, descriptors and memory run short before time is won
_ROUND_TRIPS = 50
_ENOUGH_S, _ENOUGH_STEPS = 0.1, 100  # a measurement may end early once it has lasted for both


@dataclass(frozen=True, slots=True)
class StepCost:
    """What one step of one environment takes: computing, and waiting (sleep, network, another process), in s."""

    cpu_s: float
    wait_s: float


def measure_step(env: gymnasium.Env, *, budget_s: float = 0.5) -> StepCost | None:
    """The cost of a step of `env`, resets included; None if it refuses random actions that its masks allow.

    Takes at most `budget_s`, or one reset and step where these take longer. Leaves the global generators as they were.
    """
    with global_generators_untouched():
        try:
            env.action_space.seed(0)
            actions = [env.action_space.sample() for _ in range(32)]
            observation, info = env.reset(seed=0)
            is_masked = reported_mask(env, observation, info) is not None
            n_steps, choosing_s, begin, before = 0, 0.0, time.perf_counter(), _Clocks.now()
            while True:
                action = actions[n_steps % len(actions)]
                if is_masked:
                    began_s = time.thread_time()
                    action = random_action(env.action_space, reported_mask(env, observation, info))
                    choosing_s += time.thread_time() - began_s
                observation, _, terminated, truncated, info = env.step(action)
                if terminated or truncated:
                    observation, info = env.reset()
                n_steps += 1
                elapsed_s = time.perf_counter() - begin
                if elapsed_s > budget_s or (n_steps >= _ENOUGH_STEPS and elapsed_s > _ENOUGH_S):
                    break
            after = _Clocks.now()
        except Exception:  # random actions may be illegal in it; then nothing is known
            return None
    cpu_s = after.cpu_s - before.cpu_s
    wait_s = max(0.0, after.wall_s - before.wall_s - cpu_s - (after.queued_s - before.queued_s))
    return StepCost((cpu_s - choosing_s) / n_steps, wait_s / n_steps)


def measure_wake() -> float:
    """The time from waking a sleeper to its reply, in s: two wake-ups, the fixed cost of a vector step with workers.

    It depends on the machine more than on anything: 3 µs from a core to itself, 60 to 80 µs between two cores of a
    virtual machine, where a core that sleeps is handed back. Takes some milliseconds.
    """
    there, back = os.pipe(), os.pipe()

    def reply() -> None:
        _stay_on_core(-1)  # the scheduler would have it answer on the core that asks
        while os.read(there[0], 1):
            os.write(back[1], b"x")

    sleeper = threading.Thread(target=reply, daemon=True)
    sleeper.start()
    before = _stay_on_core(0)
    try:
        times_s = []
        for _ in range(_ROUND_TRIPS):
            begin = time.perf_counter()
            os.write(there[1], b"x")
            os.read(back[0], 1)
            times_s.append(time.perf_counter() - begin)
    finally:
        if before:
            os.sched_setaffinity(0, before)
        os.close(there[1])  # its read then returns nothing, and it ends
        sleeper.join()
        for descriptor in (there[0], *back):
            os.close(descriptor)
    return statistics.median(times_s)


@dataclass(frozen=True, slots=True)
class Division:
    """Who steps a batch: so many workers, and the trainer's process as well where `steps_here`."""

    n_workers: int
    steps_here: bool


HERE = Division(n_workers=0, steps_here=True)


def choose_division(cost: StepCost | None, num_envs: int, cores: float, *, wake_s: float) -> Division:
    """The division with the fewest workers whose expected vector step is within 3 % of the shortest.

    cores: how many are free for it; 0.65 of a core counts as one.

    >>> choose_division(StepCost(cpu_s=1e-6, wait_s=0), num_envs=8, cores=2, wake_s=6e-5)
    Division(n_workers=0, steps_here=True)
    >>> choose_division(StepCost(cpu_s=1e-4, wait_s=0), num_envs=8, cores=2, wake_s=6e-5)
    Division(n_workers=1, steps_here=True)
    >>> choose_division(StepCost(cpu_s=1e-5, wait_s=2e-3), num_envs=8, cores=2, wake_s=6e-5)
    Division(n_workers=8, steps_here=False)
    """
    whole = whole_cores(cores)
    if cost is None:
        return HERE if whole == 1 else Division(min(num_envs, whole), steps_here=False)
    expected_s = {
        division: expected_step_s(division, cost, num_envs, cores, wake_s=wake_s)
        for division in candidates(cost, num_envs, cores)
    }
    return fewest_of_the_fastest(expected_s)


def candidates(cost: StepCost, num_envs: int, cores: float) -> list[Division]:
    """The divisions that may be the fastest, those with the fewest workers first."""
    whole = whole_cores(cores)
    found, parties = [HERE], min(whole, num_envs)
    if parties > 1 and math.ceil(num_envs / parties) * (cost.cpu_s + cost.wait_s) < _LONGEST_SHARE_S:
        found.append(Division(parties - 1, steps_here=True))
    counts = {min(num_envs, n) for n in (whole, *_COUNTS) if n > 1}
    return [*found, *(Division(n_workers, steps_here=False) for n_workers in sorted(counts))]


def expected_step_s(division: Division, cost: StepCost, num_envs: int, cores: float, *, wake_s: float) -> float:
    """How long a vector step should take, in s, where so many cores are free."""
    if division == HERE:
        return num_envs * (cost.cpu_s + cost.wait_s)
    parties = division.n_workers + division.steps_here
    if division.steps_here and parties <= whole_cores(cores):
        return math.ceil(num_envs / parties) * (cost.cpu_s + cost.wait_s) + division.n_workers * _SPIN_EACH_S
    return wake_s + _vector_step_s(cost, num_envs, parties, cores)


def fewest_of_the_fastest(expected_s: Mapping[Division, float]) -> Division:
    """The first division within 3 % of the shortest step."""
    return next(division for division, step_s in expected_s.items() if step_s <= 1.03 * min(expected_s.values()))


def whole_cores(cores: float) -> int:
    """How many processes may compute side by side; 0.65 of a core counts as one.

    >>> whole_cores(1.6), whole_cores(1.65), whole_cores(0.2)
    (1, 2, 1)
    """
    return max(1, math.floor(cores + _NEARLY))


def expected_speedup(cost: StepCost, num_envs: int, division: Division, cores: float, *, wake_s: float) -> float:
    """How many times as fast as this process alone a division steps a batch, by the estimate of `choose_division`.

    >>> expected_speedup(StepCost(cpu_s=1e-3, wait_s=0), 8, HERE, 2, wake_s=6e-5)
    1.0
    >>> round(expected_speedup(StepCost(cpu_s=1e-3, wait_s=0), 8, Division(2, steps_here=False), 2, wake_s=6e-5), 1)
    2.0
    """
    alone_s, divided_s = (expected_step_s(each, cost, num_envs, cores, wake_s=wake_s) for each in (HERE, division))
    return alone_s / divided_s


@dataclass(frozen=True, slots=True)
class _Clocks:
    """This thread's time: on the wall, on a processor, and queued for one that others had (known on Linux only)."""

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


def _stay_on_core(which: int) -> set[int]:
    """Keeps this thread on one of its cores; returns those it had, none if the system cannot."""
    if not hasattr(os, "sched_setaffinity"):
        return set()
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {sorted(before)[which]})
    return before


def _vector_step_s(cost: StepCost, num_envs: int, n_workers: int, cores: float) -> float:
    """The time of a vector step of awake workers: bounded by the longest, and by the processors that all share."""
    longest_s = math.ceil(num_envs / n_workers) * (cost.cpu_s + cost.wait_s)
    shared_s = num_envs * cost.cpu_s / min(cores, n_workers)
    return max(longest_s, shared_s) + n_workers * _WAKE_EACH_S

"""Chooses which processes step a batch: measures a step of a scratch environment, and estimates each division's time.

The estimate uses three measured times: computing in a step, waiting in a step, and waking a worker. The choice changes
speed, never results.

During training, `DynamicChoice` decides whether to change the workers, without a clock or I/O. A move must be worth it:
several looks in a row agree, it gains a tenth of all time, and the gain repays the cost of the move several times.
Workers beyond the free cores are removed even without a gain. If steps then take longer, the move is undone, and is not
tried again until the load of the machine changes. Each undone move doubles the wait for the next one.
"""

import math
import os
import statistics
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import gymnasium

from ml_pipeline.runtime.acting import random_action, reported_mask
from ml_pipeline.runtime.global_random import global_generators_untouched

# The time that each worker adds to a vector step: two system calls; if neither end sleeps, the system calls of both
# ends. Measured on 2 cores at 2.5 GHz.
_WAKE_EACH_S, _SPIN_EACH_S = 8e-6, 12e-6
_NEARLY = 0.35  # of a core, which other processes may use at times
_LONGEST_SHARE_S = 0.25  # of a step in the trainer's process, which meanwhile does not notice a worker's death
_COUNTS = (2, 4, 8, 16, 32, 64, 128)  # larger numbers exhaust file descriptors and memory before they save time
_ROUND_TRIPS = 50
_ENOUGH_S, _ENOUGH_STEPS = 0.1, 100  # a measurement may end once it has reached both
# For changes of the workers during training.
_LEAST_GAIN = 0.1  # of the whole time, acting and learning included
_PAYS_BACK = 3.0  # times the cost of the move
_HORIZON_S = 120.0  # within which the move must pay back, since the load may change later
_REST = 20.0  # times the duration of the last move, so that moves take less than 5 % of the time
_OTHER_LOAD = 0.5  # of a core: a larger difference is a change of the machine's load
_SLOWER = 1.05  # a move is undone if steps take this many times as long as before


@dataclass(frozen=True, slots=True)
class StepCost:
    """The time of one step of one environment, in s: computing, and waiting (sleep, network, another process)."""

    cpu_s: float
    wait_s: float


def measure_step(env: gymnasium.Env, *, budget_s: float = 0.5) -> StepCost | None:
    """The cost of a step of `env`, including resets; None if it raises on random valid actions.

    Takes at most `budget_s`, or one reset and step if they take longer. The global generators are unchanged afterwards.
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
        except Exception:  # random actions may be illegal in it
            return None
    cpu_s = after.cpu_s - before.cpu_s
    wait_s = max(0.0, after.wall_s - before.wall_s - cpu_s - (after.queued_s - before.queued_s))
    return StepCost((cpu_s - choosing_s) / n_steps, wait_s / n_steps)


def measure_wake() -> float:
    """The time from waking a sleeper to its reply, in s: two wake-ups, the fixed cost of a vector step with workers.

    It depends mostly on the machine: 3 µs from a core to itself, 60 to 80 µs between two cores of a virtual machine,
    which gives up a sleeping core. Takes some milliseconds.
    """
    there, back = os.pipe(), os.pipe()

    def reply() -> None:
        _stay_on_core(-1)  # else the scheduler would run it on the core of the caller
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
    """The processes that step a batch: n_workers, and the trainer's process if `steps_here`."""

    n_workers: int
    steps_here: bool


HERE = Division(n_workers=0, steps_here=True)


def choose_division(cost: StepCost | None, num_envs: int, cores: float, *, wake_s: float) -> Division:
    """The division with the fewest workers whose expected vector step is within 3 % of the shortest.

    cores: the number of free cores; 0.65 of a core counts as one.

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
    """The divisions that may be the fastest, in order of the number of workers."""
    whole = whole_cores(cores)
    found, parties = [HERE], min(whole, num_envs)
    if parties > 1 and math.ceil(num_envs / parties) * (cost.cpu_s + cost.wait_s) < _LONGEST_SHARE_S:
        found.append(Division(parties - 1, steps_here=True))
    counts = {min(num_envs, n) for n in (whole, *_COUNTS) if n > 1}
    return [*found, *(Division(n_workers, steps_here=False) for n_workers in sorted(counts))]


def expected_step_s(division: Division, cost: StepCost, num_envs: int, cores: float, *, wake_s: float) -> float:
    """The expected time of a vector step with this number of free cores, in s."""
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
    """The number of processes that can compute in parallel; 0.65 of a core counts as one.

    >>> whole_cores(1.6), whole_cores(1.65), whole_cores(0.2)
    (1, 2, 1)
    """
    return max(1, math.floor(cores + _NEARLY))


def expected_speedup(cost: StepCost, num_envs: int, division: Division, cores: float, *, wake_s: float) -> float:
    """The speedup of a division over this process alone, by the estimate of `choose_division`.

    >>> expected_speedup(StepCost(cpu_s=1e-3, wait_s=0), 8, HERE, 2, wake_s=6e-5)
    1.0
    >>> round(expected_speedup(StepCost(cpu_s=1e-3, wait_s=0), 8, Division(2, steps_here=False), 2, wake_s=6e-5), 1)
    2.0
    """
    alone_s, divided_s = (expected_step_s(each, cost, num_envs, cores, wake_s=wake_s) for each in (HERE, division))
    return alone_s / divided_s


@dataclass(frozen=True, slots=True)
class _Clocks:
    """This thread's wall time, CPU time, and time in the queue for a busy core (known on Linux only)."""

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
    """Pins this thread to one of its cores; returns its previous cores, none if the system cannot pin."""
    if not hasattr(os, "sched_setaffinity"):
        return set()
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {sorted(before)[which]})
    return before


def _vector_step_s(cost: StepCost, num_envs: int, n_workers: int, cores: float) -> float:
    """The time of a vector step of awake workers: limited by the slowest worker, and by the shared cores."""
    longest_s = math.ceil(num_envs / n_workers) * (cost.cpu_s + cost.wait_s)
    shared_s = num_envs * cost.cpu_s / min(cores, n_workers)
    return max(longest_s, shared_s) + n_workers * _WAKE_EACH_S


@dataclass(frozen=True, kw_only=True)
class Look:
    """The measurements since the last look, under one division.

    step_s: mean time of a vector step, including waiting. n_steps: the number of steps. wall_s: the total time since
    the last look. free_cores: cores that are idle or used by this process and its workers. left_s: until training ends.
    """

    division: Division
    num_envs: int
    step_s: float
    n_steps: int
    wall_s: float
    free_cores: float
    left_s: float


@dataclass(frozen=True, kw_only=True)
class Move:
    """Another division, and the reason, as the end of a sentence."""

    division: Division
    reason: str


class DynamicChoice:
    """Takes one look after another, and decides when to move to another division.

    cost: of a step of one environment; None if it cannot be measured: steps then count as computing alone.
    wake_s: of waking a worker. in_workers_only: the trainer's process must not step environments, since they may hang
    or kill it. patience: the number of looks in a row that must agree. move_s: the expected time of the first move.
    """

    def __init__(
        self,
        cost: StepCost | None,
        *,
        wake_s: float,
        in_workers_only: bool = False,
        patience: int = 3,
        move_s: float = 0.5,
    ) -> None:
        self._cost = cost
        self._wake_s = wake_s
        self._in_workers_only = in_workers_only
        self._patience = patience
        self._move_s = move_s
        self._wanted: Division | None = None
        self._agreed = 0
        self._rested_s = math.inf  # since the last move
        self._times_back = 0
        self._before: Look | None = None  # the last look before the latest move, until that move is judged
        self._in_vain: dict[Division, float] = {}  # divisions that were no faster, with the free cores then

    def next_move(self, look: Look) -> Move | None:
        """The move to make now; None to stay."""
        self._rested_s += look.wall_s
        before, self._before = self._before, None
        if before is not None and self._was_in_vain(before, look):
            return Move(division=before.division, reason="steps took longer")
        expected = self._expected(look)
        best = fewest_of_the_fastest(expected)
        gain = (look.step_s - expected[best]) * look.n_steps / look.wall_s  # seconds per second
        gives_back = _parties(best) < _parties(look.division) > whole_cores(look.free_cores)
        if best == look.division or not (gain >= _LEAST_GAIN or (gives_back and gain >= 0)):
            self._wanted, self._agreed = None, 0
            return None
        self._agreed = self._agreed + 1 if best == self._wanted else 1
        self._wanted = best
        pays = gives_back or gain * min(look.left_s, _HORIZON_S) >= _PAYS_BACK * self._move_s
        rested = self._rested_s >= _REST * self._move_s * 2**self._times_back
        if self._agreed < self._patience or not pays or not rested:
            return None
        self._before = look
        return Move(division=best, reason=_reason(look, best, expected[best]))

    def moved(self, seconds: float) -> None:
        """Records that a move was made and took this long."""
        self._move_s, self._rested_s = seconds, 0.0
        self._wanted, self._agreed = None, 0

    def refused(self, move: Move, look: Look) -> None:
        """Records that a move could not be made."""
        self._before = None
        self._give_up(move.division, look)

    def _was_in_vain(self, before: Look, look: Look) -> bool:
        """Whether steps take longer than before the move, under the same load."""
        if look.num_envs != before.num_envs or abs(look.free_cores - before.free_cores) >= _OTHER_LOAD:
            return False
        if look.step_s < _SLOWER * before.step_s:
            self._times_back = 0
            return False
        self._give_up(look.division, look)
        return True

    def _give_up(self, division: Division, look: Look) -> None:
        self._in_vain[division] = look.free_cores
        self._times_back += 1
        self._rested_s = 0.0
        self._wanted, self._agreed = None, 0

    def _expected(self, look: Look) -> dict[Division, float]:
        """The expected step time of each division, in s: the model's times, scaled to the measured step."""
        cost = self._cost
        if cost is None:
            cost = StepCost(cpu_s=look.step_s / math.ceil(look.num_envs / _parties(look.division)), wait_s=0.0)
        divisions = candidates(cost, look.num_envs, look.free_cores)
        if self._in_workers_only:
            n_workers = min(look.num_envs, whole_cores(look.free_cores))
            divisions = [Division(n_workers, steps_here=False)]
        self._in_vain = {
            each: free for each, free in self._in_vain.items() if abs(look.free_cores - free) < _OTHER_LOAD
        }
        modelled = {
            each: expected_step_s(each, cost, look.num_envs, look.free_cores, wake_s=self._wake_s)
            for each in dict.fromkeys([look.division, *divisions])
        }
        scale = look.step_s / modelled[look.division]
        may_be = {look.division, *modelled.keys() - self._in_vain.keys()}
        return {each: scale * modelled[each] for each in _by_size(may_be)}


def _parties(division: Division) -> int:
    """The number of processes that step environments."""
    return division.n_workers + division.steps_here


def _by_size(divisions: Iterable[Division]) -> list[Division]:
    return sorted(divisions, key=lambda each: (each.n_workers, each.steps_here))


def _reason(look: Look, division: Division, step_s: float) -> str:
    n_now, n_then = (each.n_workers + (each.steps_here and each != HERE) for each in (look.division, division))
    if n_then < n_now and look.free_cores < n_now:
        return f"other processes use the machine, and {look.free_cores:.1f} cores are left for this run"
    if n_then > n_now and n_then <= whole_cores(look.free_cores):
        return "the machine has a free core" if n_then <= 2 else f"the machine has {look.free_cores:.1f} free cores"
    return f"a step of all environments should take {1e3 * step_s:.3g} ms instead of {1e3 * look.step_s:.3g} ms"

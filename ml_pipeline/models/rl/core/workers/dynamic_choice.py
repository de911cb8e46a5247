"""Decides, while a training goes on, whether other workers would step its environments faster: no clock, no I/O.

A move has to be worth it: several looks in a row want the same, a tenth of all time is gained, and the gain pays for
the move several times over. Processes beyond the cores that others leave go even if that gains nothing. Where steps
then take longer, a move is taken back, and not tried again until the load of the machine has changed. Each time, the
wait for the next move doubles.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from ml_pipeline.models.rl.core.workers.choice import (
    HERE,
    Division,
    StepCost,
    candidates,
    expected_step_s,
    fewest_of_the_fastest,
    whole_cores,
)

_LEAST_GAIN = 0.1  # of the whole time, acting and learning included
_PAYS_BACK = 3.0  # times what the move costs
_HORIZON_S = 120.0  # within which it pays back, since nobody knows the load of later
_REST = 20.0  # times what the last move took: so moves take less than 5 % of the time
_OTHER_LOAD = 0.5  # of a core, by which the load of the machine has changed
_SLOWER = 1.05  # times as long as before the move, from which on it is taken back


@dataclass(frozen=True, kw_only=True)
class Look:
    """What was measured since the last look, under one division.

    step_s: of a vector step on average, waiting included. n_steps: how many there were. wall_s: since the last look,
    everything included. free_cores: idle, or used by this process and its workers. left_s: until training ends.
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
    """Another division, and why, in words that may end a sentence."""

    division: Division
    reason: str


class DynamicChoice:
    """Is shown look after look, and says when to move where.

    cost: of a step of one environment; None where it cannot be measured: steps then count as computing alone.
    wake_s: of waking a worker. in_workers_only: the trainer's process must not step environments, which may hang or
    kill it. patience: how many looks in a row have to agree. move_s: what the first move is expected to take.
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
        self._before: Look | None = None  # the last look before a move that is on trial
        self._in_vain: dict[Division, float] = {}  # what was tried, with the free cores then

    def next_move(self, look: Look) -> Move | None:
        """Where to move now; None to stay."""
        self._rested_s += look.wall_s
        before, self._before = self._before, None
        if before is not None and self._was_in_vain(before, look):
            return Move(division=before.division, reason="steps took longer")
        expected = self._expected(look)
        best = fewest_of_the_fastest(expected)
        gain = (look.step_s - expected[best]) * look.n_steps / look.wall_s  # seconds a second
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
        """A move was made, and took so long."""
        self._move_s, self._rested_s = seconds, 0.0
        self._wanted, self._agreed = None, 0

    def refused(self, move: Move, look: Look) -> None:
        """A move could not be made."""
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
        """Of each division the time of a step, in s: the model says how it compares with what is measured."""
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
    """How many processes step environments."""
    return division.n_workers + division.steps_here


def _by_size(divisions: Iterable[Division]) -> list[Division]:
    return sorted(divisions, key=lambda each: (each.n_workers, each.steps_here))


def _reason(look: Look, division: Division, step_s: float) -> str:
    n_now, n_then = (each.n_workers + (each.steps_here and each != HERE) for each in (look.division, division))
    if n_then < n_now and look.free_cores < n_now:
        return f"others use the machine, which has {look.free_cores:.1f} cores left for this run"
    if n_then > n_now and n_then <= whole_cores(look.free_cores):
        return "the machine has a free core" if n_then <= 2 else f"the machine has {look.free_cores:.1f} free cores"
    return f"a step of all environments should take {1e3 * step_s:.3g} ms instead of {1e3 * look.step_s:.3g} ms"

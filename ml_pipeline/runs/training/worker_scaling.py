"""Moves the environments of a run to other workers between two iterations: on request, or by the machine's load.

It changes speed, never results. `models/rl/core/workers/choice.py` decides which number is best.
"""

import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence

import psutil
from gymnasium.vector import VectorEnv

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.wording import counted
from ml_pipeline.models.rl.algorithms.trainer import Statistics, Trainer
from ml_pipeline.models.rl.core.stepping.errors import StateNotAvailable, VectorEnvError
from ml_pipeline.models.rl.core.vec_env import ParallelEnv, RescaleLater
from ml_pipeline.models.rl.core.workers.choice import Division, DynamicChoice, Look, measure_wake
from ml_pipeline.runs.requests import WorkerChoice
from ml_pipeline.runtime.cores import IdleWatch

_LOOK_S = 1.0  # minimum: the kernel counts idle time in hundredths of a second
_MOST_FAILURES = 3  # of moves, before the choice is left alone
_WORKER_BYTES = 60_000_000  # of a worker with a small environment
_REFUSALS = (UserError, VectorEnvError, OSError, MemoryError)  # workers that cannot be started


class WorkerScaling:
    """A hook called after each iteration, which also handles requests for a number of workers.

    Returns "workers/count": the worker processes that stepped this iteration; empty if there are none.
    """

    def __init__(
        self,
        envs: Callable[[], VectorEnv],
        say: Callable[[str], None],
        *,
        dynamic: bool,
        vec_env: str = "parallel",
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """envs: returns the current environments. say: prints every move, and why there is none. dynamic: choose
        the number by load. vec_env: as in the settings. clock: in s.
        """
        self._envs = envs
        self._say = say
        self._vec_env = vec_env
        self._clock = clock
        self._asked: int | WorkerChoice | None = None  # request that is pending
        self._failures = 0
        self._choice: DynamicChoice | None = None
        self._dynamic = dynamic
        self._window = _Window(clock)

    def __call__(self, trainer: Trainer, statistics: Statistics) -> Mapping[str, float] | None:
        envs = self._envs()
        if not isinstance(envs, ParallelEnv):
            return None
        count = envs.num_workers
        self._window.add(envs, statistics.metrics())
        if self._asked is not None:
            self._retry(self._asked)
        elif self._dynamic and envs.num_envs > 1 and self._window.wall_s >= _LOOK_S:
            self._look_and_move(envs, trainer)
            self._window.begin(envs)
        return {"workers/count": count}

    def request(self, n_workers: int | WorkerChoice) -> None:
        """Move to `n_workers` and stay there; "auto" chooses once, "dynamic" from now on. Prints what was done.

        Raises UserError if that is impossible; the workers are unchanged.
        """
        envs = self._envs()
        if not isinstance(envs, ParallelEnv) or self._vec_env != "parallel":
            raise UserError(f'vec_env "{self._vec_env}" has no workers.')
        if isinstance(n_workers, int) and n_workers > envs.num_envs:
            raise UserError(f"n_workers must be at most n_envs = {envs.num_envs}.")
        if n_workers == "dynamic":
            self._dynamic, self._choice, self._failures, self._asked = True, None, 0, None
            self._window.begin(envs)
            self._say(f"As requested: from now on the run chooses its number of workers; now {in_words(envs)}.")
            return
        try:
            if n_workers != "auto":
                _check_memory(envs, n_workers)
            self._move(envs, lambda: envs.rescale(n_workers))
        except RescaleLater:
            self._asked = n_workers
            return
        except _REFUSALS as error:
            if envs.closed:
                raise
            raise UserError(str(error)) from error
        finally:
            self._window.begin(envs)
        self._asked, self._dynamic = None, False
        self._say(f"As requested: now {in_words(envs)}{', as measured' if n_workers == 'auto' else ''}.")

    def _retry(self, n_workers: int | WorkerChoice) -> None:
        try:
            self.request(n_workers)
        except UserError as error:
            self._asked = None
            self._say(f"The request for n_workers = {n_workers} is refused: {error}")

    def _look_and_move(self, envs: ParallelEnv, trainer: Trainer) -> None:
        look = self._window.look(envs, trainer)
        if look is None:
            return
        choice = self._choice = self._choice or _new_choice(envs)
        move = choice.next_move(look)
        if move is None:
            return
        try:
            _check_memory(envs, move.division.n_workers)
            seconds = self._move(envs, lambda: _rescale_to(envs, move.division))
        except RescaleLater:
            return
        except _REFUSALS as error:
            if envs.closed:
                raise
            choice.refused(move, look)
            self._tell_failure(envs, error)
        else:
            choice.moved(seconds)
            self._failures = 0
            self._say(f"Now {in_words(envs)}: {move.reason}.")

    def _move(self, envs: ParallelEnv, rescale: Callable[[], None]) -> float:
        """Returns its duration in s."""
        began = self._clock()
        rescale()
        return self._clock() - began

    def _tell_failure(self, envs: ParallelEnv, error: BaseException) -> None:
        self._failures += 1
        if isinstance(error, StateNotAvailable) or self._failures >= _MOST_FAILURES:
            self._dynamic = False
            self._say(f"Staying with {in_words(envs)}, whatever the load of the machine: {error}")
        else:
            self._say(f"Still {in_words(envs)}; no others could be started: {error}")


def in_words(envs: ParallelEnv) -> str:
    """The workers that step `envs`, as part of a sentence."""
    if not envs.num_workers:
        return "no workers, only the trainer's process"
    workers = counted(envs.num_workers, "worker")
    return f"{workers} and the trainer's process" if envs.steps_here else workers


def _rescale_to(envs: ParallelEnv, division: Division) -> None:
    envs.rescale(division.n_workers, steps_here=division.steps_here and division.n_workers > 0)


def _check_memory(envs: ParallelEnv, n_workers: int) -> None:
    """Raise UserError if there is no memory for new workers next to the old ones."""
    sizes = [_WORKER_BYTES]
    for pid in envs.worker_pids:
        with contextlib.suppress(psutil.Error):
            sizes.append(psutil.Process(pid).memory_info().rss)
    needed, free = n_workers * max(sizes), psutil.virtual_memory().available
    if needed > free:
        raise UserError(
            f"{counted(n_workers, 'worker')} would need {needed / 1e6:,.0f} MB besides those that they replace, but "
            f"{free / 1e6:,.0f} MB are free; request fewer."
        )


def _new_choice(envs: ParallelEnv) -> DynamicChoice:
    cost = None
    with contextlib.suppress(VectorEnvError):  # no further environment can be made, as a move will show
        cost = envs.measure_step()
    # Runs that see the same free core at the same time must not all take it: some wait longer.
    patience = 3 + os.getpid() % 3
    return DynamicChoice(cost, wake_s=measure_wake(), in_workers_only=not envs.may_step_here, patience=patience)


class _Window:
    """Measurements since `begin`."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._step: float | None = None  # global step of the last iteration
        self._begin([])

    @property
    def wall_s(self) -> float:
        return self._clock() - self._began

    def begin(self, envs: ParallelEnv) -> None:
        """Start again, with the current workers."""
        self._begin(envs.worker_pids)

    def add(self, envs: ParallelEnv, metrics: Mapping[str, float]) -> None:
        """Add an iteration; the first one only marks the start of the next."""
        before, self._step = self._step, metrics.get("time/global_step")
        if before is None or self._step is None:
            self.begin(envs)
            return
        self._transitions += self._step - before
        self._stepping_s += metrics.get("time/stepping_s", 0.0) + metrics.get("time/waiting_s", 0.0)

    def look(self, envs: ParallelEnv, trainer: Trainer) -> Look | None:
        """The measurements; None if no steps were measured."""
        n_steps, wall_s = round(self._transitions / envs.num_envs), self.wall_s
        if n_steps < 1 or not self._stepping_s > 0:
            return None
        children_s = max(0.0, _cpu_s(self._pids) - self._used_s)
        left = max(0, trainer.total_timesteps - trainer.global_step) / self._transitions
        return Look(
            division=Division(envs.num_workers, steps_here=envs.steps_here),
            num_envs=envs.num_envs,
            step_s=self._stepping_s / n_steps,
            n_steps=n_steps,
            wall_s=wall_s,
            free_cores=self._watch.free_cores(children_s=children_s),
            left_s=left * wall_s,
        )

    def _begin(self, pids: Sequence[int]) -> None:
        self._pids = pids
        self._began = self._clock()
        self._transitions, self._stepping_s = 0.0, 0.0
        self._watch, self._used_s = IdleWatch(), _cpu_s(pids)


def _cpu_s(pids: Sequence[int]) -> float:
    """CPU time that these processes have used so far, in s; 0 for those that have ended."""
    used_s = 0.0
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            used_s += sum(psutil.Process(pid).cpu_times()[:2])
    return used_s

"""Checks the arguments of a vector environment, and resolves `num_workers="auto"` by measuring a step."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from numbers import Integral
from typing import Any, Literal

import gymnasium
from gymnasium import Space
from gymnasium.vector.utils import batch_differing_spaces, batch_space

from ml_pipeline.config.errors import UserError
from ml_pipeline.models.rl.core.stepping.env_block import EnvFactory
from ml_pipeline.models.rl.core.stepping.errors import SpacesDifferError
from ml_pipeline.models.rl.core.stepping.protocol import SpaceMismatch
from ml_pipeline.models.rl.core.stepping.results import have_equal_rows
from ml_pipeline.models.rl.core.workers.choice import (
    HERE,
    Division,
    StepCost,
    choose_division,
    expected_speedup,
    measure_step,
    measure_wake,
)
from ml_pipeline.runtime.cores import IdleWatch, usable_cores

_BUSY_CORES, _RECHECK_DELAY_S = 0.3, 0.15  # the load of a busy core; the delay before a second look


def check_failure_options(
    num_workers: int | Literal["auto"], step_timeout_s: float | None, on_worker_failure: str, *, expects_failures: bool
) -> None:
    """Raises UserError if these options of `ParallelEnv` do not fit together."""
    if on_worker_failure not in ("raise", "restart"):
        raise UserError(f'on_worker_failure must be "raise" or "restart", but got {on_worker_failure!r}.')
    if step_timeout_s is not None and not step_timeout_s > 0:
        raise UserError(f"step_timeout_s must be positive, or None for no limit, but got {step_timeout_s}.")
    if num_workers == 0 and expects_failures:
        raise UserError(
            "step_timeout_s and on_worker_failure='restart' need worker processes, but num_workers is 0; pass 1 or "
            'more, or "auto".'
        )


def check_factories(env_fns: Sequence[EnvFactory]) -> None:
    """Raises UserError if `env_fns` is not a list of functions."""
    if not isinstance(env_fns, Sequence):
        raise UserError(
            f"env_fns must be a list of functions that make environments, but is a {type(env_fns).__name__}."
        )
    if not env_fns:
        raise UserError("env_fns must hold at least one factory, but is empty.")
    for env_fn in env_fns:
        if not callable(env_fn):
            raise UserError(
                "env_fns must hold functions that make environments, such as lambda: gymnasium.make(...), but holds a "
                f"{type(env_fn).__name__}."
            )


def check_sizes(num_envs: int, num_workers: int | Literal["auto"], num_groups: int) -> None:
    """Raises UserError if the number of workers or groups is invalid."""
    if num_workers != "auto" and not (isinstance(num_workers, Integral) and num_workers >= 0):
        raise UserError(f'num_workers must be "auto", 0 (in this process) or more, but got {num_workers!r}.')
    if not 1 <= num_groups <= num_envs:
        raise UserError(f"num_groups must be from 1 to {num_envs}, the number of environments, but got {num_groups}.")
    if num_workers != "auto" and 0 < num_workers < num_groups:
        raise UserError(
            f"Each of num_groups={num_groups} groups needs its own worker, but num_workers is {num_workers}; pass "
            f'"auto", or {num_groups} or more.'
        )


def check_share(num_workers: int | Literal["auto"], *, steps_here: bool, is_possible: bool) -> None:
    """Raises UserError if this process is to step a share together with workers, and may not."""
    if steps_here and not is_possible:
        raise UserError(
            "steps_here=True lets this process step a share of the environments, but with step_timeout_s, "
            "on_worker_failure='restart' or num_groups only workers may do that; leave it out."
        )
    if steps_here and num_workers == "auto":
        raise UserError('steps_here=True needs a number of workers, but num_workers is "auto"; pass the number.')


def division_of(
    num_workers: int | Literal["auto"],
    num_envs: int,
    num_groups: int,
    example: gymnasium.Env | None,
    *,
    steps_here: bool = False,
) -> Division:
    """The number of workers, and whether this process steps environments as well.

    example: the environment that "auto" measures; None: "auto" means one worker per core.
    """
    if num_workers != "auto":
        n_workers = min(num_workers, num_envs - steps_here)
        return Division(n_workers, steps_here=steps_here or n_workers == 0)
    if example is None:
        return Division(min(num_envs, max(num_groups, int(usable_cores()))), steps_here=False)
    return _fastest(example, num_envs)


class KnownCost:
    """Measurements from the last division of the same kind of environments."""

    def __init__(self) -> None:
        self.step: StepCost | None = None
        self.wake_s: float | None = None
        self.watch: IdleWatch | None = None
        """Started after the division; None if workers of this program ran since, since their load would count."""


_known: ContextVar[KnownCost | None] = ContextVar("known_cost", default=None)


@contextmanager
def measuring_once(known: KnownCost) -> Iterator[None]:
    """Within the block, "auto" reuses the step cost, wake-up time and core load in `known`, and measures only the
    missing ones. For programs that create the same kind of environments many times."""
    token = _known.set(known)
    try:
        yield
    finally:
        _known.reset(token)


def _fastest(example: gymnasium.Env, num_envs: int) -> Division:
    known = _known.get() or KnownCost()
    watch = IdleWatch()
    cost = known.step = known.step or measure_step(example)
    free_cores = known.watch.free_cores() if known.watch is not None else _free_cores(watch)
    known.wake_s = known.wake_s or measure_wake()
    division = choose_division(cost, num_envs, free_cores, wake_s=known.wake_s)
    known.watch = IdleWatch() if division == HERE else None
    return division


def expected_gain(example: gymnasium.Env, num_envs: int, division: Division) -> float | None:
    """The speedup of a division over stepping in this process alone, for environments like this one.

    "auto" chooses by the same estimate, from the cost of a step, a wake-up, and the number of free cores. None if a
    step cannot be measured.
    """
    if division == HERE:
        return 1.0
    watch = IdleWatch()
    cost = measure_step(example)
    if cost is None:
        return None
    return expected_speedup(cost, num_envs, division, _free_cores(watch), wake_s=measure_wake())


def _free_cores(watch: IdleWatch) -> float:
    """The number of free cores, from a watch that just started; if cores are busy, they are measured once more."""
    free_cores = watch.free_cores()
    if free_cores < usable_cores() - _BUSY_CORES:  # short bursts of load do not count
        watch = IdleWatch()
        time.sleep(_RECHECK_DELAY_S)
        free_cores = max(free_cores, watch.free_cores())
    return free_cores


# "same": all spaces are equal. "different": they may differ in everything but shape and dtype, such as their bounds. A
# tuple (batched space, single space): spaces may also differ. The names and messages are Gymnasium's.
ObservationMode = Literal["same", "different"] | tuple[Space, Space]


def check_observation_mode(mode: Any) -> None:
    """Raises UserError or TypeError if `mode` is not an ObservationMode."""
    if isinstance(mode, tuple) and len(mode) == 2:
        if not all(isinstance(space, Space) for space in mode):
            kinds = " and ".join(str(type(space)) for space in mode)
            raise TypeError(f"Expected both elements of observation_mode to be Spaces, got {kinds}.")
    elif mode not in ("same", "different"):
        raise UserError(
            "Invalid `observation_mode`, expected: 'same' or 'different' or tuple of single and batch observation "
            f"space, actual got {mode}"
        )


def check_space_mismatches(space_mismatches: Sequence[SpaceMismatch], mode: ObservationMode) -> None:
    """Raises SpacesDifferError if environments cannot be stepped as one batch."""
    for mismatch in space_mismatches:
        if mismatch.has_equal_rows and mode != "same":
            continue
        remedy = ""
        if mismatch.has_equal_rows:
            remedy = (
                " Thus the sub-environments observation spaces are not equivalent. If this is intentional, use "
                "`observation_mode='different'` instead."
            )
        raise SpacesDifferError(
            f"All environments of a batch must have the same spaces, but {mismatch.name} of environment "
            f"{mismatch.index} is {mismatch.received}, and that of environment 0 is {mismatch.expected}.{remedy}"
        )


def observation_spaces(
    mode: ObservationMode, single: Space, num_envs: int, of_each: Sequence[Space]
) -> tuple[Space, Space]:
    """(batched space, single space). of_each: the space of every environment, needed for "different".

    Raises SpacesDifferError if the spaces of a tuple do not fit the environments' observations.
    """
    if mode == "same":
        return batch_space(single, num_envs), single
    if mode == "different":
        return batch_differing_spaces(list(of_each)), single
    if not have_equal_rows(single, mode[1]):
        raise SpacesDifferError(
            f"observation_mode has {mode[1]} as the space of one environment, but environments have {single}; shape "
            "and dtype must be equal."
        )
    return mode

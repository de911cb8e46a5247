"""Samplers by name, which choose the settings of the next trial, with a new seed for each trial.

Optuna seeds a sampler once, and each draw advances its generator: two workers with the same seed would draw the same
values, and a study that continues in a new process would repeat its sequence. So `SeededByTrial` seeds the k-th trial
from the study's seed and k, not counting trials that repeat an earlier one, since they draw nothing. The draws then
depend only on the study, not on the process.
"""

import contextlib
import math
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
import optuna
from optuna import Study
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.samplers import BaseSampler, CmaEsSampler, GPSampler, GridSampler, RandomSampler, TPESampler
from optuna.trial import FrozenTrial, TrialState

from ml_pipeline.config.errors import UserError, install_extra, nearest
from ml_pipeline.config.wording import counted
from ml_pipeline.tuning.search.space import Space
from ml_pipeline.tuning.storage.optuna_internals import stored_trials

_VOID = "void"  # user attribute of a trial that never ran, because another worker took the last place


def make_sampler(name: str, seed: int, space: Space) -> BaseSampler:
    """The sampler with this name.

    - "tpe": tree-structured Parzen estimator (Bergstra et al. 2011).
    - "gp": a Gaussian process and log expected improvement; 0.1-0.2 s per trial, and more with hundreds of trials.
    - "cmaes": CMA-ES (Hansen 2016, arXiv:1604.00772) for ranges; TPE draws the choices.
    - "random": independent of all earlier trials.
    - "grid": every point of a finite space once, in random order.

    Raises UserError if the name is unknown, a package is missing, or the sampler does not support the space.
    """
    makers: dict[str, Callable[[], BaseSampler]] = {
        "tpe": lambda: TPESampler(seed=seed),
        "gp": lambda: GPSampler(seed=seed, independent_sampler=TPESampler(seed=seed), warn_independent_sampling=False),
        "cmaes": lambda: _cmaes(seed, space),
        "random": lambda: RandomSampler(seed=seed),
        "grid": lambda: _EveryPoint({each: list(of) for each, of in space.grid().items()}, seed),
    }
    if name not in makers:
        raise UserError(f'There is no sampler "{name}". {nearest(name, makers)}')
    return makers[name]()


def sampler_remark(name: str, space: Space) -> str | None:
    """A sentence about parameters that another sampler draws in this space, or about the number of points of a grid.

    None if there is neither. Raises UserError as `Space.grid`.
    """
    if name == "grid":
        points = counted(math.prod(map(len, space.grid().values())), "point")
        return f"The grid of the space {space.name} has {points}; the study ends after them."
    distributions = space.distributions()
    if distributions is None:
        if name in {"gp", "cmaes"}:
            return (
                f"The space {space.name} is a function: the sampler {name} chooses the parameters that every trial so "
                "far has used, and TPE the rest."
            )
        return None
    choices = [each for each, of in distributions.items() if isinstance(of, CategoricalDistribution)]
    if name == "cmaes" and choices:
        return f"The sampler cmaes handles only ranges: in the space {space.name}, TPE chooses {', '.join(choices)}."
    return None


def _cmaes(seed: int, space: Space) -> CmaEsSampler:
    """Raises UserError if the space has fewer than two ranges: CMA-ES would then leave all draws to another sampler."""
    if find_spec("cmaes") is None:  # Optuna reports it only when the second trial begins
        raise UserError(f"The sampler cmaes needs the package cmaes: {install_extra('tune')}")
    distributions = space.distributions()
    if distributions is not None:
        ranges = [of for of in distributions.values() if not isinstance(of, CategoricalDistribution)]
        if len(ranges) < 2:
            raise UserError(
                f"The sampler cmaes needs at least two ranges, but the space {space.name} has {len(ranges) or 'none'}; "
                "use another sampler, such as tpe."
            )
    return CmaEsSampler(seed=seed, independent_sampler=TPESampler(seed=seed), warn_independent_sampling=False)


class _EveryPoint(GridSampler):
    """Optuna's grid for a study whose workers call `ask`, without Optuna's `optimize`."""

    def after_trial(self, study: Study, trial: FrozenTrial, state: TrialState, values: object) -> None:
        """Does nothing: Optuna would stop its own loop here, which is not used. See is_exhausted()."""

    def _get_unvisited_grid_ids(self, study: Study) -> list[int]:
        """The points without a trial that ran, including points of void trials, which Optuna counts as visited."""
        trials = stored_trials(study)
        run, void = (
            {each.system_attrs["grid_id"] for each in trials if _is_of_grid(each, void=is_void)}
            for is_void in (False, True)
        )
        return sorted({*super()._get_unvisited_grid_ids(study), *(void - run)})


def _is_of_grid(trial: FrozenTrial, *, void: bool) -> bool:
    return "grid_id" in trial.system_attrs and bool(trial.user_attrs.get(_VOID)) is void


_REPEATS = ("failed_trial", "continues")  # user attributes of trials that repeat the settings of earlier ones


class SeededByTrial(BaseSampler):
    """Another sampler, created with a new seed for each trial.

    make: creates the sampler from a seed. seed: the study's.
    """

    def __init__(self, make: Callable[[int], BaseSampler], seed: int) -> None:
        """Raises UserError if `make` does."""
        self._make = make
        self._seed = seed
        self._inner = make(seed)

    def before_trial(self, study: optuna.Study, trial: FrozenTrial) -> None:
        if not isinstance(self._inner, GridSampler):  # its order follows from one seed, the same for every worker
            self._inner = self._make(seed_of(self._seed, drawn_before(study, trial.number)))
        self._inner.before_trial(study, trial)

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return self._inner.infer_relative_search_space(study, trial)

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        return self._inner.sample_relative(study, trial, search_space)

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        return self._inner.sample_independent(study, trial, param_name, param_distribution)

    def after_trial(
        self, study: optuna.Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None
    ) -> None:
        if isinstance(self._inner, GridSampler):
            # GridSampler stops the study, which is an error outside of Optuna's loop, and it assumes that every trial
            # is from the grid.
            with contextlib.suppress(RuntimeError, KeyError):
                self._inner.after_trial(study, trial, state, values)
        else:
            self._inner.after_trial(study, trial, state, values)

    def reseed_rng(self) -> None:
        self._inner.reseed_rng()

    def is_exhausted(self, study: optuna.Study) -> bool:
        """Whether there is nothing more to draw, as for a grid after its last point."""
        return isinstance(self._inner, GridSampler) and self._inner.is_exhausted(study)


def seed_of(study_seed: int, index: int) -> int:
    """The seed of the index-th trial that draws, from 0.

    >>> seed_of(1, 0) == seed_of(1, 1)
    False
    """
    return int(np.random.SeedSequence([study_seed, index]).generate_state(1)[0])


def drawn_before(study: optuna.Study, number: int) -> int:
    """The number of trials before this one that drew their settings."""
    return sum(
        each.number < number and not any(name in each.user_attrs for name in _REPEATS) for each in stored_trials(study)
    )

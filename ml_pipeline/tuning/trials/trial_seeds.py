"""A sampler that is seeded anew for each trial, so that what it draws depends on the study and not on the process.

Optuna seeds a sampler once, and each draw moves its generator on: two workers with one seed would draw the same, and a
study that goes on in a new process would begin its sequence again. Here the k-th trial of a study draws by a seed made
of the study's and k, where trials that repeat an earlier one do not count, as they draw nothing.
"""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, GridSampler
from optuna.trial import FrozenTrial, TrialState

_REPEATS = ("failed_trial", "continues")  # user attributes of trials whose settings are those of earlier ones


class SeededByTrial(BaseSampler):
    """Another sampler, made anew with a seed of its own for each trial.

    make: the sampler of a seed. seed: the study's.
    """

    def __init__(self, make: Callable[[int], BaseSampler], seed: int) -> None:
        """Raises UserError where `make` does."""
        self._make = make
        self._seed = seed
        self._inner = make(seed)

    def before_trial(self, study: optuna.Study, trial: FrozenTrial) -> None:
        if not isinstance(self._inner, GridSampler):  # whose order follows from one seed, the same for every worker
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
            # It ends a study that Optuna's own loop runs; outside of that loop ending it is an error. It takes every
            # trial for one of its own, too.
            with contextlib.suppress(RuntimeError, KeyError):
                self._inner.after_trial(study, trial, state, values)
        else:
            self._inner.after_trial(study, trial, state, values)

    def reseed_rng(self) -> None:
        self._inner.reseed_rng()

    def is_exhausted(self, study: optuna.Study) -> bool:
        """Whether there is nothing more to draw, as of a grid after its last point."""
        return isinstance(self._inner, GridSampler) and self._inner.is_exhausted(study)


def seed_of(study_seed: int, index: int) -> int:
    """The seed of the trial that draws as the index-th, from 0.

    >>> seed_of(1, 0) == seed_of(1, 1)
    False
    """
    return int(np.random.SeedSequence([study_seed, index]).generate_state(1)[0])


def drawn_before(study: optuna.Study, number: int) -> int:
    """How many trials before this one drew their settings."""
    # Not study.get_trials: Hyperband hands samplers a study of one bracket alone.
    trials = study._storage.get_all_trials(study._study_id, deepcopy=False)
    return sum(each.number < number and not any(name in each.user_attrs for name in _REPEATS) for each in trials)

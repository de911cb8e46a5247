"""Pruners by name, which stop trials that lag behind. Their resource is environment steps, scaled to a trial's length.

A trial reports its best value so far at multiples of a number of steps that all trials of a study share. A trial with
longer rollouts skips some of them.
"""

import math
import statistics
from collections.abc import Callable

from optuna import Study
from optuna.pruners import BasePruner, HyperbandPruner, NopPruner, SuccessiveHalvingPruner
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from ml_pipeline.config.errors import UserError, nearest

REDUCTION = 3
"""One in this many trials continues from a rung, to this many times its steps."""
_LEAST_SHARE = 27
"""The first rung is at least this fraction (1/27) of a trial's steps."""
_LAST_SHARE = 0.8
_STARTUP_TRIALS = 5


def make_pruner(name: str, *, budget: int, report_every: int) -> BasePruner:
    """The pruner with this name.

    budget: environment steps of a whole trial, over all its runs. report_every: steps between two reports.

    - "asha": asynchronous successive halving (Li et al. 2020, arXiv:1810.05934): of the trials at a rung, the best
      third continues. The first rung is `first_rung`, and each later one has three times the steps of the one before.
    - "hyperband": successive halving that starts from each of those rungs, each for a part of the trials (Li et al.
      2018, JMLR 18).
    - "median": a trial ends if its best value is below the median of the completed trials at the same step.
    - "none": no pruning.

    No trial is pruned in the last fifth of its steps, which would save little. Raises UserError for an unknown name.
    """
    first = first_rung(budget, report_every)
    makers: dict[str, Callable[[], BasePruner]] = {
        "asha": lambda: _Asha(first, budget),
        "hyperband": lambda: _Hyperband(first, budget),
        "median": lambda: MedianPruner(warm_up_steps=first, budget=budget),
        "none": NopPruner,
    }
    if name not in makers:
        raise UserError(f'There is no pruner "{name}". {nearest(name, makers)}')
    return makers[name]()


def first_rung(budget: int, report_every: int) -> int:
    """The steps before a trial may be pruned: the first report at or after a 27th of its budget.

    >>> first_rung(27_000, 100), first_rung(27_000, 900), first_rung(27_000, 2_700), first_rung(27_000, 30_000)
    (1000, 1800, 2700, 30000)
    """
    return -(-max(budget // _LEAST_SHARE, 1) // report_every) * report_every


class _Asha(SuccessiveHalvingPruner):
    def __init__(self, first: int, budget: int) -> None:
        super().__init__(min_resource=first, reduction_factor=REDUCTION)
        self._budget = budget

    def prune(self, study: Study, trial: FrozenTrial) -> bool:
        return not _is_over(trial, self._budget) and super().prune(study, trial)


class _Hyperband(HyperbandPruner):
    def __init__(self, first: int, budget: int) -> None:
        super().__init__(min_resource=first, max_resource=max(first, budget), reduction_factor=REDUCTION)
        self._budget = budget

    def prune(self, study: Study, trial: FrozenTrial) -> bool:
        return not _is_over(trial, self._budget) and super().prune(study, trial)


class MedianPruner(BasePruner):
    """Ends a trial if its best value is below the median of the completed trials' best values by the same step.

    Optuna's own pruner compares only trials that reported at exactly the same step; here some trials skip steps.
    Source: Golovin et al. 2017, "Google Vizier", section 3.2, with values in place of running averages.
    """

    def __init__(self, *, warm_up_steps: int, budget: int, startup_trials: int = _STARTUP_TRIALS) -> None:
        """warm_up_steps: steps before pruning begins. startup_trials: complete trials before pruning begins."""
        self._warm_up_steps = warm_up_steps
        self._budget = budget
        self._startup_trials = startup_trials

    def prune(self, study: Study, trial: FrozenTrial) -> bool:
        step = trial.last_step
        if step is None or step < self._warm_up_steps or _is_over(trial, self._budget):
            return False
        completed = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        if len(completed) < self._startup_trials:
            return False
        sign = 1 if study.direction == StudyDirection.MAXIMIZE else -1
        others = [value for each in completed if (value := _best_by(each, step, sign)) is not None]
        own = _best_by(trial, step, sign)
        return bool(others) and (own is None or own < statistics.median(others))


def _best_by(trial: FrozenTrial, step: int, sign: int) -> float | None:
    """The best value of a trial up to a step, larger is better; None if it reported none, or only NaN."""
    values = [sign * value for at, value in trial.intermediate_values.items() if at <= step and not math.isnan(value)]
    return max(values, default=None)


def _is_over(trial: FrozenTrial, budget: int) -> bool:
    """Whether pruning would save almost nothing."""
    return trial.last_step is not None and trial.last_step > _LAST_SHARE * budget

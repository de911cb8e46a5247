"""The exact number of trials, without a lock: whoever asks for a trial first looks whether the study needs one, and
afterwards whether others were quicker.

Trials are numbered in one order that all processes see. Trial k may run only if fewer than n_trials of those with
smaller numbers wait, run or have finished. So never more than n_trials run or finish, however the processes race: the
last one to be allowed had seen all the others. One that may not run is void.
"""

from collections.abc import Sequence
from typing import NamedTuple

import optuna
from optuna.trial import FrozenTrial, TrialState

FINISHED = (TrialState.COMPLETE, TrialState.PRUNED)
_TAKES_A_PLACE = (TrialState.WAITING, TrialState.RUNNING, *FINISHED)


class TrialCounts(NamedTuple):
    """finished: complete or pruned, without those that were impossible or continue another one."""

    finished: int
    running: int

    @property
    def taken(self) -> int:
        return self.finished + self.running


def count_trials(study: optuna.Study) -> TrialCounts:
    """How many trials of the study have finished, and how many run, by any process."""
    trials = study.get_trials(deepcopy=False)
    return TrialCounts(
        finished=sum(trial.state in FINISHED and _counts(trial) for trial in trials),
        running=sum(trial.state == TrialState.RUNNING and _counts(trial) for trial in trials),
    )


def may_run(study: optuna.Study, number: int, n_trials: int) -> bool:
    """Whether the trial of this number is one of the n_trials."""
    return is_among(study.get_trials(deepcopy=False), number, n_trials)


def is_among(trials: Sequence[FrozenTrial], number: int, n_trials: int) -> bool:
    """Whether fewer than n_trials before this one take a place."""
    return sum(each.number < number and each.state in _TAKES_A_PLACE and _counts(each) for each in trials) < n_trials


def _counts(trial: FrozenTrial) -> bool:
    """Whether it is a try of its own: one that trained an earlier trial further is none."""
    told = trial.user_attrs
    return not (told.get("void") or told.get("impossible")) and told.get("continues") is None

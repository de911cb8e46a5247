"""However processes race, no more trials run or finish than asked for, and no fewer."""

import random
from collections.abc import Iterator

import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st
from optuna.trial import TrialState

from ml_pipeline.tuning.trials.worker import count_trials, is_among, may_run

_VALID = {TrialState.RUNNING, TrialState.COMPLETE, TrialState.PRUNED}


class _Study:
    """Trials as a storage shows them, without its costs: what is asked for is at once seen by all."""

    def __init__(self) -> None:
        self.trials: list[optuna.trial.FrozenTrial] = []

    def get_trials(self, *, deepcopy=False, states=None):
        return [trial for trial in self.trials if states is None or trial.state in states]

    def add(self, state: TrialState) -> optuna.trial.FrozenTrial:
        trial = optuna.trial.create_trial(state=TrialState.RUNNING)
        trial.number, trial.state = len(self.trials), state
        self.trials.append(trial)
        return trial

    def ask(self) -> optuna.trial.FrozenTrial:
        for trial in self.trials:
            if trial.state == TrialState.WAITING:
                trial.state = TrialState.RUNNING
                return trial
        return self.add(TrialState.RUNNING)


def _worker(study: _Study, n_trials: int, ends: random.Random) -> Iterator[None]:
    """A worker that another one may overtake wherever it yields."""
    while count_trials(study).finished < n_trials:
        yield
        if count_trials(study).taken < n_trials:
            yield
            trial = study.ask()
            yield
            if not may_run(study, trial.number, n_trials):
                trial.user_attrs["void"] = True
                yield
                trial.state = TrialState.FAIL
                continue
            trial.user_attrs["runs"] = True
            yield
            how = ends.random()
            if how < 0.2:
                trial.user_attrs["impossible"] = True
            if how < 0.4:
                trial.state = TrialState.FAIL if how > 0.2 else TrialState.PRUNED
                yield
                if how > 0.3:
                    study.add(TrialState.WAITING)  # queued again
            else:
                trial.state = TrialState.COMPLETE if how < 0.7 else TrialState.PRUNED
        yield


def _allowed(study: _Study) -> int:
    took = [each for each in study.trials if each.user_attrs.get("runs") and not each.user_attrs.get("impossible")]
    return sum(each.state in _VALID for each in took)


@given(n_trials=st.integers(1, 6), n_workers=st.integers(1, 5), seed=st.integers(0, 10_000))
def test_any_race_ends_with_exactly_the_number_of_trials(n_trials, n_workers, seed):
    study, chance = _Study(), random.Random(seed)
    workers = [_worker(study, n_trials, chance) for _ in range(n_workers)]
    for _ in range(20_000):
        if not workers:
            break
        chosen = chance.choice(workers)
        if next(chosen, "end") == "end":
            workers.remove(chosen)
        assert _allowed(study) <= n_trials
    assert not workers
    assert count_trials(study).finished == n_trials
    assert not any(trial.state == TrialState.RUNNING for trial in study.trials)


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        ([TrialState.COMPLETE, TrialState.PRUNED], False),
        ([TrialState.COMPLETE, TrialState.RUNNING], False),
        ([TrialState.COMPLETE, TrialState.WAITING], False),
        ([TrialState.COMPLETE, TrialState.FAIL], True),
        ([TrialState.COMPLETE], True),
    ],
)
def test_a_trial_runs_where_fewer_before_it_take_a_place(states, expected):
    study = _Study()
    for state in states:
        study.add(state)
    assert is_among(study.trials, len(states), 2) is expected


@pytest.mark.parametrize("attribute", ["void", "impossible", "continues"])
def test_trials_that_are_no_new_try_take_no_place(attribute):
    study = _Study()
    study.add(TrialState.PRUNED).user_attrs[attribute] = True
    assert count_trials(study).taken == 0
    assert may_run(study, 1, 1)

from typing import Any, get_args

import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ml_pipeline.config.errors import UserError
from ml_pipeline.tuning.config import PrunerName
from ml_pipeline.tuning.search.pruners import REDUCTION, MedianPruner, first_rung, make_pruner

BUDGET, EVERY = 27_000, 1_000


def study_with(pruner: optuna.pruners.BasePruner) -> optuna.Study:
    # Hyperband deals trials to its brackets by the study's name.
    return optuna.create_study(study_name="study", pruner=pruner, direction="maximize")


def steps_of(study: optuna.Study, quality: float, *, every: int = EVERY, budget: int = BUDGET) -> int:
    """The steps of a trial that gets better in proportion to its quality, until it is pruned or whole."""
    trial = study.ask()
    for step in range(every, budget + 1, every):
        trial.report(quality * step, step)
        if trial.should_prune():
            study.tell(trial, state=optuna.trial.TrialState.PRUNED)
            return step
    study.tell(trial, quality * budget)
    return budget


def best_first(pruner: optuna.pruners.BasePruner, n: int, **options: Any) -> list[int]:
    study = study_with(pruner)
    return [steps_of(study, 1 - i / n, **options) for i in range(n)]


@given(st.integers(1, 10**9), st.integers(1, 10**9))
def test_the_first_rung_is_the_first_report_from_a_27th_of_the_budget_on(budget, every):
    first = first_rung(budget, every)
    assert first % every == 0
    assert first >= budget // 27 > first - every or first == every


def test_of_ten_reports_a_trial_the_first_one_is_a_rung():
    assert first_rung(100_000, 10_000) == 10_000


@pytest.mark.parametrize("name", ["asha", "hyperband", "median"])
def test_a_trial_that_lags_behind_is_ended_early_and_the_best_never(name):
    steps = best_first(make_pruner(name, budget=BUDGET, report_every=EVERY), 40)
    assert steps[0] == BUDGET
    assert min(steps) == 1_000
    assert sum(steps) < 40 * BUDGET / 2


def test_none_ends_no_trial():
    assert best_first(make_pruner("none", budget=BUDGET, report_every=EVERY), 10) == [BUDGET] * 10


@pytest.mark.parametrize("name", get_args(PrunerName))
@pytest.mark.parametrize("every", [100, 1_000, 9_000, 10_000, 26_999, 27_000, 30_000])
def test_trials_that_get_better_and_better_are_never_ended(name, every):
    study = study_with(make_pruner(name, budget=BUDGET, report_every=every))
    assert [steps_of(study, 1 + i, every=every) for i in range(12)] == [BUDGET] * 12


def test_of_the_trials_at_a_rung_of_asha_about_a_third_goes_on():
    study = study_with(make_pruner("asha", budget=BUDGET, report_every=EVERY))
    qualities = [(i * 37) % 90 / 90 for i in range(90)]
    steps = [steps_of(study, quality) for quality in qualities]
    beyond_first = sum(each > 1_000 for each in steps)
    assert 90 / REDUCTION - 12 <= beyond_first <= 90 / REDUCTION + 12
    assert set(steps) <= {1_000, 3_000, 9_000, BUDGET}


@pytest.mark.parametrize("name", get_args(PrunerName))
@pytest.mark.parametrize("every", [BUDGET, BUDGET - 1, int(0.81 * BUDGET)])
def test_no_trial_is_ended_in_the_last_fifth_of_its_steps(name, every):
    study = study_with(make_pruner(name, budget=BUDGET, report_every=every))
    assert [steps_of(study, 1 / (1 + i), every=every) for i in range(12)] == [BUDGET] * 12


@pytest.mark.parametrize("name", ["asha", "hyperband", "median"])
def test_trials_that_report_less_often_than_others_are_compared_with_them(name):
    study = study_with(make_pruner(name, budget=BUDGET, report_every=EVERY))
    for _ in range(8):
        steps_of(study, 1.0)
    seldom = [steps_of(study, 0.1, every=4_000, budget=28_000) for _ in range(8)]
    assert min(seldom) == 4_000


def test_the_median_pruner_waits_for_completed_trials_and_compares_the_best_so_far():
    study = study_with(MedianPruner(warm_up_steps=2_000, budget=BUDGET, startup_trials=3))
    assert [steps_of(study, quality) for quality in (3, 1, 2)] == [BUDGET] * 3
    # The median of 3, 1 and 2 is 2 times the step: as good goes on, and worse ends at the end of its warm-up.
    assert steps_of(study, 2) == BUDGET
    assert steps_of(study, 1.9) == 2_000
    fell = study.ask()
    for value, step in ((9e9, 1_000), (float("nan"), 2_000), (-9e9, 3_000)):
        fell.report(value, step)
        assert not fell.should_prune()
    never = study.ask()
    never.report(float("nan"), 2_000)
    assert never.should_prune()


def test_an_unknown_pruner_is_answered_with_the_nearest():
    with pytest.raises(UserError, match=r'There is no pruner "medan"\. Did you mean "median"'):
        make_pruner("medan", budget=1, report_every=1)

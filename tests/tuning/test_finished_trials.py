import math

import numpy as np
import optuna
import pytest
from optuna.trial import TrialState, create_trial

from ml_pipeline.config.errors import UserError
from ml_pipeline.tuning.study_files import RETURNS_FILE, trial_folder
from ml_pipeline.tuning.trials.validation_returns import ValidationReturns
from ml_pipeline.tuning.winner_statistics import finished_trials, judge

START = np.datetime64("2020-01-01", "ns")
DAY = np.timedelta64(1, "D")


@pytest.fixture
def study():
    return optuna.create_study(direction="maximize")


@pytest.fixture
def add(study, tmp_path):
    """Adds a trial with a run folder for each unit; means: of the returns in each, None: without returns."""

    def add(value=1.0, *, state=TrialState.COMPLETE, units=("",), means=(0.0,), reports=0, first_days=None, **attrs):
        number = len(study.get_trials(deepcopy=False))
        folders = [trial_folder(tmp_path, number, unit) for unit in units]
        for i, (folder, mean) in enumerate(zip(folders, means, strict=True)):
            folder.mkdir()
            if mean is not None:
                first = (first_days or [0] * len(units))[i]
                values = 0.01 * np.random.default_rng([number, i]).standard_normal(50)
                values += mean - values.mean()
                time = START + (first + np.arange(50)) * DAY
                ValidationReturns(time, values, 252.0).write(folder / RETURNS_FILE)
        steps = dict.fromkeys(range(100, 100 * (reports + 1), 100), 0.0)
        attrs = {"folders": [folder.name for folder in folders], **attrs}
        ended = state in {TrialState.COMPLETE, TrialState.PRUNED}
        study.add_trial(
            create_trial(state=state, value=value if ended else None, user_attrs=attrs, intermediate_values=steps)
        )
        return number

    return add


def test_complete_and_pruned_trials_are_finished_and_others_are_not(study, add, tmp_path):
    add(2.0, reports=10)
    add(0.5, state=TrialState.PRUNED, means=(None,), reports=3)
    add(9.0, void=True)
    add(state=TrialState.PRUNED, impossible=True, means=(None,))
    add(state=TrialState.FAIL, reason="broke down")
    add(state=TrialState.RUNNING)
    add(state=TrialState.WAITING)
    add(1.0, reports=10)
    trials = finished_trials(study, tmp_path)
    assert [(each.number, each.value, each.complete) for each in trials] == [
        (0, 2.0, True),
        (1, 0.5, False),
        (7, 1.0, True),
    ]
    assert [each.n_checkpoints for each in trials] == [10, 3, 10]
    assert [each.returns is None for each in trials] == [False, True, False]
    assert trials[0].folder == tmp_path / "trial-0000"
    judged = judge(trials)
    assert (judged.winner.number, judged.n_trials, judged.n_with_returns, judged.n_checkpoints) == (0, 3, 2, 23)


def test_of_seeds_the_run_with_the_median_sharpe_ratio_counts(study, add, tmp_path):
    add(units=("seed-0", "seed-1", "seed-2"), means=(0.005, -0.001, 0.002), reports=30)
    add(units=("seed-0", "seed-1"), means=(0.005, 0.001), reports=5)
    three, two = finished_trials(study, tmp_path)
    assert (three.folder.name, three.returns.returns.mean()) == ("trial-0000-seed-2", pytest.approx(0.002))
    assert (two.folder.name, two.returns.returns.mean()) == ("trial-0001-seed-1", pytest.approx(0.001))
    assert (three.n_checkpoints, two.n_checkpoints) == (10, 3)  # of one run, rounded up


def test_of_folds_the_returns_follow_one_another(study, add, tmp_path):
    add(units=("fold-1", "fold-0"), means=(0.005, -0.001), first_days=[50, 0])
    add(units=("fold-0", "fold-1"), means=(-0.001, 0.005), first_days=[0, 40])  # ten days of both
    joined, overlapping = finished_trials(study, tmp_path)
    assert len(joined.returns) == 100
    assert (np.diff(joined.returns.time) == DAY).all()
    assert joined.returns.returns[:50].mean() == pytest.approx(-0.001)
    assert joined.folder.name == "trial-0000-fold-1"  # the latest
    assert len(overlapping.returns) == 90
    assert overlapping.returns.returns[:50].mean() == pytest.approx(-0.001)


def test_every_evaluation_is_a_checkpoint_that_was_scored(study, add, tmp_path):
    add(reports=2, evaluations=20)
    add(reports=4, evaluations=21, units=("seed-0", "seed-1"), means=(0.1, 0.2))
    assert [trial.n_checkpoints for trial in finished_trials(study, tmp_path)] == [20, 11]


def test_a_trial_that_was_continued_counts_once(study, add, tmp_path):
    add(0.5, state=TrialState.PRUNED, means=(None,), reports=3)
    add(0.7, continues=0, reports=8)
    assert [each.number for each in finished_trials(study, tmp_path)] == [1]


def test_a_study_of_another_task_has_no_returns(study, add, tmp_path):
    add(means=(None,))
    study.add_trial(create_trial(value=3.0))  # without any attribute
    trials = finished_trials(study, tmp_path)
    assert [each.returns for each in trials] == [None, None]
    assert [each.n_checkpoints for each in trials] == [1, 1]
    assert trials[1].folder is None
    assert judge(trials) is None


def test_a_run_that_never_traded_is_worth_cash(study, add, tmp_path):
    number = add(units=("seed-0", "seed-1", "seed-2"), means=(0.003, -0.001, None))
    idle = ValidationReturns(START + np.arange(50) * DAY, np.zeros(50), 252.0)
    idle.write(trial_folder(tmp_path, number, "seed-2") / RETURNS_FILE)
    (trial,) = finished_trials(study, tmp_path)
    assert math.isnan(idle.sharpe)
    assert trial.folder.name == "trial-0000-seed-2"  # between losing and winning


def test_returns_that_cannot_be_read_are_named(study, add, tmp_path):
    number = add()
    (trial_folder(tmp_path, number) / RETURNS_FILE).write_bytes(b"torn")
    with pytest.raises(UserError, match=r"trial-0000/validation_returns\.npz cannot be read as validation returns"):
        finished_trials(study, tmp_path)


@pytest.mark.parametrize(
    "folders", [["../victim"], ["/etc"], "trial-0000", [3], {"trial-0000": 1}, ["trial-0000", ".."]]
)
def test_a_folder_outside_of_the_study_is_not_read(study, add, tmp_path, folders):
    """What a storage that others write names, leads nowhere."""
    victim = tmp_path / "victim"
    victim.mkdir()
    ValidationReturns(START + np.arange(50) * DAY, np.full(50, 0.01), 252.0).write(victim / RETURNS_FILE)
    (tmp_path / "study").mkdir()
    add(2.0, folders=folders)
    (trial,) = finished_trials(study, tmp_path / "study")
    assert (trial.folder, trial.returns) == (None, None)

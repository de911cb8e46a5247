"""What of Optuna is not published is still there: the test that fails names the function that a new version broke."""

import optuna
import pytest
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import TrialState

from ml_pipeline.tuning.storage.open_storage import open_storage
from ml_pipeline.tuning.storage.optuna_internals import engine_of, fail_trial, journal_of, set_attribute, stored_trials

optuna.logging.set_verbosity(optuna.logging.WARNING)


@pytest.fixture
def study(tmp_path):
    return optuna.create_study(storage=open_storage(None, tmp_path, pytest.fail), study_name="s")


def test_stored_trials_are_all_and_not_copied(study):
    numbers = [study.ask().number for _ in range(2)]
    assert [trial.number for trial in stored_trials(study)] == numbers
    assert stored_trials(study)[0] is stored_trials(study)[0]


def test_an_attribute_is_set_until_the_trial_has_ended(study):
    trial = study.ask()
    set_attribute(trial, "heartbeat", {"beats": 1})
    assert study.trials[0].user_attrs == {"heartbeat": {"beats": 1}}
    study.tell(trial, 1.0)
    with pytest.raises(UpdateFinishedTrialError):
        set_attribute(trial, "heartbeat", {"beats": 2})


def test_a_trial_of_another_process_fails_once(study):
    study.ask()
    fail_trial(study, study.trials[0], "Its process is gone.")
    assert study.trials[0].state is TrialState.FAIL
    assert study.trials[0].user_attrs["reason"] == "Its process is gone."
    with pytest.raises(UpdateFinishedTrialError):
        fail_trial(study, study.trials[0], "Again.")


def test_where_a_study_is_stored(study, tmp_path):
    assert journal_of(study) == next(tmp_path.glob("*.log"))
    assert engine_of(study) is None
    optunas_own = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(tmp_path / "own.log")))
    assert journal_of(optuna.create_study(storage=optunas_own)) == tmp_path / "own.log"
    in_database = optuna.create_study(storage=f"sqlite:///{tmp_path / 's.db'}")
    assert engine_of(in_database).dialect.name == "sqlite"
    assert journal_of(in_database) is None


def test_a_grid_asks_for_its_points_by_the_method_that_ours_replaces():
    assert callable(optuna.samplers.GridSampler._get_unvisited_grid_ids)

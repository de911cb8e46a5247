"""Going on with a trial: bit for bit to its budget, or beyond it, recorded as a trial of its own."""

import optuna
import pytest
from optuna.distributions import FloatDistribution
from optuna.trial import TrialState, create_trial

from ml_pipeline.config.errors import UserError
from ml_pipeline.runs.checkpoint import load_checkpoint
from ml_pipeline.runs.stop import StopRequest
from ml_pipeline.tuning.config import ObjectiveConfig
from ml_pipeline.tuning.trials.continue_trial import continue_trial
from tests.tuning.trial_runs import CARTPOLE, WatchedTrial, ignore, train, trial_runs, weights

SETTINGS = {"learning_rate": 0.01}


@pytest.fixture
def study():
    return optuna.create_study(direction="maximize")


def add(study, state, outcome, **attributes):
    known = {} if outcome is None else {"folders": list(outcome.folders), "settings": SETTINGS}
    study.add_trial(
        create_trial(
            state=state,
            value=outcome.value if state == TrialState.COMPLETE else None,
            params=SETTINGS,
            distributions={"learning_rate": FloatDistribution(1e-5, 1.0)},
            user_attrs={**known, **attributes},
        )
    )


def go_on(study, folder, number=0, *, stop=None, **how):
    objective = ObjectiveConfig(seeds_per_trial=how.pop("seeds", 1))
    stop = stop or StopRequest()
    return continue_trial(study, folder, number, base=CARTPOLE, objective=objective, stop=stop, say=ignore, **how)


@pytest.mark.parametrize("state", [TrialState.PRUNED, TrialState.FAIL])
@pytest.mark.parametrize("seeds", [1, 2])
def test_a_trial_that_ended_early_gets_the_value_and_weights_of_one_that_did_not(tmp_path, study, state, seeds):
    whole = train(trial_runs(tmp_path / "whole", seeds_per_trial=seeds), WatchedTrial(), SETTINGS)
    early = train(trial_runs(tmp_path / "study", seeds_per_trial=seeds), WatchedTrial(prune_after=2), SETTINGS)
    add(study, state, early)
    outcome = go_on(study, tmp_path / "study", seeds=seeds)
    assert (outcome.state, outcome.value, outcome.folders) == ("complete", whole.value, whole.folders)
    for name in whole.folders:
        assert weights(tmp_path / "study" / name) == weights(tmp_path / "whole" / name)
    new = study.trials[1]
    assert (new.state, new.value, new.params) == (TrialState.COMPLETE, whole.value, SETTINGS)
    assert new.user_attrs["continues"] == 0
    assert new.user_attrs["folders"] == list(whole.folders)
    assert len(new.intermediate_values) == 4 * seeds
    with pytest.raises(UserError, match="Trial 0 was continued to its end as trial 1; continue that one"):
        go_on(study, tmp_path / "study", seeds=seeds)


def test_a_complete_trial_is_trained_for_longer_in_a_copy(tmp_path, study):
    longer = {**CARTPOLE, "total_timesteps": 512}
    whole = train(trial_runs(tmp_path / "whole", longer), WatchedTrial(), SETTINGS)
    done = train(trial_runs(tmp_path / "study"), WatchedTrial(), SETTINGS)
    before = {path.name: path.read_bytes() for path in (tmp_path / "study" / "trial-0000").iterdir()}
    add(study, TrialState.COMPLETE, done)
    outcome = go_on(study, tmp_path / "study", total_timesteps=512)
    assert (outcome.value, outcome.folders) == (whole.value, ("trial-0000-512-steps",))
    assert weights(tmp_path / "study" / "trial-0000-512-steps") == weights(tmp_path / "whole" / "trial-0000")
    assert before == {path.name: path.read_bytes() for path in (tmp_path / "study" / "trial-0000").iterdir()}
    assert study.trials[1].user_attrs["settings"] == {**SETTINGS, "total_timesteps": 512}
    again = go_on(study, tmp_path / "study", number=1, total_timesteps=640)
    assert (again.state, again.global_step, again.folders) == ("complete", 640, ("trial-0000-640-steps",))


def test_a_continuation_that_is_stopped_goes_on_where_it_was(tmp_path, study):
    done = train(trial_runs(tmp_path), WatchedTrial(), SETTINGS)
    add(study, TrialState.COMPLETE, done)
    stop = StopRequest()
    stop.request("Ctrl-C.")
    assert go_on(study, tmp_path, total_timesteps=512, stop=stop).state == "stopped"
    assert len(study.trials) == 1
    copied = tmp_path / "trial-0000-512-steps" / "latest.pt"
    assert load_checkpoint(copied)["trainer"]["iteration"] == 4
    assert go_on(study, tmp_path, total_timesteps=512).global_step == 512
    assert [trial.user_attrs.get("continues") for trial in study.trials] == [None, 0]


def test_a_trial_with_nothing_to_go_on_with_is_refused(tmp_path, study):
    with pytest.raises(UserError, match="which has no trials yet"):
        go_on(study, tmp_path)
    done = train(trial_runs(tmp_path), WatchedTrial(), SETTINGS)
    add(study, TrialState.COMPLETE, done)
    add(study, TrialState.PRUNED, None, impossible=True, reason="minibatch_size must be at most 64.")
    add(study, TrialState.RUNNING, None)
    for number, sentence in (
        (-1, "There is no trial -1 in the study .*, which has trials 0 to 2"),
        (0, "Trial 0 has finished its 256 steps; give a larger total_timesteps"),
        (1, "Trial 1 has no run to continue: minibatch_size must be at most 64."),
        (2, "Trial 2 is running; wait for its end, or stop it."),
    ):
        with pytest.raises(UserError, match=sentence):
            go_on(study, tmp_path, number)
    with pytest.raises(UserError, match=r"Trial 0 is planned for 256 steps, but got total_timesteps 100"):
        go_on(study, tmp_path, total_timesteps=100)
    (tmp_path / "trial-0000" / "latest.pt").unlink()
    with pytest.raises(UserError, match="Trial 0 cannot continue: there is no checkpoint"):
        go_on(study, tmp_path, total_timesteps=512)


@pytest.mark.parametrize(
    ("state", "sentence"),
    [
        (TrialState.WAITING, r"Trial 0 was queued again as trial 2, and continues when tune is started without"),
        (TrialState.RUNNING, r"Trial 0 continues as trial 2, which is running"),
        (TrialState.PRUNED, r"Trial 0 was continued as trial 2; continue that one"),
    ],
)
def test_a_trial_that_was_queued_again_is_not_trained_twice(tmp_path, study, state, sentence):
    early = train(trial_runs(tmp_path), WatchedTrial(prune_after=2), SETTINGS)
    add(study, TrialState.FAIL, early, reason="stopped")
    add(study, TrialState.FAIL, early, reason="stopped", failed_trial=0, retry_history=[])
    add(study, state, early, failed_trial=0, retry_history=[])
    with pytest.raises(UserError, match=sentence):
        go_on(study, tmp_path)
    with pytest.raises(UserError, match=sentence.replace("Trial 0", "Trial 1")):
        go_on(study, tmp_path, number=1)


def test_a_trial_that_waits_is_left_to_the_study(tmp_path, study):
    early = train(trial_runs(tmp_path), WatchedTrial(prune_after=2), SETTINGS)
    add(study, TrialState.WAITING, early, failed_trial=0, retry_history=[])
    with pytest.raises(UserError, match="Trial 0 is waiting for its turn, and continues when tune is started without"):
        go_on(study, tmp_path)


@pytest.mark.parametrize("folders", [["../victim"], [], "victim", ["trial-0000", "trial-0001"]])
def test_a_trial_whose_folders_are_none_of_the_study_is_not_continued(tmp_path, study, folders):
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim/latest.pt").write_bytes(b"")
    study.add_trial(create_trial(state=TrialState.PRUNED, user_attrs={"folders": folders, "settings": SETTINGS}))
    (tmp_path / "study/trial-0000").mkdir(parents=True)
    (tmp_path / "study/trial-0000/latest.pt").write_bytes(b"")
    with pytest.raises(UserError, match=r"which is not in it|names . run folder"):
        go_on(study, tmp_path / "study")
    assert [path.name for path in (tmp_path / "victim").iterdir()] == ["latest.pt"]

"""A worker asks, trains, and records how each trial ended; the rest of the study is left to others."""

import threading

import optuna
import pytest
from optuna.trial import TrialState

from ml_pipeline.config.errors import UserError
from ml_pipeline.runs.stop import StopRequest
from ml_pipeline.runtime.process_identity import this_process
from ml_pipeline.tuning.trials.lost_trials import BEAT_ATTRIBUTE, beat_from
from ml_pipeline.tuning.trials.trial_run import TrialOutcome
from ml_pipeline.tuning.trials.worker import DiskFull, count_trials
from tests.tuning.stand_in_runs import Heard, StandInRuns, a_worker, open_study, suggest_x


def _outcomes(*outcomes):
    return lambda number, settings: outcomes[min(number, len(outcomes) - 1)]


COMPLETE = TrialOutcome(state="complete", value=1.5, global_step=100, n_evaluations=9, validation_sharpe=0.7)


def test_trials_are_recorded_with_what_others_read(tmp_path):
    study, heard = open_study(tmp_path), Heard()
    a_worker(tmp_path, n_trials=2, study=study, runs=StandInRuns(_outcomes(COMPLETE)), heard=heard).work()
    assert [trial.value for trial in study.trials] == [1.5, 1.5]
    told = study.trials[1].user_attrs
    assert told["folders"] == ["trial-0001"]
    assert told["settings"] == study.trials[1].params
    assert (told["global_step"], told["evaluations"], told["validation_sharpe"]) == (100, 9, 0.7)
    assert {"host", "pid", "seconds"} <= told.keys()
    assert heard.began == [end.number for end in heard.ended] == [0, 1]


def test_a_trial_tells_from_its_first_moment_whose_it_is(tmp_path):
    """A process that is killed while it draws settings is then found gone at once."""
    study = open_study(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        a_worker(tmp_path, n_trials=1, study=study, suggest=_interrupt).work()
    beat = beat_from(study.trials[0].user_attrs[BEAT_ATTRIBUTE])
    assert beat is not None
    assert (beat.trial, beat.process) == (0, this_process())


def _interrupt(trial):
    raise KeyboardInterrupt


def test_pruned_and_impossible_trials_are_told_apart(tmp_path):
    study = open_study(tmp_path)
    pruned = TrialOutcome(state="pruned", value=0.5, reason="behind", global_step=10)
    impossible = TrialOutcome(state="impossible", reason="too large")
    a_worker(tmp_path, n_trials=2, study=study, runs=StandInRuns(_outcomes(pruned, impossible, COMPLETE))).work()
    states = [(trial.state, trial.user_attrs.get("impossible")) for trial in study.trials]
    assert states == [(TrialState.PRUNED, None), (TrialState.PRUNED, True), (TrialState.COMPLETE, None)]
    assert study.trials[1].user_attrs["reason"] == "too large"


def test_settings_that_are_impossible_are_found_before_a_run_begins(tmp_path):
    study, runs = open_study(tmp_path), StandInRuns()
    xs = iter([-1.0, 0.5])
    a_worker(tmp_path, n_trials=1, study=study, runs=runs, suggest=lambda trial: {"x": next(xs)}).work()
    assert study.trials[0].user_attrs["reason"] == "x is negative."
    assert [call["number"] for call in runs.calls] == [1]


def test_settings_that_a_space_prunes_are_impossible(tmp_path):
    study, left = open_study(tmp_path), [optuna.TrialPruned("No layers.")]

    def suggest(trial):
        if left:
            raise left.pop()
        return suggest_x(trial)

    a_worker(tmp_path, n_trials=1, study=study, suggest=suggest).work()
    states = [(trial.state, trial.user_attrs.get("impossible")) for trial in study.trials]
    assert states == [(TrialState.PRUNED, True), (TrialState.COMPLETE, None)]
    assert study.trials[0].user_attrs["reason"] == "No layers."


def test_a_failure_is_recorded_and_another_trial_takes_its_place(tmp_path):
    study = open_study(tmp_path)
    failed = TrialOutcome(state="failed", reason="The numbers are not finite.")
    a_worker(tmp_path, n_trials=1, study=study, runs=StandInRuns(_outcomes(failed, COMPLETE))).work()
    assert [trial.state for trial in study.trials] == [TrialState.FAIL, TrialState.COMPLETE]
    assert study.trials[0].user_attrs["reason"] == "The numbers are not finite."


def test_a_trial_that_lost_a_rank_is_queued_again_and_not_a_fourth_time(tmp_path):
    study, heard = open_study(tmp_path), Heard()
    lost = TrialOutcome(state="lost", reason="Rank 1 was killed by SIGKILL.", global_step=10)
    runs = StandInRuns(_outcomes(lost, lost, lost, lost, COMPLETE))
    a_worker(tmp_path, n_trials=1, study=study, runs=runs, heard=heard).work()
    assert [trial.state for trial in study.trials] == [TrialState.FAIL] * 4 + [TrialState.COMPLETE]
    assert [call["folders"] for call in runs.calls] == [None, *[["trial-0000"]] * 3, None]
    again = "was lost, and is queued again to continue from its checkpoint. Rank 1 was killed by SIGKILL."
    assert heard.said[:3] == [f"Trial {number} {again}" for number in range(3)]
    assert heard.said[3] == ("Trial 3 was lost. Rank 1 was killed by SIGKILL. It was lost 4 times, and is not retried.")
    assert [end.state for end in heard.ended] == ["lost"] * 4 + ["complete"]
    assert study.trials[0].user_attrs["reason"] == "Rank 1 was killed by SIGKILL."


def test_a_space_that_raises_fails_its_trial(tmp_path):
    study, left = open_study(tmp_path), [UserError("mine.py: it broke"), ZeroDivisionError("by zero")]

    def suggest(trial):
        if left:
            raise left.pop(0)
        return suggest_x(trial)

    a_worker(tmp_path, n_trials=1, study=study, suggest=suggest).work()
    reasons = [trial.user_attrs.get("reason") for trial in study.trials]
    assert reasons == ["mine.py: it broke", "ZeroDivisionError: by zero", None]


def test_a_stopped_trial_is_queued_again_and_its_run_continued(tmp_path):
    study, stop, heard = open_study(tmp_path), StopRequest(), Heard()
    runs = StandInRuns(before_end=lambda trial, its_stop: stop.request("Ctrl-C."))
    a_worker(tmp_path, n_trials=2, study=study, runs=runs, stop=stop, heard=heard).work()
    assert [trial.state for trial in study.trials] == [TrialState.FAIL, TrialState.WAITING]
    assert study.trials[0].user_attrs["reason"] == "stopped"
    assert [end.state for end in heard.ended] == ["stopped"]
    again = StandInRuns()
    a_worker(tmp_path, n_trials=2, study=open_study(tmp_path), runs=again).work()
    assert [(call["number"], call["folders"]) for call in again.calls] == [(1, ["trial-0000"]), (2, None)]
    assert again.calls[0]["settings"] == runs.calls[0]["settings"]
    assert count_trials(study) == (2, 0)


def test_a_trial_may_be_stopped_any_number_of_times(tmp_path):
    for _ in range(6):
        stop = StopRequest()
        runs = StandInRuns(before_end=lambda trial, its_stop, stop=stop: stop.request("Ctrl-C."))
        a_worker(tmp_path, n_trials=1, study=open_study(tmp_path), runs=runs, stop=stop).work()
    last = StandInRuns()
    a_worker(tmp_path, n_trials=1, runs=last).work()
    assert [call["folders"] for call in last.calls] == [["trial-0000"]]


@pytest.mark.parametrize("why", ["No space left on device.", "the disk is full, or only part of it was written."])
def test_a_full_disk_ends_the_worker_and_keeps_the_trial(tmp_path, why):
    study = open_study(tmp_path)
    full = TrialOutcome(state="failed", reason=f"Cannot write the checkpoint latest.pt: {why}")
    with pytest.raises(DiskFull, match="Make room and run the same command again"):
        a_worker(tmp_path, n_trials=3, study=study, runs=StandInRuns(_outcomes(full))).work()
    assert [trial.state for trial in study.trials] == [TrialState.FAIL, TrialState.WAITING]


def test_a_grid_that_is_drawn_whole_ends_the_study_before_its_number_of_trials(tmp_path):
    study = open_study(tmp_path, make=lambda seed: optuna.samplers.GridSampler({"x": [0.1, 0.2]}, seed=seed))
    a_worker(tmp_path, n_trials=50, study=study).work()
    assert sorted(trial.params["x"] for trial in study.trials) == [0.1, 0.2]


def test_a_trial_that_others_ended_is_left_to_them(tmp_path):
    study, heard = open_study(tmp_path), Heard()

    def take_away(trial, stop):
        if trial.number == 0:
            study._storage.set_trial_state_values(trial._trial_id, TrialState.FAIL)

    a_worker(tmp_path, n_trials=1, study=study, runs=StandInRuns(before_end=take_away), heard=heard).work()
    assert [trial.state for trial in study.trials] == [TrialState.FAIL, TrialState.COMPLETE]
    assert any("Trial 0" in sentence for sentence in heard.said)


@pytest.mark.slow
def test_workers_that_race_train_exactly_as_many_trials_as_asked_for(tmp_path):
    """Each has a storage of its own, as processes do."""
    errors = []

    def work():
        failing = TrialOutcome(state="failed", reason="unlucky")
        try:
            a_worker(
                tmp_path,
                n_trials=15,
                study=open_study(tmp_path),
                runs=StandInRuns(lambda number, settings: failing if number % 4 == 1 else COMPLETE),
            ).work()
        except BaseException as error:
            errors.append(error)

    open_study(tmp_path)
    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    trials = open_study(tmp_path).trials
    assert sum(trial.state == TrialState.COMPLETE for trial in trials) == 15
    assert {trial.state for trial in trials} <= {TrialState.COMPLETE, TrialState.FAIL}


@pytest.mark.parametrize("folders", [["../victim"], ["trial-0000", "/etc"], "trial-0000", [["x"]]])
def test_a_queued_trial_that_names_a_folder_outside_of_the_study_fails_and_touches_nothing(tmp_path, folders):
    study, runs = open_study(tmp_path / "study"), StandInRuns()
    (tmp_path / "victim").mkdir()
    study.enqueue_trial({"x": 0.5}, user_attrs={"folders": folders})
    a_worker(tmp_path / "study", n_trials=1, study=study, runs=runs).work()
    assert "which is not in it" in study.trials[0].user_attrs["reason"]
    assert (study.trials[0].state, [call["number"] for call in runs.calls]) == (TrialState.FAIL, [1])
    assert not list((tmp_path / "victim").iterdir())

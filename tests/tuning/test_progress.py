"""study.json as it follows from trials of known times and values."""

import json
import os
import threading
from datetime import UTC, datetime, timedelta

import optuna
import pytest
from optuna.distributions import FloatDistribution
from optuna.trial import TrialState, create_trial

from ml_pipeline.runtime.process_identity import this_process
from ml_pipeline.tuning import progress
from ml_pipeline.tuning.progress import StudyProgress, write_progress
from ml_pipeline.tuning.study_files import HEARTBEAT_FILE, STUDY_FILE

NOW = datetime(2026, 1, 5, 12, 0, 0)


def minutes(ago):
    return NOW - timedelta(minutes=ago)


class Trials(list):
    """Trials as a storage returns them; times in minutes before NOW."""

    def add(self, state="COMPLETE", *, began=10.0, ended=0.0, value=None, steps=None, rate=0.1, **told):
        number = len(self)
        trial = create_trial(
            state=TrialState[state] if state in ("COMPLETE", "PRUNED", "FAIL") else TrialState.RUNNING,
            value=value,
            params={"learning_rate": rate},
            distributions={"learning_rate": FloatDistribution(0.0, 1.0)},
            user_attrs={"folders": [f"trial-{number:04}"], **told},
            intermediate_values=steps or {},
        )
        trial.number = number
        trial.datetime_start = minutes(began)
        trial.datetime_complete = None if state == "RUNNING" else minutes(ended)
        self.append(trial)
        return trial


@pytest.fixture
def trials():
    return Trials()


@pytest.fixture
def told(trials, tmp_path):
    """`told(n_trials=..., ...)`: what study.json says."""

    def read(n_trials=10, jobs=2, steps_per_trial=1000, state="running", known=None):
        text = (known or StudyProgress("s")).text(
            trials,
            study_folder=tmp_path,
            n_trials=n_trials,
            jobs=jobs,
            steps_per_trial=steps_per_trial,
            state=state,
            now=NOW.timestamp(),
        )
        return json.loads(text)

    return read


def test_trials_are_counted_by_how_they_ended(trials, told):
    trials.add(value=1.0)
    trials.add("PRUNED", value=0.5, steps={10: 0.5})
    trials.add("PRUNED", impossible=True, reason="minibatch_size must divide")
    trials.add("FAIL", reason="Worker 1 died.")
    trials.add("FAIL", void=True)
    trials.add("FAIL", reason="stopped")  # Ctrl-C; a later trial goes on with its run
    trials.add("RUNNING", steps={250: 3.0}, host="box")
    found = told()
    names = ("finished", "complete", "pruned", "failed", "impossible", "n_trials", "state", "direction", "jobs")
    assert [found[name] for name in names] == [2, 1, 1, 1, 1, 10, "running", "maximize", 2]
    (running,) = found["running"]
    assert (running["number"], running["folder"], running["host"]) == (6, "trial-0006", "box")
    assert (running["progress"], running["value"]) == (0.25, 3.0)
    assert datetime.fromisoformat(running["began"]) == minutes(10).astimezone(UTC)
    assert [each["number"] for each in found["trials"]] == [0, 1, 2, 3]
    assert [each["state"] for each in found["trials"]] == ["complete", "pruned", "impossible", "failed"]


def test_a_trial_that_was_trained_further_counts_once_and_may_be_the_best(trials, told):
    trials.add("PRUNED", value=0.5, steps={10: 0.5})
    trials.add(value=1.0)
    trials.add(value=2.0, continues=0)
    found = told(n_trials=3)
    assert [found[name] for name in ("finished", "complete", "pruned", "state")] == [2, 1, 1, "running"]
    assert found["best"]["number"] == 2
    assert [row[0] for row in found["history"]] == [0, 1, 2]


def test_the_best_is_the_largest_complete_value_and_of_equal_ones_the_first(trials, told):
    trials.add(value=1.0, rate=0.1)
    trials.add(value=2.0, rate=0.2, settings={"learning_rate": 0.2, "hidden_sizes": [64, 64]})
    trials.add(value=2.0, rate=0.3)
    trials.add("PRUNED", value=9.0, steps={1: 9.0})
    assert told()["best"] == {
        "number": 1,
        "value": 2.0,
        "settings": {"learning_rate": 0.2, "hidden_sizes": [64, 64]},
        "folder": "trial-0001",
    }


def test_history_tells_the_best_so_far_in_the_order_of_ends(trials, told):
    trials.add(began=10, ended=2, value=1.0)
    trials.add(began=10, ended=8, value=3.0)
    trials.add("PRUNED", began=8, ended=5, value=7.0, steps={1: 7.0})
    trials.add("FAIL", began=5, ended=4)
    assert told()["history"] == [[1, 120.0, 3.0, 3.0], [2, 300.0, 7.0, 3.0], [0, 480.0, 1.0, 3.0]]


def test_trials_per_hour_leave_pauses_out(trials, told):
    # Two trials at once for 10 minutes, a night's pause of 11 hours, then one trial of 10 minutes: 3 in 20 minutes.
    trials.add(began=680, ended=670, value=1.0)
    trials.add(began=680, ended=670, value=1.0)
    trials.add(began=10, ended=0, value=1.0)
    found = told()
    assert found["trials_per_hour"] == pytest.approx(9.0)
    assert found["trials_per_hour_last_hour"] == pytest.approx(6.0)


def test_the_time_left_is_that_of_the_last_hour_less_what_is_under_way(trials, told):
    for i in range(3):
        trials.add(began=300 + 60 * (i + 1), ended=300 + 60 * i, value=1.0)
    for i in range(4):
        trials.add(began=10 * (i + 1), ended=10 * i, value=1.0)
    trials.add("RUNNING", began=0, steps={500: 1.0})
    # Six an hour now; 3 of 10 are left, half of one is done: 2.5 x 10 minutes.
    assert told()["seconds_left"] == pytest.approx(1500.0)


def test_the_night_between_a_kill_and_its_discovery_is_no_running_time(trials, told, tmp_path):
    trials.add(began=620, ended=610, value=1.0)
    trials.add("FAIL", began=620, ended=0)
    lost = trials.add("RUNNING", began=620)
    heartbeat = tmp_path / lost.user_attrs["folders"][0] / HEARTBEAT_FILE
    heartbeat.parent.mkdir()
    heartbeat.touch()
    os.utime(heartbeat, (minutes(610).timestamp(),) * 2)
    assert told()["trials_per_hour"] == pytest.approx(6.0)


def test_failed_trials_take_the_time_that_they_ran(trials, told):
    trials.add(began=20, ended=10, value=1.0)
    trials.add("FAIL", began=10, ended=0, seconds=600.0)
    assert told()["trials_per_hour"] == pytest.approx(3.0)


def test_a_reason_is_told_once_with_its_trials(trials, told):
    for i in range(50):
        trials.add("FAIL", reason=f"Worker {i} (environment {i} of 64) raised ValueError.")
    trials.add("FAIL", reason="The disk is full.")
    trials.add("FAIL")
    found = told()["failures"]
    assert [(each["times"], each["reason"]) for each in found] == [
        (50, "Worker 49 (environment 49 of 64) raised ValueError."),
        (1, "The disk is full."),
        (1, "No reason was recorded."),
    ]
    assert found[0]["numbers"] == [*range(50)]


def test_before_the_first_end_nothing_is_known(trials, told):
    assert [told()[name] for name in ("best", "trials_per_hour", "seconds_left", "history")] == [None, None, None, []]
    trials.add("RUNNING")
    found = told(steps_per_trial=None)
    assert (found["running"][0]["progress"], found["seconds_left"]) == (None, None)


def test_a_study_with_all_its_trials_is_finished_and_one_without_says_what_it_is_told(trials, told):
    trials.add(value=1.0)
    assert told(n_trials=2, state="stopped")["state"] == "stopped"
    assert (told(n_trials=1, state="stopped")["state"], told(n_trials=1)["seconds_left"]) == ("finished", 0.0)
    trials.add("RUNNING")
    assert told(n_trials=1)["state"] == "running"  # a lost race ends soon


def test_values_that_json_does_not_have_are_left_out(trials, told):
    trials.add(value=float("inf"))
    trials.add(value=1.0, settings={"odd": float("nan"), "kind": {1, 2}})
    found = told()
    assert found["trials"][0]["value"] is None
    assert found["best"]["settings"] == {"odd": "nan", "kind": "{1, 2}"}


def test_trials_that_ended_are_looked_at_once(trials, told, monkeypatch):
    known = StudyProgress("s")
    for _ in range(50):
        trials.add(value=1.0)
    told(known=known)
    monkeypatch.setattr(progress, "_ended", lambda trial: pytest.fail("it was looked at again"))
    assert told(known=known)["finished"] == 50


def test_the_file_is_written_from_a_study_and_names_its_writer(tmp_path):
    study = optuna.create_study(study_name="eurusd", direction="maximize")
    study.add_trial(create_trial(value=1.5, params={}, distributions={}))
    assert write_progress(study, tmp_path, n_trials=3, jobs=4)
    found = json.loads((tmp_path / STUDY_FILE).read_text())
    assert (found["name"], found["finished"], found["jobs"], found["state"]) == ("eurusd", 1, 4, "running")
    assert found["writer"] == this_process()._asdict()
    assert [path.name for path in tmp_path.iterdir()] == [STUDY_FILE]


def test_it_is_written_once_a_second_at_most_but_for_the_last_time(tmp_path):
    study = optuna.create_study(study_name="s")
    assert write_progress(study, tmp_path, n_trials=3)
    progress._writers[study].due_s = float("inf")
    assert not write_progress(study, tmp_path, n_trials=3)
    assert write_progress(study, tmp_path, n_trials=3, state="stopped")
    assert json.loads((tmp_path / STUDY_FILE).read_text())["state"] == "stopped"


def test_a_folder_that_cannot_be_written_ends_no_trial(tmp_path):
    study = optuna.create_study(study_name="s")
    assert not write_progress(study, tmp_path / "missing", n_trials=3)


def test_several_writers_leave_a_whole_file(tmp_path):
    studies = [optuna.create_study(study_name=f"s{i}") for i in range(4)]
    errors = []

    def write(study):
        for _ in range(50):
            if not write_progress(study, tmp_path, n_trials=3, state="stopped"):
                errors.append(study.study_name)

    threads = [threading.Thread(target=write, args=(study,)) for study in studies]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        if (tmp_path / STUDY_FILE).exists():
            assert json.loads((tmp_path / STUDY_FILE).read_text())["n_trials"] == 3
    for thread in threads:
        thread.join()
    assert errors == []
    assert [path.name for path in tmp_path.iterdir()] == [STUDY_FILE]


def test_a_folder_outside_of_the_study_is_none(trials, told):
    trials.add(value=1.0, folders=["../victim"])
    trials.add("RUNNING", folders=["/etc", "trial-0001"])
    found = told()
    assert (found["best"]["folder"], found["trials"][0]["folder"]) == (None, None)
    assert (found["running"][0]["folder"], found["running"][0]["folders"]) == (None, [])

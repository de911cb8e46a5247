"""Studies as their study.json tells, whatever state it is in."""

import json
import os
from datetime import UTC, datetime, timedelta

import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.dashboard import studies
from ml_pipeline.dashboard.studies import NotThere, StudyReader, find_study, read_studies
from ml_pipeline.dashboard.summaries import read_summaries
from tests.dashboard.run_folders import make_run
from tests.dashboard.study_folders import GONE, make_study, study_values, trial, write_study
from tests.dashboard.test_run_files import OUTSIDE


def only(root, **options):
    (found,) = read_studies(root, **options)
    return found


def make_old(folder):
    """The file as it was left an hour ago."""
    an_hour_ago = (datetime.now(UTC) - timedelta(hours=1)).timestamp()
    os.utime(folder / "study.json", (an_hour_ago, an_hour_ago))


def test_a_study_is_told_in_full(tmp_path):
    make_study(
        tmp_path,
        "eurusd",
        failures=[{"reason": "Boom.", "times": 2, "numbers": [4, 5]}],
        feature_warnings=["up tells", 3],
    )
    found = only(tmp_path)
    assert (found.name, found.status, found.finished, found.n_trials, found.progress) == (
        "eurusd",
        "running",
        3,
        10,
        0.3,
    )
    assert (found.trials_per_hour, found.trials_per_hour_last_hour, found.seconds_left) == (60.0, 57.5, 3723.0)
    assert (found.best.number, found.best.value, found.best.run) == (1, 3.0, "eurusd/trial-0001")
    assert found.best.settings == {"learning_rate": "0.002", "n_steps": "128"}
    assert [(each.number, each.run, each.progress, each.value) for each in found.running] == [(3, None, 0.25, 1.5)]
    assert [(each.times, each.reason, each.numbers) for each in found.failures] == [(2, "Boom.", (4, 5))]
    assert found.feature_warnings == ("A feature may use later data, which would make every figure wrong: up tells",)
    assert json.loads(json.dumps(found.as_json(), allow_nan=False))["progress"] == 0.3


def test_progress_of_running_trials_comes_from_their_runs(tmp_path):
    folder = make_study(tmp_path, "s", n_runs=4)  # 3 rows of 100 steps, of 1000
    assert only(tmp_path, runs=read_summaries(tmp_path)).running[0].progress == 0.3
    values = study_values(running=(3,), steps_per_trial=2000)
    values["running"][0]["folders"] = ["trial-0002", "trial-0003"]  # as of two seeds
    write_study(folder, values)
    (running,) = only(tmp_path, runs=read_summaries(tmp_path)).running
    assert (running.progress, running.run) == (0.3, "s/trial-0003")


def test_a_study_whose_process_is_gone_was_stopped(tmp_path):
    folder = make_study(tmp_path, "s", writer=GONE, ago_s=3600)
    assert only(tmp_path).status == "running"  # another process may have it next
    make_old(folder)
    found = only(tmp_path)
    assert (found.status, found.running, found.seconds_left) == ("stopped", (), None)
    assert (
        found.reason
        == f"Its process {GONE['pid']} on {GONE['host']} is gone; to continue, start it again with the same command."
    )


def test_a_study_of_another_machine_that_is_silent_was_stopped(tmp_path):
    folder = make_study(tmp_path, "s", writer={**GONE, "host": "elsewhere"}, ago_s=3600)
    make_old(folder)
    assert "have written nothing" in only(tmp_path).reason


def test_a_study_that_waits_long_for_a_trial_is_running_while_its_process_lives(tmp_path):
    make_old(make_study(tmp_path, "s", ago_s=3600))
    assert only(tmp_path).status == "running"


def test_running_studies_come_first_and_then_the_newest(tmp_path):
    for name, state, ago_s in (("old", "finished", 900), ("new", "stopped", 60), ("going", "running", 0)):
        make_study(tmp_path, name, state=state, ago_s=ago_s)
    assert [each.name for each in read_studies(tmp_path)] == ["going", "new", "old"]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[1]",
        b"{}",
        b"\x00" * 1000,
        b"[" * 100_000,
        b'{"state": "dancing", "n_trials": 3}',
        b'{"state": "running", "n_trials": "x"}',
        b'{"state": "running", "n_trials": -1}',
    ],
)
def test_a_broken_study_is_told_among_the_others(tmp_path, content):
    make_study(tmp_path, "good")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "study.json").write_bytes(content)
    good, broken = read_studies(tmp_path)
    assert (good.status, broken.status) == ("running", "broken")
    assert str(tmp_path / "broken" / "study.json") in broken.reason
    write_study(tmp_path / "broken", study_values())
    assert {each.status for each in read_studies(tmp_path)} == {"running"}


ODD = [None, 7, "x", [], {}, [1], [None], [[1]], {"number": 1}, [{"number": 1}], 10**400, float("nan"), True]


@pytest.mark.parametrize("name", [name for name in study_values() if name not in ("state", "n_trials")])
@pytest.mark.parametrize("odd", ODD, ids=map(str, range(len(ODD))))
def test_any_odd_value_costs_only_itself(tmp_path, name, odd):
    write_study(tmp_path / "s", {**study_values(), name: odd})
    found = only(tmp_path)
    assert found.status == "running", found.reason
    assert json.dumps(found.as_json(), allow_nan=False)
    assert json.dumps(StudyReader(tmp_path).details("s"), allow_nan=False)


def test_folders_that_would_lead_elsewhere_are_no_runs(tmp_path):
    for name in ("../secret", "/etc", "..", "a/b", "a\0b", "", 7, None):
        values = study_values()
        values["best"]["folder"] = name
        write_study(tmp_path / "s", values)
        assert only(tmp_path).best.run is None


def test_details_tell_history_and_trials_with_their_runs(tmp_path):
    trials = [trial(0, value=1.0), trial(1, state="failed", reason="Boom.", settings={"clip_range": 0.2})]
    make_study(tmp_path, "s", trials=trials)
    found = StudyReader(tmp_path).details("s")
    assert found["history"][1] == [1, 120.0, 3.0, 3.0]
    assert [(each["number"], each["state"], each["run"]) for each in found["trials"]] == [
        (0, "complete", "s/trial-0000"),
        (1, "failed", "s/trial-0001"),
    ]
    assert found["settings"] == ["learning_rate", "n_steps", "clip_range"]


def test_the_folder_of_a_study_shows_that_study_and_names_runs_within_it(tmp_path):
    folder = make_study(tmp_path, "s", n_runs=2)
    assert (only(folder).name, only(folder).best.run) == ("s", "trial-0001")
    assert find_study(folder, "s") == folder


def test_what_did_not_change_is_not_read_again(tmp_path, monkeypatch):
    folder = make_study(tmp_path, "s")
    reader = StudyReader(tmp_path)
    reader.read()
    monkeypatch.setattr("ml_pipeline.dashboard.files.parse_json", lambda content: pytest.fail("it was read again"))
    assert reader.read()[0].finished == 3
    monkeypatch.undo()
    write_study(folder, study_values(values=(1.0,)))
    assert reader.read()[0].finished == 1


@pytest.mark.parametrize("name", OUTSIDE)
def test_no_name_leaves_the_folder_of_runs(tmp_path, name):
    make_study(tmp_path, "secret")
    make_study(tmp_path / "runs", "s")
    make_study(tmp_path / "runs", ".hidden")
    with pytest.raises(NotThere, match="has no study"):
        find_study(tmp_path / "runs", name)


def test_a_name_that_is_nearly_right_is_helped(tmp_path):
    make_study(tmp_path, "eurusd_5m")
    with pytest.raises(UserError, match='Did you mean "eurusd_5m"'):
        find_study(tmp_path, "eurusd_5")


def test_links_out_of_the_root_and_files_that_are_links_are_not_followed(tmp_path):
    make_study(tmp_path, "secret")
    (tmp_path / "runs" / "linked").mkdir(parents=True)
    (tmp_path / "runs" / "out").symlink_to(tmp_path / "secret")
    (tmp_path / "runs" / "linked" / "study.json").symlink_to(tmp_path / "secret" / "study.json")
    assert [(each.name, each.status) for each in read_studies(tmp_path / "runs")] == [("linked", "broken")]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes with names")
def test_a_pipe_in_place_of_the_file_keeps_nobody_waiting(tmp_path):
    (tmp_path / "s").mkdir()
    os.mkfifo(tmp_path / "s" / "study.json")
    assert only(tmp_path).status == "broken"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"[" * 10_000, "too deep"),
        (b"no JSON", "Expecting value"),
        (b"[" + b"[]," * 2_000_000 + b"0]", "it holds more than 2,000,000 values"),
        (None, "it is larger than 64 MiB"),
    ],
    ids=["deep", "text", "values", "huge"],
)
def test_what_was_refused_is_not_read_again_until_it_changes(tmp_path, monkeypatch, content, reason):
    folder = tmp_path / "study"
    folder.mkdir()
    with (folder / "study.json").open("wb") as file:
        file.write(content or b"")
        if content is None:
            file.truncate(100_000_000)  # sparse
    assert reason in read_studies(tmp_path)[0].reason
    with monkeypatch.context() as patch:
        patch.setattr("ml_pipeline.dashboard.files._object_in", lambda *_: pytest.fail("it was read again"))
        assert reason in read_studies(tmp_path)[0].reason
    (folder / "study.json").write_text('{"state": "finished", "n_trials": 3}')
    assert read_studies(tmp_path)[0].status == "finished"


def test_a_folder_that_is_missing_has_no_studies(tmp_path):
    assert read_studies(tmp_path / "nothing") == []


def test_runs_tell_whose_trials_they_are(tmp_path):
    folder = make_study(tmp_path, "s", n_runs=2)
    make_run(tmp_path, "mine")
    make_run(folder, "of-my-own")
    make_run(tmp_path / "seeds", "trial-0001")
    found = {run.name: run.study for run in read_summaries(tmp_path)}
    assert found == {
        "mine": None, "s/trial-0000": "s", "s/trial-0001": "s", "s/of-my-own": None, "seeds/trial-0001": None,
    }  # fmt: skip
    assert {run.study for run in read_summaries(folder)} == {None}


def test_a_value_that_no_file_can_hold_long_is_cut():
    assert len(studies._shown("x" * 10_000)) < 300


def test_the_value_of_a_study_says_what_it_is(tmp_path):
    make_study(tmp_path, "of-runs", n_runs=1)
    make_study(tmp_path, "of-ratios", n_runs=1, objective="sharpe")
    units = {study.name: study.value_unit for study in read_studies(tmp_path, read_summaries(tmp_path))}
    assert units == {"of-runs": "mean return", "of-ratios": "Sharpe ratio"}


def test_a_link_to_itself_hides_no_study(tmp_path):
    make_study(tmp_path, "s")
    (tmp_path / "self").symlink_to("self")
    assert [each.name for each in read_studies(tmp_path)] == ["s"]

"""The sign of life of whoever works on a trial."""

import json
import threading
from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState

from ml_pipeline.runtime.process_identity import ProcessIdentity, this_process
from ml_pipeline.tuning.study_files import HEARTBEAT_FILE
from ml_pipeline.tuning.trials.lost_trials import Beat, Heartbeat, beat_from, read_beat

OTHER = ProcessIdentity("another-machine", 4711, "boot/1", None)


def _wait_for_beats(folder: Path, n: int, patience: threading.Event) -> Beat:
    while (beat := read_beat(folder)) is None or beat.beats < n:
        patience.wait(0.005)
    return beat


def test_it_beats_while_the_block_runs_and_is_gone_after_it(tmp_path: Path) -> None:
    with Heartbeat(tmp_path / "trial-0007", 7, every_s=0.01):
        beat = _wait_for_beats(tmp_path / "trial-0007", 3, threading.Event())
        assert (beat.trial, beat.process) == (7, this_process())
    assert list((tmp_path / "trial-0007").iterdir()) == []
    assert not [thread for thread in threading.enumerate() if "heartbeat" in thread.name]


def test_it_ends_with_an_error_in_the_block(tmp_path: Path) -> None:
    with pytest.raises(KeyError), Heartbeat(tmp_path, 7):
        raise KeyError
    assert read_beat(tmp_path) is None


@pytest.mark.parametrize("taken", ["by another", "removed"])
def test_whoever_was_taken_for_dead_is_told_once_and_leaves_the_file_alone(taken: str, tmp_path: Path) -> None:
    told = threading.Event()
    with Heartbeat(tmp_path, 7, every_s=0.01, on_lost=told.set) as heartbeat:
        _wait_for_beats(tmp_path, 1, threading.Event())
        content = json.dumps(Beat(9, OTHER, 0).as_json())
        path = tmp_path / HEARTBEAT_FILE
        while not told.is_set():  # a beat may be under way
            path.write_text(content) if taken == "by another" else path.unlink(missing_ok=True)
            told.wait(0.05)
        path.write_text(content)
    assert heartbeat.lost
    assert read_beat(tmp_path) == Beat(9, OTHER, 0)


def test_a_folder_that_is_deleted_is_no_lost_trial(tmp_path: Path) -> None:
    folder = tmp_path / "trial-0007"
    with Heartbeat(folder, 7, every_s=0.001, on_lost=lambda: pytest.fail("lost")) as heartbeat:
        folder.rename(tmp_path / "moved")
        _wait_for_beats_of(heartbeat, 5)
    assert not folder.exists()
    assert not heartbeat.lost


def _wait_for_beats_of(heartbeat: Heartbeat, n: int) -> None:
    begin = heartbeat._beats
    while heartbeat._beats < begin + n:
        threading.Event().wait(0.002)


def test_where_folders_are_not_shared_it_beats_in_the_storage(tmp_path: Path) -> None:
    study = optuna.create_study()
    trial = study.ask()
    with Heartbeat(tmp_path, trial.number, stored=trial, every_s=0.002):
        seen = set()
        while len(seen) < 3:
            stored = beat_from(study.trials[0].user_attrs["heartbeat"])
            assert stored is not None
            assert stored.process == this_process()
            seen.add(stored.beats)


def test_a_trial_that_others_have_ended_is_lost(tmp_path: Path) -> None:
    study = optuna.create_study()
    trial = study.ask()
    told = threading.Event()
    with Heartbeat(tmp_path, trial.number, stored=trial, every_s=0.002, on_lost=told.set) as heartbeat:
        study.tell(trial.number, state=TrialState.FAIL)
        assert told.wait(60)
    assert heartbeat.lost


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"trial": 1, "host": 3, "pid": 1, "beats": 1}'])
def test_what_is_no_sign_of_life_is_none(content: str, tmp_path: Path) -> None:
    (tmp_path / HEARTBEAT_FILE).write_text(content)
    assert read_beat(tmp_path) is None


def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "private").write_text("keep")
    (tmp_path / HEARTBEAT_FILE).symlink_to(tmp_path / "private")
    with Heartbeat(tmp_path, 7):
        assert read_beat(tmp_path) is not None
    assert (tmp_path / "private").read_text() == "keep"

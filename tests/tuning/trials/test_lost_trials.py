"""Trials of killed processes are failed once, and queued again from their checkpoints."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import optuna
import pytest
from optuna.trial import FrozenTrial, TrialState

from ml_pipeline.runs.folder_claim import FolderClaim
from ml_pipeline.runs.state import read_state
from ml_pipeline.runtime.process_identity import ProcessIdentity, this_process
from ml_pipeline.tuning.storage.open_storage import open_storage
from ml_pipeline.tuning.study_files import HEARTBEAT_FILE, trial_folder
from ml_pipeline.tuning.trials.lost_trials import (
    MAX_RETRIES,
    SILENCE_S,
    Beat,
    Heartbeat,
    LostTrials,
    fail_lost_trials,
    read_beat,
    record_process,
)

ELSEWHERE = ProcessIdentity("another-machine", 4711, "boot/1", "pid:[1]")


class Clock:
    """A clock that goes on by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def _study(folder: Path) -> optuna.Study:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage = open_storage(None, folder, pytest.fail)
    return optuna.create_study(storage=storage, study_name="s", direction="maximize", load_if_exists=True)


def _begin(study: optuna.Study, folder: Path, process: ProcessIdentity | None, beats: int = 0) -> optuna.Trial:
    """A running trial, with the sign of life that a process left."""
    trial = study.ask()
    trial.suggest_float("x", 0, 1)
    _beat(folder, trial.number, process, beats)
    return trial


def _beat(folder: Path, number: int, process: ProcessIdentity | None, beats: int) -> None:
    trial_folder(folder, number).mkdir(parents=True, exist_ok=True)
    if process is not None:
        content = json.dumps(Beat(number, process, beats).as_json())
        (trial_folder(folder, number) / HEARTBEAT_FILE).write_text(content)


def _dead_process() -> ProcessIdentity:
    ours = this_process()
    return ours._replace(started=f"{ours.started}0")  # the pid belongs to a process that began at another time


def _states(study: optuna.Study) -> list[TrialState]:
    return [trial.state for trial in study.trials]


def _watch_for(watch: LostTrials, clock: Clock, seconds: float, each: Callable[[], None] = lambda: None) -> list[int]:
    """What a finder that looks every five seconds finds."""
    found: list[int] = []
    for _ in range(round(seconds / 5)):
        each()
        found += watch.fail()
        clock.now += 5
    return found


def test_a_trial_whose_process_is_gone_is_failed_at_once_and_queued_again(tmp_path: Path) -> None:
    study, said = _study(tmp_path), list[str]()
    trial = _begin(study, tmp_path, _dead_process())
    trial.report(0.25, 100)
    trial.set_user_attr("folders", ["trial-0000"])
    trial.set_user_attr("settings", {"gamma": 0.9})
    trial.set_user_attr("pid", 5)
    assert fail_lost_trials(study, tmp_path, said.append) == [0]
    lost, again = study.trials
    assert lost.state is TrialState.FAIL
    assert re.match(
        r"The process \d+ on \S+ ended without a message \((last|no) sign of life.*\): it was killed",
        lost.user_attrs["reason"],
    )
    assert again.state is TrialState.WAITING
    assert (again.params, again.intermediate_values) == (trial.params, {100: 0.25})
    expected = {
        "folders": ["trial-0000"],
        "settings": {"gamma": 0.9},
        "failed_trial": 0,
        "retry_history": [0],
    }
    assert again.user_attrs == expected
    assert optuna.storages.RetryHeartbeatStaleTrialCallback.retried_trial_number.__wrapped__(again) == 0
    retried = study.ask()
    assert (retried.number, retried.suggest_float("x", 0, 1)) == (1, trial.params["x"])
    assert len(said) == 1


def test_a_real_process_killed_with_kill_9_is_found_gone(tmp_path: Path) -> None:
    code = (
        "import sys, time, pathlib; from ml_pipeline.tuning.trials.lost_trials import Heartbeat\n"
        "with Heartbeat(pathlib.Path(sys.argv[1]), 0): print('beats', flush=True); time.sleep(600)"
    )
    study = _study(tmp_path)
    study.ask().suggest_float("x", 0, 1)
    command = [sys.executable, "-c", code, str(tmp_path / "trial-0000")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "beats\n"
        assert fail_lost_trials(study, tmp_path, pytest.fail) == []
        process.kill()
    assert fail_lost_trials(study, tmp_path, list[str]().append) == [0]


@pytest.mark.parametrize("in_file", [True, False], ids=["in the folder", "in the storage"])
def test_a_process_of_another_machine_is_lost_when_its_beats_stop(in_file: bool, tmp_path: Path) -> None:
    study, clock, said = _study(tmp_path), Clock(), list[str]()
    trial = _begin(study, tmp_path, None)
    beats = iter(range(1000))

    def beat() -> None:
        if in_file:
            _beat(tmp_path, 0, ELSEWHERE, next(beats))
        else:
            trial.set_user_attr("heartbeat", Beat(0, ELSEWHERE, next(beats)).as_json())

    watch = LostTrials(study, tmp_path, said.append, clock=clock)
    assert _watch_for(watch, clock, 300, beat) == []
    assert _watch_for(watch, clock, SILENCE_S - 5) == []
    assert _watch_for(watch, clock, 10) == [0]
    assert "Process 4711 on another-machine sent no heartbeat for 45 s." in study.trials[0].user_attrs["reason"]


def test_clocks_of_other_machines_do_not_matter(tmp_path: Path) -> None:
    study, clock = _study(tmp_path), Clock()
    _begin(study, tmp_path, ELSEWHERE)
    os.utime(tmp_path / "trial-0000" / HEARTBEAT_FILE, (0, 0))  # a clock far behind
    watch = LostTrials(study, tmp_path, list[str]().append, clock=clock)
    assert _watch_for(watch, clock, SILENCE_S - 5) == []


def test_a_trial_that_nobody_ever_gave_a_sign_of_life_for_is_lost_too(tmp_path: Path) -> None:
    study, clock = _study(tmp_path), Clock()
    study.ask()  # killed before it did anything
    watch = LostTrials(study, tmp_path, list[str]().append, clock=clock)
    assert _watch_for(watch, clock, SILENCE_S + 10) == [0]
    assert _states(study) == [TrialState.FAIL], "there is nothing to try again"


def test_a_process_killed_before_its_heartbeat_began_is_known_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = _study(tmp_path)
    with monkeypatch.context() as another:
        another.setattr("ml_pipeline.tuning.trials.lost_trials.this_process", _dead_process)
        trial = study.ask()
        record_process(trial, trial.number)
    assert fail_lost_trials(study, tmp_path, list[str]().append) == [0]
    record_process(trial := study.ask(), trial.number)
    assert fail_lost_trials(study, tmp_path, pytest.fail) == []


def test_a_finder_that_slept_does_not_take_the_others_for_dead(tmp_path: Path) -> None:
    study, clock = _study(tmp_path), Clock()
    _begin(study, tmp_path, ELSEWHERE)
    watch = LostTrials(study, tmp_path, pytest.fail, clock=clock)
    assert watch.fail() == []
    clock.now += 3600
    assert watch.fail() == []


def test_a_living_process_of_this_machine_is_never_lost(tmp_path: Path) -> None:
    study, clock = _study(tmp_path), Clock()
    _begin(study, tmp_path, this_process())  # its thread does not beat
    watch = LostTrials(study, tmp_path, pytest.fail, clock=clock)
    assert _watch_for(watch, clock, 600) == []


def test_the_heartbeat_of_the_trial_that_is_continued_does_not_count(tmp_path: Path) -> None:
    study, clock = _study(tmp_path), Clock()
    _begin(study, tmp_path, _dead_process())
    fail_lost_trials(study, tmp_path, list[str]().append)
    _beat(tmp_path, 0, _dead_process(), 9)  # which a network disk still shows
    retried = study.ask()
    watch = LostTrials(study, tmp_path, list[str]().append, clock=clock)
    assert watch.fail() == []
    with Heartbeat(tmp_path / "trial-0000", retried.number):
        assert _watch_for(watch, clock, 100) == []


def test_only_one_of_several_finders_queues_a_lost_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _begin(_study(tmp_path), tmp_path, _dead_process())
    finders = [LostTrials(_study(tmp_path), tmp_path, list[str]().append) for _ in range(3)]
    found: list[list[int]] = []
    why_lost = LostTrials._why_lost

    def interrupted(self: LostTrials, trial: FrozenTrial) -> str | None:
        """Between a finder's look and its failing of the trial, the next finder does both."""
        if waiting := finders[len(started) :]:
            started.append(waiting[0])
            found.append(waiting[0].fail())
        return why_lost(self, trial)

    started = [finders[0]]
    monkeypatch.setattr(LostTrials, "_why_lost", interrupted)
    found.append(finders[0].fail())
    assert sorted(found) == [[], [], [0]]
    assert _states(_study(tmp_path)) == [TrialState.FAIL, TrialState.WAITING]


def test_a_trial_that_ends_just_before_it_is_failed_stays_as_it_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = _study(tmp_path)
    trial = _begin(study, tmp_path, _dead_process())
    why_lost = LostTrials._why_lost

    def ends(self: LostTrials, seen: FrozenTrial) -> str | None:
        _study(tmp_path).tell(trial.number, 7.0)
        return why_lost(self, seen)

    monkeypatch.setattr(LostTrials, "_why_lost", ends)
    assert fail_lost_trials(study, tmp_path, pytest.fail) == []
    assert study.trials[0].value == 7.0


def test_a_trial_that_is_lost_again_and_again_fails_for_good(tmp_path: Path) -> None:
    study, said = _study(tmp_path), list[str]()
    _begin(study, tmp_path, _dead_process())
    for attempt in range(1, MAX_RETRIES + 1):
        assert fail_lost_trials(study, tmp_path, said.append) == [attempt - 1]
        retried = study.ask()
        assert retried.number == attempt
        assert retried.user_attrs["folders"] == ["trial-0000"]
        content = json.dumps(Beat(attempt, _dead_process(), 0).as_json())
        (tmp_path / "trial-0000" / HEARTBEAT_FILE).write_text(content)
    fail_lost_trials(study, tmp_path, said.append)
    assert _states(study) == [TrialState.FAIL] * (MAX_RETRIES + 1)
    assert study.trials[-1].user_attrs["retry_history"] == [0, 1, 2]
    assert study.trials[-1].user_attrs["reason"].endswith("It was lost 4 times, and is not retried.")


def test_the_run_folder_of_a_lost_trial_of_another_machine_may_be_continued(tmp_path: Path) -> None:
    study, clock = _study(tmp_path), Clock()
    _begin(study, tmp_path, ELSEWHERE)
    folder = tmp_path / "trial-0000"
    claim = FolderClaim(folder)
    state = json.loads((folder / "state.json").read_text())
    claim.abandon()
    (folder / "state.json").write_text(json.dumps({**state, "host": ELSEWHERE.host}))
    found = read_state(folder)
    assert found is not None
    assert (found.status, found.writer.host) == ("running", ELSEWHERE.host)
    watch = LostTrials(study, tmp_path, list[str]().append, clock=clock)
    assert _watch_for(watch, clock, 60) == [0]
    found = read_state(folder)
    assert found is not None
    assert found.status == "failed"
    FolderClaim(folder).abandon()


def test_trials_of_several_runs_are_found_by_their_first_folder(tmp_path: Path) -> None:
    study = _study(tmp_path)
    study.ask()
    for seed in (0, 1):
        trial_folder(tmp_path, 0, f"seed-{seed}").mkdir()
    content = json.dumps(Beat(0, _dead_process(), 0).as_json())
    (trial_folder(tmp_path, 0, "seed-0") / HEARTBEAT_FILE).write_text(content)
    assert fail_lost_trials(study, tmp_path, list[str]().append) == [0]
    assert study.trials[1].user_attrs["folders"] == ["trial-0000-seed-0", "trial-0000-seed-1"]
    assert read_beat(trial_folder(tmp_path, 0, "seed-0")) is None


def test_a_lost_trial_that_names_a_folder_outside_of_the_study_changes_nothing_there(tmp_path: Path) -> None:
    folder, victim = tmp_path / "study", tmp_path / "victim"
    victim.mkdir()
    (victim / HEARTBEAT_FILE).write_text("{}")
    study = _study(folder)
    trial = _begin(study, folder, _dead_process())
    record_process(trial, trial.number)
    study._storage.set_trial_user_attr(trial._trial_id, "heartbeat", Beat(0, _dead_process(), 0).as_json())
    trial.set_user_attr("folders", ["../victim"])
    assert fail_lost_trials(study, folder, lambda sentence: None) == [0]
    assert [path.name for path in victim.iterdir()] == [HEARTBEAT_FILE]

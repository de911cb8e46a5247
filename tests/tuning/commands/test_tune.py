"""`ml-pipeline tune` as a user runs it, with real runs."""

import json
import os
import signal
import subprocess
import sys
import time

import optuna
import pytest

from ml_pipeline.tuning.commands.tune import main
from ml_pipeline.tuning.storage.open_storage import open_storage
from tests.training_commands import run_here

SMALL = (
    *("--env-id", "CartPole-v1", "--n-envs", "2", "--n-steps", "32", "--minibatch-size", "64", "--n-epochs", "1"),
    *("--hidden-sizes", "8", "--eval-episodes", "1", "--vec-env", "serial", "--seed", "3", "--pruner", "median"),
)


def _command(tmp_path, name, *more):
    space = tmp_path / "space.yaml"
    space.write_text("learning_rate: {log: [1e-4, 1e-2]}\n")
    flags = ("--study-name", name, "--root", tmp_path / "runs", "--space", space, *SMALL, *more)
    return [sys.executable, "-m", "ml_pipeline", "tune", *map(str, flags)]


def _finished(tmp_path, name):
    storage = open_storage(None, tmp_path / "runs" / name, pytest.fail)
    trials = optuna.load_study(study_name=name, storage=storage).trials
    assert not [trial for trial in trials if trial.state.name in {"RUNNING", "WAITING"}]
    return [(trial.state.name, trial.value, trial.params) for trial in trials if trial.state.name != "FAIL"]


@pytest.mark.system
@pytest.mark.timeout(600)
def test_a_study_that_is_interrupted_and_gone_on_with_has_the_trials_of_one_that_was_not(tmp_path):
    length = ("--n-trials", "4", "--n-jobs", "1", "--total-timesteps", "4096")
    whole = subprocess.run(
        _command(tmp_path, "whole", *length), capture_output=True, text=True, timeout=250, check=True
    )
    assert "Study whole: 4 trials finished" in whole.stdout
    assert "ml-pipeline report whole --root" in whole.stdout
    command = _command(tmp_path, "parts", *length)
    tune = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    metrics = tmp_path / "runs" / "parts" / "trial-0001" / "metrics.jsonl"
    while tune.poll() is None and not (metrics.exists() and metrics.read_text().count("\n") > 2):
        time.sleep(0.01)
    tune.send_signal(signal.SIGINT)
    output, _ = tune.communicate(timeout=250)
    assert tune.returncode == 128 + signal.SIGINT, output
    assert "Trial 1: stopped at step" in output
    assert "Go on with:\n  ml-pipeline tune --study-name parts" in output
    again = subprocess.run(command, capture_output=True, text=True, timeout=250, check=True)
    assert "Trial 2 goes on in trial-0001." in again.stdout
    assert _finished(tmp_path, "parts") == _finished(tmp_path, "whole")


@pytest.mark.system
@pytest.mark.timeout(600)
def test_a_second_interrupt_ends_at_once_and_leaves_nothing_running(tmp_path):
    command = _command(tmp_path, "s", "--n-trials", "2", "--n-jobs", "2", "--total-timesteps", "100_000_000")
    tune = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    folders = [tmp_path / "runs" / "s" / f"trial-000{number}" / "metrics.jsonl" for number in range(2)]
    while tune.poll() is None and not all(each.exists() for each in folders):
        time.sleep(0.01)
    for worker in (tmp_path / "runs" / "s").glob("trial-*/heartbeat"):
        os.kill(json.loads(worker.read_text())["pid"], signal.SIGSTOP)  # a step that never ends
    tune.send_signal(signal.SIGINT)
    assert tune.stdout is not None
    while "Stopping" not in (line := tune.stdout.readline()):
        assert line, "it ended before"
    tune.send_signal(signal.SIGINT)
    tune.communicate(timeout=250)
    assert tune.returncode == 128 + signal.SIGINT
    storage = open_storage(None, tmp_path / "runs" / "s", pytest.fail)
    states = [trial.state.name for trial in optuna.load_study(study_name="s", storage=storage).trials]
    assert sorted(states) == ["FAIL", "FAIL", "WAITING", "WAITING"]


def test_a_study_that_has_its_trials_says_so_and_starts_no_process(tmp_path, monkeypatch):
    monkeypatch.setattr("ml_pipeline.tuning.workers.run_study.count_trials", lambda study: _Enough())
    monkeypatch.setattr("ml_pipeline.tuning.workers.run_study.WorkerProcesses", pytest.fail)
    flags = _command(tmp_path, "s", "--n-trials", "1")[4:]
    output = run_here(main, *flags)
    assert "Study s: 0 of 1 trial finished" in output.stdout


class _Enough:
    finished = 10


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--n-trials", "0"], "--n-trials must be a whole number of at least 1, but got 0."),
        (["--sampler", "tpee"], 'Did you mean "tpe"?'),
        (["--pruner", "asha2"], 'Did you mean "asha"?'),
        (["--space", "pppo"], 'Did you mean "ppo"?'),
        (["--env-id", "CartPole-v7"], "CartPole"),
        (["--storage", "/nowhere/study.log"], "/nowhere"),
        (["--continue-trial", "3"], "no trial 3"),
    ],
)
def test_what_cannot_be_used_is_one_sentence_and_exit_code_2(tmp_path, flags, sentence):
    given = _command(tmp_path, "s", "--total-timesteps", "64")[4:]
    output = run_here(main, *given, *flags, expect=2)
    assert sentence in output.stderr
    assert output.stderr.count("\n") == 1


def test_trials_of_a_lost_journal_are_not_written_over(tmp_path):
    left = tmp_path / "runs" / "s" / "trial-0000"
    left.mkdir(parents=True)
    given = _command(tmp_path, "s", "--total-timesteps", "64")[4:]
    output = run_here(main, *given, expect=2)
    assert "holds trials of a study whose storage is gone; choose another --study-name" in output.stderr

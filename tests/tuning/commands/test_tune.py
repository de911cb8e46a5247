"""`ml-pipeline tune` as a user runs it, with real runs."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time

import optuna
import psutil
import pytest

from ml_pipeline.runs.state import read_state
from ml_pipeline.service.commands import stop
from ml_pipeline.tuning.commands.tune import main
from ml_pipeline.tuning.storage.open_storage import open_storage
from ml_pipeline.tuning.study_files import is_running_study
from tests.training_commands import REPOSITORY, run_here

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
    assert "Continue with:\n  ml-pipeline tune --study-name parts" in output
    again = subprocess.run(command, capture_output=True, text=True, timeout=250, check=True)
    assert "Trial 2 continues in trial-0001." in again.stdout
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
    monkeypatch.setattr("ml_pipeline.tuning.trials.run_study.count_trials", lambda study: _Enough())
    monkeypatch.setattr("ml_pipeline.tuning.trials.run_study.Supervisor", pytest.fail)
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


HELD = """
import os, time
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv

class Held(CartPoleEnv):
    n_steps = 0

    def step(self, action):
        self.n_steps += 1
        while self.n_steps > 150 and os.path.exists(os.environ["HOLD"]):
            time.sleep(0.01)
        return super().step(action)

gymnasium.register("Held-v0", Held, max_episode_steps=200)
"""
TWO_BY_TWO = ("--n-trials", "2", "--n-jobs", "2", "--n-processes", "2", "--checkpoint-interval", "1")


@contextlib.contextmanager
def _tuning(command, **environment):
    """A running `tune`, the lines that it has printed so far, and what is killed at the end if it is still there."""
    environment = {**os.environ, **environment}
    tune = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
    lines: list[str] = []
    reader = threading.Thread(target=lambda: lines.extend(iter(tune.stdout.readline, "")))
    reader.start()
    try:
        yield tune, lines
    finally:
        if tune.poll() is None:
            for process in [*psutil.Process(tune.pid).children(recursive=True), tune]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        tune.wait()
        reader.join()
        tune.stdout.close()


def _family(folder):
    """By worker of the trials that run in a study's folder, its other ranks."""
    beats = [json.loads(path.read_text()) for path in folder.glob("trial-*/heartbeat")]
    workers = [psutil.Process(beat["pid"]) for beat in beats]
    return {
        worker: [each for each in worker.children() if "rank_process" in " ".join(each.cmdline())] for worker in workers
    }


def _until(condition, tune, lines):
    pause = threading.Event()
    while not condition():
        assert tune.poll() is None, "".join(lines)
        pause.wait(0.01)


def _train_all(folder):
    """Whether both trials train."""
    metrics = [folder / f"trial-000{number}" / "metrics.jsonl" for number in range(2)]
    return all(each.exists() and each.read_text().count("\n") > 2 for each in metrics)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_trials_of_two_processes_have_the_values_of_one_also_where_a_rank_and_a_worker_are_killed(tmp_path):
    (tmp_path / "held.py").write_text(HELD)
    hold, folder = tmp_path / "hold", tmp_path / "runs" / "ranks"
    environment = {"HOLD": str(hold), "PYTHONPATH": os.pathsep.join([str(tmp_path), str(REPOSITORY)])}
    held = ("--env-id", "held:Held-v0", "--total-timesteps", "2048")
    alone = _command(tmp_path, "alone", *held, "--n-trials", "2", "--n-jobs", "1", "--normalize-update", "rollout")
    subprocess.run(alone, env={**os.environ, **environment}, capture_output=True, timeout=250, check=True)
    hold.touch()
    with _tuning(_command(tmp_path, "ranks", *held, *TWO_BY_TWO), **environment) as (tune, lines):
        _until(lambda: _train_all(folder), tune, lines)
        (_, (rank,)), (worker, (other,)) = _family(folder).items()
        rank.kill()
        worker.kill()
        hold.unlink()
        assert tune.wait(timeout=250) == 0, "".join(lines)
    said = "".join(lines)
    assert "was lost, and is queued again to continue from its checkpoint. Rank 1 was killed by SIGKILL." in said
    assert f"Worker process {worker.pid} was killed by SIGKILL in trial" in said
    assert not other.is_running()
    assert sorted(_finished(tmp_path, "ranks"), key=str) == sorted(_finished(tmp_path, "alone"), key=str)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_no_process_outlives_a_tune_that_is_killed(tmp_path):
    folder = tmp_path / "runs" / "s"
    with _tuning(_command(tmp_path, "s", "--total-timesteps", "100_000_000", *TWO_BY_TWO)) as (tune, lines):
        _until(lambda: _train_all(folder), tune, lines)
        family = psutil.Process(tune.pid).children(recursive=True)
        assert sum("rank_process" in " ".join(each.cmdline()) for each in family) == 2
        tune.kill()
        _, alive = psutil.wait_procs(family, timeout=100)
    assert alive == []
    storage = open_storage(None, folder, pytest.fail)
    states = [trial.state.name for trial in optuna.load_study(study_name="s", storage=storage).trials]
    assert sorted(states) == ["FAIL", "FAIL", "WAITING", "WAITING"]
    assert [read_state(folder / f"trial-000{number}").status for number in range(2)] == ["stopped"] * 2


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("words", [("s",), ("--all",)])
def test_a_study_that_is_stopped_saves_its_trials_and_starts_no_others(tmp_path, words):
    root = tmp_path / "runs"
    length = ("--total-timesteps", "100_000_000", "--n-trials", "5", "--n-jobs", "2", "--n-workers", "0")
    with _tuning(_command(tmp_path, "s", *length)) as (tune, lines):
        _until(lambda: _train_all(root / "s") and is_running_study(root / "s"), tune, lines)
        assert stop.main([*words, "--root", str(root)]) == 0
        assert tune.wait(timeout=250) == 128 + signal.SIGTERM, "".join(lines)
    storage = open_storage(None, root / "s", pytest.fail)
    trials = optuna.load_study(study_name="s", storage=storage).trials
    assert sorted(trial.state.name for trial in trials) == ["FAIL", "FAIL", "WAITING", "WAITING"]
    assert {trial.user_attrs["reason"] for trial in trials[:2]} == {"stopped"}
    assert not is_running_study(root / "s")
    assert stop.main(["s", "--root", str(root)]) == 2

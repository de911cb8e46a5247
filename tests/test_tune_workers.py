"""The entry that measures how many workers pay: as users run it, and its parts."""

import subprocess
import sys
from functools import partial

import pytest

from ml_pipeline import tune_workers
from ml_pipeline.models.rl.core.probe_envs import TimedEnv


def test_it_says_what_to_pass_within_20_s():
    command = [sys.executable, "-m", "ml_pipeline.tune_workers", "--env-id", "CartPole-v1", "--n-envs", "4"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100)
    *measured, sentence = done.stdout.splitlines()
    assert measured[0].startswith("--n-workers 0: ")
    assert "stepping " in sentence  # a busy machine makes every step wait
    assert sentence.split("; ")[-1].startswith("--n-workers ")
    assert done.stderr == ""


def test_bad_input_is_one_sentence(capsys):
    with pytest.raises(SystemExit) as stopped:
        tune_workers.main(["--env-id", "CartPoll-v1"])
    assert stopped.value.code == 2
    assert "CartPole-v1" in capsys.readouterr().err


def test_a_slow_environment_is_found_and_waiting_told_from_computing():
    env_fns = [partial(TimedEnv, wait_s=2e-3)] * 3 + [partial(TimedEnv, wait_s=20e-3)]
    costs = tune_workers.measure_costs(env_fns, budget_s=0.8)
    sentence = tune_workers.verdict(costs, {0: 100.0, 2: 190.0, 4: 360.0})
    assert sentence.startswith("environment 3 is ")
    assert "stepping waits 9" in sentence
    assert sentence.endswith("--n-workers 4")


def test_fewer_workers_win_where_more_gain_nothing():
    assert tune_workers.verdict({}, {0: 96.0, 2: 100.0}).endswith("looked into; --n-workers 0")
    assert tune_workers.verdict({}, {0: 94.0, 2: 100.0}).endswith("--n-workers 2")


def test_rates_are_measured_with_workers():
    assert 0 < tune_workers.measure_rate([partial(TimedEnv, wait_s=5e-3)] * 2, 2) <= 2 / 5e-3

"""The entry that measures how many workers pay: as users run it, and its parts."""

import re
import subprocess
import sys
from functools import partial

import pytest

from ml_pipeline import tune_workers
from ml_pipeline.models.rl.core import vec_env
from ml_pipeline.models.rl.core.probe_envs import TimedEnv
from ml_pipeline.models.rl.core.workers.choice import HERE, Division, StepCost
from ml_pipeline.runs import task_choice


def workers(n):
    return Division(n, steps_here=False)


def test_it_says_what_to_pass_within_20_s():
    command = [sys.executable, "-m", "ml_pipeline.tune_workers", "--env-id", "CartPole-v1", "--n-envs", "4"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100)
    *measured, sentence = done.stdout.splitlines()
    line_form = r"--n-workers (\d|auto \(this process and \d workers?\)): [\d,]+ steps/s"
    assert all(re.match(line_form, line) for line in measured)
    assert [line for line in measured if line.endswith("which auto chooses")] == measured[:1]
    assert "stepping " in sentence  # a busy machine makes every step wait
    assert sentence.split("; ")[-1].startswith("--n-workers ")
    assert done.stderr == ""


class Uneven:
    """A task of environments that wait, one of them four times as long."""

    def train_env_fns(self, n):
        return [partial(TimedEnv, wait_s=5e-3)] * (n - 1) + [partial(TimedEnv, wait_s=20e-3)]


def test_the_sentence_names_the_slow_one_and_the_workers_that_help(monkeypatch, capsys):
    monkeypatch.setattr(task_choice, "make_task", lambda config: Uneven())
    monkeypatch.setattr(tune_workers, "_COSTS_S", 0.4)
    monkeypatch.setattr(tune_workers, "_RATES_S", 2.0)
    assert tune_workers.main(["--env-id", "CartPole-v1", "--n-envs", "4"]) == 0
    *measured, sentence = capsys.readouterr().out.splitlines()
    assert len(measured) >= 3
    slow, waits, flag = sentence.split("; ")
    assert slow == "environment 3 is 4x slower than the others"
    assert re.match(r"stepping waits (9\d|100) % of the time, \d+\.\d ms a step", waits)
    assert flag == "--n-workers 4"  # two workers would take 25 ms a step, four take 20


def test_slow_environments_are_measured_where_it_matters_and_in_time(monkeypatch, capsys):
    task = type("Slow", (), {"train_env_fns": lambda self, n: [partial(TimedEnv, wait_s=0.2)] * n})
    monkeypatch.setattr(task_choice, "make_task", lambda config: task())
    monkeypatch.setattr(tune_workers, "_COSTS_S", 0.2)
    monkeypatch.setattr(tune_workers, "_RATES_S", 1.5)
    tune_workers.main(["--env-id", "CartPole-v1", "--n-envs", "8"])
    output = capsys.readouterr().out
    assert re.match(r"--n-workers 8: \d+ steps/s, which auto chooses\n", output)
    assert "--n-workers 0: not measured, for want of time; no more than 5\n" in output
    assert output.endswith("--n-workers 8\n")


def test_bad_input_is_one_sentence(capsys):
    with pytest.raises(SystemExit) as stopped:
        tune_workers.main(["--env-id", "CartPoll-v1"])
    assert stopped.value.code == 2
    assert "CartPole-v1" in capsys.readouterr().err


def test_a_slow_environment_is_found_and_waiting_told_from_computing():
    env_fns = [partial(TimedEnv, wait_s=2e-3)] * 3 + [partial(TimedEnv, wait_s=20e-3)]
    costs = tune_workers.measure_costs(env_fns, budget_s=0.8)
    sentence = tune_workers.verdict(costs, {HERE: 100.0, workers(2): 190.0, workers(4): 360.0})
    assert sentence.startswith("environment 3 is ")
    assert re.search(r"stepping waits (9\d|100) %", sentence)
    assert sentence.endswith("--n-workers 4")


def test_fewer_workers_win_where_more_gain_nothing():
    assert tune_workers.verdict({}, {HERE: 96.0, workers(2): 100.0}).endswith("looked into; --n-workers 0")
    assert tune_workers.verdict({}, {HERE: 94.0, workers(2): 100.0}).endswith("--n-workers 2")


def test_auto_is_said_where_this_process_should_step_a_share():
    shared = Division(1, steps_here=True)
    flag = "--n-workers auto (this process and 1 worker)"
    assert tune_workers.verdict({}, {shared: 100.0, HERE: 60.0, workers(2): 104.0}).endswith(flag)
    assert tune_workers.verdict({}, {shared: 100.0, HERE: 60.0, workers(2): 106.0}).endswith("--n-workers 2")


def test_a_share_of_this_process_is_measured(monkeypatch, capsys):
    shared = Division(1, steps_here=True)
    monkeypatch.setattr(vec_env, "_fastest", lambda example, num_envs: shared)
    monkeypatch.setattr(tune_workers, "_RATES_S", 0.0)
    rates = tune_workers.measure_rates([partial(TimedEnv, busy_s=1e-4)] * 4, StepCost(1e-4, 0.0))
    assert list(rates) == [shared]
    first, *others = capsys.readouterr().out.splitlines()
    assert re.match(r"--n-workers auto \(this process and 1 worker\): [\d,]+ steps/s, which auto chooses$", first)
    assert all("not measured" in line for line in others)


def test_rates_are_measured_with_workers():
    division, rate = tune_workers.measure_rate([partial(TimedEnv, wait_s=5e-3)] * 2, 2)
    assert division == workers(2)
    assert 0 < rate <= 2 / 5e-3

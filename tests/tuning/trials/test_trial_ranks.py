"""A trial of several processes is the run of one, and no loss of a process hangs it or is taken for a bad trial."""

import contextlib
import json
import os
import re
import signal

import psutil
import pytest
import yaml

from ml_pipeline.config.settings import flatten
from ml_pipeline.runs.state import read_state
from ml_pipeline.runs.stop import StopRequest
from ml_pipeline.runs.train_config import train_config
from ml_pipeline.tuning.trials.rank_process import config_in
from ml_pipeline.tuning.trials.trial_ranks import TrialRanks
from tests.tuning.trial_runs import CARTPOLE, TRADING, WatchedTrial, alone, train, trial_runs, weights

FASTER = {"learning_rate": 1e-2}
ROLLOUT, TWO = {"normalize_update": "rollout"}, {"n_processes": 2}

BOOM = """
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv

class Boom(CartPoleEnv):
    def reset(self, *, seed=None, options=None):
        self.fails = seed == 1  # the second of two environments
        return super().reset(seed=seed, options=options)

    def step(self, action):
        if self.fails:
            raise RuntimeError("out of ink")
        return super().step(action)

gymnasium.register("Boom-v0", Boom)
"""


@pytest.fixture(scope="module")
def ranks():
    """Kept from test to test, as from trial to trial."""
    with contextlib.closing(TrialRanks()) as ranks:
        yield ranks


def two(ranks, folder, base=CARTPOLE, **objective):
    runs = trial_runs(folder, {**base, **TWO}, **objective)
    runs._ranks = ranks
    return runs


def pid_of(ranks):
    return ranks._processes[0].pid


@pytest.mark.parametrize(
    ("base", "objective"),
    [
        (CARTPOLE, {}),
        pytest.param(CARTPOLE, {"seeds_per_trial": 2}, marks=pytest.mark.long),
        (TRADING, {}),
        pytest.param(TRADING, {"objective": "sharpe", "folds": 2}, marks=pytest.mark.long),
        pytest.param({**TRADING, "vec_env": "batched"}, {}, marks=pytest.mark.long),
    ],
    ids=["gymnasium", "seeds", "trading", "folds", "batched"],
)
def test_a_trial_of_two_processes_is_that_of_one_and_of_train(tmp_path, ranks, base, objective):
    whole, shared = WatchedTrial(7), WatchedTrial(7)
    one = train(trial_runs(tmp_path / "one", {**base, **ROLLOUT}, **objective), whole, FASTER)
    outcome = train(two(ranks, tmp_path / "two", base, **objective), shared, FASTER)
    assert outcome == one
    assert outcome.state == "complete"
    assert shared.reports == whole.reports
    for name in outcome.folders:
        settings = yaml.safe_load((tmp_path / "two" / name / "config.yaml").read_text())
        assert (settings["n_processes"], settings["normalize_update"]) == (2, "rollout")
        alone(tmp_path / "two", name, tmp_path)
        for checkpoint in ("best.pt", "latest.pt"):
            trained = weights(tmp_path / "two" / name, checkpoint)
            assert trained == weights(tmp_path / "one" / name, checkpoint) == weights(tmp_path / name, checkpoint)


def test_a_pruned_trial_ends_at_its_evaluation_and_goes_on_to_the_weights_of_one_that_was_not(tmp_path, ranks):
    whole, pruned, later = WatchedTrial(), WatchedTrial(prune_after=1), WatchedTrial(1)
    complete = train(trial_runs(tmp_path / "whole", {**CARTPOLE, **ROLLOUT}), whole)
    runs = two(ranks, tmp_path / "parts")
    outcome = train(runs, pruned)
    assert (outcome.state, outcome.global_step) == ("pruned", 64)
    assert read_state(tmp_path / "parts" / "trial-0000").reason == outcome.reason
    again = train(runs, later, folders=outcome.folders)
    assert (again.state, again.value, later.reports) == ("complete", complete.value, whole.reports)
    assert weights(tmp_path / "parts" / "trial-0000") == weights(tmp_path / "whole" / "trial-0000")
    settings = yaml.safe_load((tmp_path / "parts" / "trial-0000" / "config.yaml").read_text())
    assert settings["n_processes"] == 2


def test_a_stop_request_saves_at_the_step_of_all(tmp_path, ranks):
    stop, trial = StopRequest(), WatchedTrial()
    trial.should_prune = lambda: stop.request("Ctrl-C.")
    outcome = train(two(ranks, tmp_path), trial, stop=stop)
    assert (outcome.state, outcome.reason, outcome.global_step) == ("stopped", "Ctrl-C.", 64)


def test_an_early_end_is_that_of_one_process(tmp_path, ranks):
    base = {**CARTPOLE, "stop_at_return": 1.0}
    one = train(trial_runs(tmp_path / "one", {**base, **ROLLOUT}), WatchedTrial())
    assert train(two(ranks, tmp_path / "two", base), WatchedTrial()) == one
    assert one.global_step < 256


def test_ranks_are_kept_for_the_next_trial(tmp_path, ranks):
    runs = two(ranks, tmp_path)
    assert train(runs, WatchedTrial(0)).state == "complete"
    pid = pid_of(ranks)
    assert train(runs, WatchedTrial(1)).state == "complete"
    assert pid_of(ranks) == pid


def test_signals_are_left_to_the_worker(tmp_path, ranks):
    trial = WatchedTrial()
    trial.should_prune = lambda: [os.kill(pid_of(ranks), number) for number in (signal.SIGINT, signal.SIGTERM)] and None
    assert train(two(ranks, tmp_path), trial).state == "complete"


def test_an_idle_rank_ends_with_its_worker(ranks):
    ranks.start(2)
    (process,) = ranks._processes
    process._process.stdin.close()  # as the system does where the worker is killed
    assert process.wait(100) is not None


@pytest.mark.long
def test_a_rank_that_is_killed_is_named_and_the_trial_goes_on_from_its_checkpoint(tmp_path, ranks):
    whole = train(trial_runs(tmp_path / "whole", {**CARTPOLE, **ROLLOUT}), WatchedTrial())
    runs, trial = two(ranks, tmp_path / "parts", {**CARTPOLE, "checkpoint_interval": 1}), WatchedTrial()
    trial.should_prune = lambda: len(trial.reports) == 2 and os.kill(pid_of(ranks), signal.SIGKILL)
    outcome = train(runs, trial)
    assert (outcome.state, outcome.reason) == ("lost", "Rank 1 was killed by SIGKILL.")
    assert ranks._processes == []
    later = WatchedTrial(1)
    again = train(runs, later, folders=outcome.folders)
    assert (again.state, again.value) == ("complete", whole.value)
    assert weights(tmp_path / "parts" / "trial-0000") == weights(tmp_path / "whole" / "trial-0000")


@pytest.mark.long
def test_a_rank_that_is_killed_before_or_between_runs_holds_nobody_up(tmp_path, ranks):
    runs = two(ranks, tmp_path)
    ranks.start(2)
    os.kill(pid_of(ranks), signal.SIGKILL)
    ranks._processes[0].wait()
    assert train(runs, WatchedTrial(0)).state == "complete"
    os.kill(pid_of(ranks), signal.SIGSTOP)  # it cannot end before the run asks for it
    started = ranks.start
    ranks.start = lambda size: (started(size), os.kill(pid_of(ranks), signal.SIGKILL))
    outcome = train(runs, WatchedTrial(1))
    del ranks.start
    assert (outcome.state, outcome.reason) == ("lost", "Rank 1 was killed by SIGKILL.")


@pytest.mark.long
@pytest.mark.long
def test_a_rank_that_is_ready_but_never_comes_holds_nobody_up(tmp_path, ranks, monkeypatch):
    (tmp_path / "never_comes.py").write_text("import time; print('{\"ready\": true}', flush=True); time.sleep(600)")
    monkeypatch.setattr("ml_pipeline.tuning.trials.trial_ranks._RANK", "never_comes")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr("ml_pipeline.models.rl.distributed.rank_group._MEETING_S", 1.0)
    with contextlib.closing(TrialRanks()) as hanging:
        outcome = train(two(hanging, tmp_path), WatchedTrial())
        assert hanging._processes == []
    assert outcome.state == "lost"
    assert outcome.reason.startswith(
        "Rank 0 of 2 could not meet the others at 127.0.0.1 (rank 1 did not come within 1 s); "
    )
    monkeypatch.undo()
    assert train(two(ranks, tmp_path), WatchedTrial(1)).state == "complete"


@pytest.mark.long
@pytest.mark.long
def test_a_rank_that_hangs_is_named_and_ended(tmp_path, ranks):
    runs, trial = two(ranks, tmp_path, {**CARTPOLE, "rank_timeout_s": 10.0}), WatchedTrial()
    stopped = []

    def stop_rank():
        stopped.append(psutil.Process(pid_of(ranks)))
        stopped[0].suspend()

    trial.should_prune = stop_rank
    outcome = train(runs, trial)
    assert outcome.state == "lost"
    assert re.search(rf"process {stopped[0].pid}\) did not (come|answer) within 10 s", outcome.reason)
    assert not stopped[0].is_running()


@pytest.mark.long
def test_a_rank_whose_environment_raises_fails_the_trial_with_what_it_raised(tmp_path, ranks, monkeypatch):
    (tmp_path / "boom.py").write_text(BOOM)
    monkeypatch.syspath_prepend(tmp_path)
    outcome = train(two(ranks, tmp_path, {**CARTPOLE, "env_id": "boom:Boom-v0"}), WatchedTrial())
    assert outcome.state == "failed"
    assert "nvironment 1 of 2 " in outcome.reason
    assert "RuntimeError: out of ink" in outcome.reason
    assert ranks._processes == []


@pytest.mark.long
@pytest.mark.long
def test_what_the_first_rank_raises_ends_the_others(tmp_path, ranks, monkeypatch):
    runs = two(ranks, tmp_path)
    monkeypatch.setattr("ml_pipeline.runs.gym_task.GymTask.score", lambda task, act: 1 / 0)
    outcome = train(runs, WatchedTrial())
    assert (outcome.state, outcome.reason) == ("failed", "ZeroDivisionError: division by zero")
    assert ranks._processes == []
    monkeypatch.undo()
    assert train(runs, WatchedTrial(1)).state == "complete"


def test_an_order_reaches_another_process_whole(tmp_path):
    config = train_config(
        {
            "env_id": "mine:Env-v0",
            "env_kwargs": {"size": [1, 2.5], "names": None},
            "n_envs": 4,
            "n_envs_schedule": {1000: 8},
            "n_processes": 2,
            "rank_timeout_s": 5.0,
            "hidden_sizes": (8, 4),
            "clip_range_vf": 0.1,
            "total_timesteps": 10_000,
            "stop_at_return": -1e-300,
            "checkpoint_dir": tmp_path / "a study" / "trial-0000",
            "sink": ("mine:Sink",),
        }
    )
    order = json.loads(json.dumps({"settings": flatten(config)}, default=str))
    assert config_in(order) == config

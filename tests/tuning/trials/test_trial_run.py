"""A trial is a run, or several: exact, prunable, resumable, and blind to the test split."""

import json
import math
import statistics

import pytest

from ml_pipeline.runs.checkpoint import load_checkpoint
from ml_pipeline.runs.gym_task import GymTask
from ml_pipeline.runs.state import read_state
from ml_pipeline.runs.stop import StopRequest
from ml_pipeline.trading.traded_market import TradedMarket
from ml_pipeline.tuning.study_files import RETURNS_FILE
from ml_pipeline.tuning.trials.trial_run import report_interval
from ml_pipeline.tuning.trials.validation_returns import read_validation_returns
from tests.tuning.trial_runs import CARTPOLE, TRADING, WatchedTrial, alone, train, trial_runs, weights

FASTER = {"learning_rate": 1e-2}


@pytest.mark.parametrize(
    ("base", "objective"),
    [
        (CARTPOLE, {}),
        (CARTPOLE, {"seeds_per_trial": 2}),
        (TRADING, {}),
        (TRADING, {"objective": "sharpe", "folds": 2}),
    ],
    ids=["gymnasium", "seeds", "trading", "folds"],
)
def test_a_trial_trained_alone_gives_its_value_to_the_last_digit(tmp_path, base, objective):
    trial = WatchedTrial(7)
    outcome = train(trial_runs(tmp_path / "study", base, **objective), trial, FASTER)
    assert outcome.state == "complete"
    results = [alone(tmp_path / "study", name, tmp_path) for name in outcome.folders]
    assert outcome.value == statistics.median(result.best_score for result in results) == trial.reports[-1][1]
    assert outcome.global_step == sum(result.global_step for result in results)
    for name in outcome.folders:
        assert weights(tmp_path / name, "best.pt") == weights(tmp_path / "study" / name, "best.pt")


def test_each_run_of_a_trial_has_a_folder_beside_the_others(tmp_path):
    runs = trial_runs(tmp_path, TRADING, folds=2)
    assert runs.folders(7, {}) == ("trial-0007-fold-1", "trial-0007-fold-2")
    assert trial_runs(tmp_path).folders(12, {}) == ("trial-0012",)


def test_two_trials_in_one_process_give_the_bits_that_each_gives_alone(tmp_path):
    both, settings = trial_runs(tmp_path / "both"), [FASTER, {"gamma": 0.9, "hidden_sizes": (4,)}]
    for number, each in enumerate(settings):
        train(both, WatchedTrial(number), each)
        train(trial_runs(tmp_path / "alone"), WatchedTrial(number), each)
        name = f"trial-{number:04}"
        assert weights(tmp_path / "both" / name) == weights(tmp_path / "alone" / name)


def test_a_pruned_trial_is_saved_at_the_evaluation_that_pruned_it(tmp_path):
    trial = WatchedTrial(prune_after=2)
    outcome = train(trial_runs(tmp_path), trial)
    assert (outcome.state, outcome.global_step, outcome.value) == ("pruned", 128, trial.reports[-1][1])
    assert outcome.reason.startswith("Pruned after 128 steps, at ")
    state = read_state(tmp_path / "trial-0000")
    assert (state.status, state.reason) == ("stopped", outcome.reason)


@pytest.mark.parametrize("seeds", [1, 2])
def test_a_pruned_trial_goes_on_to_the_weights_and_reports_of_one_that_was_not(tmp_path, seeds):
    whole, pruned, later = WatchedTrial(), WatchedTrial(prune_after=3 * seeds - 1), WatchedTrial(1)
    complete = train(trial_runs(tmp_path / "whole", seeds_per_trial=seeds), whole)
    runs = trial_runs(tmp_path / "parts", seeds_per_trial=seeds)
    outcome = train(runs, pruned)
    assert outcome.state == "pruned"
    again = train(runs, later, folders=outcome.folders)
    assert (again.state, again.value, again.folders) == ("complete", complete.value, complete.folders)
    assert later.reports == whole.reports
    for name in complete.folders:
        assert weights(tmp_path / "parts" / name) == weights(tmp_path / "whole" / name)


def test_a_trial_pruned_at_the_end_of_one_seed_does_not_begin_the_next(tmp_path):
    outcome = train(trial_runs(tmp_path, seeds_per_trial=2), WatchedTrial(prune_after=4))
    assert (outcome.state, outcome.global_step) == ("pruned", 256)
    assert not (tmp_path / "trial-0000-seed-1").exists()


def test_every_evaluation_counts_also_one_that_is_not_reported(tmp_path):
    """Reports are 256 steps apart, by the study's n_steps of 128, and evaluations 64, by the trial's own of 32."""
    runs, trial = (
        trial_runs(tmp_path, {**CARTPOLE, "n_steps": 128, "total_timesteps": 512}),
        WatchedTrial(prune_after=1),
    )
    outcome = train(runs, trial, {"n_steps": 32})
    assert (outcome.state, len(trial.reports), outcome.n_evaluations) == ("pruned", 1, 4)
    assert train(runs, WatchedTrial(), {"n_steps": 32}, folders=outcome.folders).n_evaluations == 8


def test_the_last_evaluation_prunes_nothing(tmp_path):
    assert train(trial_runs(tmp_path), WatchedTrial(prune_after=4)).state == "complete"


def test_a_stop_request_saves_and_the_trial_goes_on_later(tmp_path):
    stop, trial = StopRequest(), WatchedTrial()
    trial.should_prune = lambda: stop.request("Ctrl-C.")  # while the trial runs
    outcome = train(trial_runs(tmp_path), trial, stop=stop)
    assert (outcome.state, outcome.reason, outcome.global_step) == ("stopped", "Ctrl-C.", 64)
    assert train(trial_runs(tmp_path), WatchedTrial(), stop=stop).state == "stopped"  # before it begins
    again = train(trial_runs(tmp_path), WatchedTrial(1), folders=outcome.folders)
    assert (again.state, again.global_step) == ("complete", 256)


def test_impossible_settings_are_told_before_anything_begins(tmp_path):
    outcome = train(trial_runs(tmp_path), WatchedTrial(), {"minibatch_size": 4096})
    assert outcome.state == "impossible"
    assert outcome.reason.startswith("minibatch_size must be at most n_envs * n_steps = 2 * 32 = 64, but got 4096")
    assert not any(tmp_path.iterdir())


def test_what_breaks_a_run_down_fails_its_trial_with_the_reason(tmp_path, monkeypatch):
    runs = trial_runs(tmp_path)
    monkeypatch.setattr(GymTask, "score", lambda task, act: 1 / 0)
    outcome = train(runs, WatchedTrial())
    assert (outcome.state, outcome.reason) == ("failed", "ZeroDivisionError: division by zero")
    monkeypatch.undo()
    assert train(runs, WatchedTrial(1)).state == "complete"
    refused = train(runs, WatchedTrial(1))
    assert refused.state == "failed"
    assert "trial-0001 already holds a run" in refused.reason


def test_what_the_storage_raises_is_raised_once_the_run_is_saved(tmp_path):
    trial = WatchedTrial()
    trial.should_prune = lambda: (_ for _ in ()).throw(ConnectionError("the server is away"))
    with pytest.raises(ConnectionError, match="the server is away"):
        train(trial_runs(tmp_path), trial)
    assert read_state(tmp_path / "trial-0000").status == "stopped"
    assert load_checkpoint(tmp_path / "trial-0000" / "latest.pt")["best_score"] == trial.reports[0][1]


def test_the_test_split_is_never_read(tmp_path, monkeypatch):
    usual = TradedMarket.split
    asked = []

    def split(task, name):
        asked.append(name)
        if name not in {"train", "validation"}:
            raise AssertionError(f"the {name} split was read")
        return usual(task, name)

    monkeypatch.setattr(TradedMarket, "split", split)
    outcome = train(trial_runs(tmp_path, TRADING), WatchedTrial())
    assert outcome.state == "complete"
    assert {*asked} == {"train", "validation"}
    folder = tmp_path / "trial-0000"
    assert outcome.validation_sharpe == read_validation_returns(folder).sharpe
    assert not (folder / "report.html").exists()
    assert not (folder / "evaluation.json").exists()


def test_reports_of_trials_with_other_rollouts_are_at_the_same_steps(tmp_path):
    base = {name: value for name, value in CARTPOLE.items() if name != "eval_interval"}
    steps = []
    for number, n_steps in enumerate((32, 48)):
        trial = WatchedTrial(number)
        train(trial_runs(tmp_path, {**base, "total_timesteps": 1000}), trial, {"n_steps": n_steps})
        steps.append([step for step, _ in trial.reports])
    assert steps[0] == steps[1] == list(range(100, 1001, 100))
    rows = (tmp_path / "trial-0001" / "metrics.jsonl").read_text().splitlines()
    assert sum("eval/score" in json.loads(row) for row in rows) == 11


def test_reports_are_a_tenth_of_the_budget_apart_where_the_settings_do_not_say():
    assert report_interval({"n_envs": 8, "n_steps": 16, "iterations": 50}) == 640
    assert report_interval({"total_timesteps": 5}) == 1


def test_the_returns_kept_while_training_are_those_of_the_best_checkpoint(tmp_path):
    runs = trial_runs(tmp_path, {**TRADING, "eval_interval": 1})
    outcome = train(runs, WatchedTrial(), FASTER)
    kept = read_validation_returns(tmp_path / "trial-0000")
    (tmp_path / "trial-0000" / RETURNS_FILE).unlink()
    train(runs, WatchedTrial(1), FASTER, folders=outcome.folders)  # is finished, and measures the best policy anew
    measured = read_validation_returns(tmp_path / "trial-0000")
    assert kept.returns.tolist() == measured.returns.tolist()
    assert outcome.value == pytest.approx(math.log(math.prod(1 + kept.returns)), abs=1e-12)

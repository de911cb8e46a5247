"""Trials of one study have the same splits, whatever they observe."""

import pytest

from ml_pipeline.runs.train_config import train_config
from ml_pipeline.trading.settings import TradingConfig
from ml_pipeline.tuning.trials.trial_task import TaskSource
from ml_pipeline.tuning.trials.validation_returns import read_validation_returns
from tests.tuning.trial_runs import TRADING, WatchedTrial, train, trial_runs

STUDY = TradingConfig(features=("log_return_5", "rsi_14"), window=1, embargo_bars=3)


def edges(splits):
    return splits["train"].stop, splits["validation"].start, splits["validation"].stop, splits["test"].start


@pytest.mark.parametrize("window", [1, 2, 7, 16, 61])
def test_the_splits_are_those_of_the_study_to_the_bar(window):
    source = TaskSource()
    trial = TradingConfig(features=("log_return_5", "rsi_14", "volatility_60"), window=window, embargo_bars=3)
    fractions = source.fractions_as_of(STUDY, trial)
    of_trial = source.task(train_config({"features": trial.features, "window": window, "embargo_bars": 3})).account
    of_study = source.task(train_config({"features": STUDY.features, "window": 1, "embargo_bars": 3})).account
    assert of_trial.first_bar > of_study.first_bar
    found = of_trial.splits_by(train=fractions["train_fraction"], validation=fractions["validation_fraction"])
    assert edges(found) == edges({name: of_study.split(name) for name in ("train", "validation", "test")})


def test_a_trial_that_observes_what_the_study_does_keeps_its_fractions():
    assert TaskSource().fractions_as_of(STUDY, STUDY) == {}


def test_trials_of_other_windows_are_validated_on_the_same_bars(tmp_path):
    runs = trial_runs(tmp_path, {**TRADING, "total_timesteps": 64})
    for number, window in enumerate((1, 16)):
        assert train(runs, WatchedTrial(number), {"window": window}).state == "complete"
    times = [trial_times(tmp_path / f"trial-000{number}") for number in range(2)]
    assert times[0] == times[1]


def trial_times(folder):
    return read_validation_returns(folder).time.tolist()

from dataclasses import replace

import numpy as np
import pytest

from ml_pipeline.trading.market.synthetic import synthetic_market
from ml_pipeline.trading.settings import TradingConfig
from ml_pipeline.trading.task import TradingTask
from ml_pipeline.trading.traded_market import traded_markets
from ml_pipeline.trading.trained_state import TrainedBars, as_saved, under_conditions

CONFIG = TradingConfig(features=("log_return_1", "rsi_3"), sell_fee_bps=9.0, periods_per_year=7.0)
MARKET = synthetic_market(n_bars=200)


@pytest.mark.parametrize(
    ("changes", "on_other_data", "expected"),
    [
        ({}, None, (9.0, 7.0)),
        ({"fee_bps": 1.0}, None, (None, 7.0)),
        ({"fee_bps": 1.0, "sell_fee_bps": 2.0}, None, (2.0, 7.0)),
        ({"data": None}, None, (9.0, None)),
        ({"data": None, "periods_per_year": 3.0}, None, (9.0, 3.0)),
        ({}, True, (9.0, None)),
        ({"data": None}, False, (9.0, 7.0)),
    ],
)
def test_what_belongs_to_the_data_of_the_training_is_left_out_on_others(changes, on_other_data, expected):
    config = under_conditions(CONFIG, changes, on_other_data=on_other_data)
    assert (config.sell_fee_bps, config.periods_per_year) == expected


def _without_ranges(state):
    return {name: value for name, value in state.items() if name not in {"feature_ranges", "trained_bars"}}


def test_a_state_is_compared_with_one_of_an_older_version_without_what_that_lacks():
    task = TradingTask(CONFIG, market=MARKET)
    now, older = task.state(), _without_ranges(task.state())
    assert as_saved(now, now) == now
    assert as_saved(now, older) == older
    other = TradingTask(CONFIG, market=synthetic_market(seed=1, n_bars=200)).state()
    assert as_saved(other, now) != now
    assert as_saved(other, older) != older


def test_so_is_that_of_several_symbols():
    config = replace(CONFIG, per_symbol=True)
    now = TradingTask(config, accounts=traded_markets(config, {"A": MARKET, "B": MARKET})).state()
    older = {"each_symbol": {name: _without_ranges(own) for name, own in now["each_symbol"].items()}}
    assert as_saved(now, older) == older
    fewer = {"each_symbol": {"A": older["each_symbol"]["A"]}}
    assert as_saved(now, fewer) != fewer


def test_ranges_are_of_the_training_split_and_stay_those_of_the_training_on_other_data():
    task = TradingTask(CONFIG, market=MARKET)
    train = task.account.split("train")
    seen = task.account.features.values[train.start : train.stop]
    np.testing.assert_array_equal(task.account.ranges.high, seen.max(axis=0))
    later = task.with_fractions(train=0.3, validation=0.15)
    assert later.account.ranges.high.tolist() != task.account.ranges.high.tolist()
    elsewhere = TradingTask.from_state(task.state(), replace(CONFIG, data=None))
    assert elsewhere.state()["feature_ranges"] == task.state()["feature_ranges"]


def test_bars_that_were_trained_on_are_counted_in_an_evaluation_of_others():
    trained = TradingTask(CONFIG, market=MARKET)
    last = trained.account.split("train").stop
    task = TradingTask(CONFIG, market=MARKET.bars(last - 40, 200))
    assert task.about_training("all") == ()  # of no policy's training
    task.account.trained_bars = TrainedBars.from_state(trained.state())
    (said,) = task.about_training("all")
    n_inside = 40 - task.account.split("all").start
    assert said.startswith(f"{n_inside} of the {task.account.split('all').n_bars} bars were used in training (from ")
    assert task.about_training("test") == ()
    task.account.trained_bars = task.account.trained_bars._replace(symbols=("OTHER",))
    assert task.about_training("all") == ()


def test_bars_of_another_length_than_in_training_are_named():
    task = TradingTask(CONFIG, market=MARKET)
    trained = TrainedBars.from_state(task.state())
    task.account.trained_bars = trained._replace(length_ns=24 * trained.length_ns, symbols=("OTHER",))
    (said,) = task.about_training("test")
    assert said.startswith("the policy was trained on bars of 24")


def test_what_a_checkpoint_of_an_older_version_does_not_tell_is_not_guessed():
    assert TrainedBars.from_state({}) is None
    assert TrainedBars.from_state({"trained_bars": ["no time", 3]}) is None

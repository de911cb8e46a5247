from contextlib import suppress

import numpy as np
import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.trading.evaluation.baselines import EquityPath, run_policy
from ml_pipeline.trading.evaluation.metrics import sharpe
from ml_pipeline.trading.market.synthetic import synthetic_market
from ml_pipeline.trading.settings import TradingConfig
from ml_pipeline.trading.task import TradingTask
from ml_pipeline.trading.traded_market import traded_markets
from ml_pipeline.tuning.study_files import RETURNS_FILE
from ml_pipeline.tuning.trials import validation_returns
from ml_pipeline.tuning.trials.validation_returns import (
    ValidationReturns,
    mean_returns,
    measure_validation_returns,
    read_validation_returns,
    returns_of_paths,
)

CONFIG = TradingConfig(features=("log_return_1", "rsi_14"), window=3, fee_bps=20.0)
DAYS = np.datetime64("2024-01-01", "ns") + np.arange(30) * np.timedelta64(1, "D")


def follow(observation):
    return int(observation[0] > 0) * 2


@pytest.fixture(scope="module")
def task():
    return TradingTask(CONFIG, market=synthetic_market(n_bars=400))


def test_the_returns_are_those_of_the_validation_ledger_after_costs(task):
    measured = measure_validation_returns(task, follow)
    ledger = run_policy(task.evaluation_env("validation"), follow)
    np.testing.assert_array_equal(measured.returns, ledger["equity"][1:] / ledger["equity"][:-1] - 1)
    np.testing.assert_array_equal(measured.time, ledger["time"][1:])
    assert ledger["costs_paid"][-1] > 0
    assert measured.periods_per_year == task.account.market.periods_per_year
    assert measured.sharpe == sharpe(measured.returns, measured.periods_per_year)
    test = task.account.split("test")
    assert measured.time[-1] < task.account.market.times[test.start]


def test_together_they_are_the_score(task, monkeypatch):
    assert np.log1p(measure_validation_returns(task, follow).returns).sum() == pytest.approx(
        task.score(follow), abs=1e-12
    )
    monkeypatch.setattr("ml_pipeline.trading.traded_market._MOST_SCORED", 20)  # the end of a long split
    measured = measure_validation_returns(task, follow)
    assert len(measured) == 19
    assert np.log1p(measured.returns).sum() == pytest.approx(task.score(follow), abs=1e-12)


def test_of_an_account_per_symbol_they_are_the_mean_of_the_accounts():
    markets = {f"S{i}": synthetic_market(i, n_bars=400) for i in range(3)}
    config = TradingConfig(features=CONFIG.features, window=3, per_symbol=True)
    task = TradingTask(config, accounts=traded_markets(config, markets))
    together = measure_validation_returns(task, follow)
    alone = [returns_of_paths([each.scored_path(follow)]).returns for each in task.accounts.values()]
    np.testing.assert_allclose(together.returns, np.mean(alone, axis=0), atol=1e-15)
    assert len({each.sum() for each in alone}) == 3


def test_an_account_without_a_bar_earns_nothing_there():
    early = ValidationReturns(DAYS[:20], np.full(20, 0.02), 252.0)
    late = ValidationReturns(DAYS[10:], np.full(20, 0.04), 252.0)
    together = mean_returns([early, late])
    np.testing.assert_array_equal(together.time, DAYS)
    np.testing.assert_allclose(together.returns, [0.01] * 10 + [0.03] * 10 + [0.02] * 10)
    assert mean_returns([early, ValidationReturns(DAYS, np.zeros(30), 300.0)]).periods_per_year == 365  # of these days


def test_a_closed_account_earns_nothing_to_the_end():
    class Ruined:
        def scored_paths(self, act):
            equity = np.array([100.0, 50.0, -1.0, -1.0, -1.0])
            return (EquityPath(DAYS[:5], equity, 252.0),)

    np.testing.assert_array_equal(measure_validation_returns(Ruined(), follow).returns, [-0.5, -1.0, 0.0, 0.0])


def test_what_was_written_is_read_back(tmp_path):
    values = np.random.default_rng(0).standard_normal(30)
    assert read_validation_returns(tmp_path) is None
    ValidationReturns(DAYS, values, 252.5).write(tmp_path / RETURNS_FILE)
    read = read_validation_returns(tmp_path)
    np.testing.assert_array_equal(read.returns, values)
    np.testing.assert_array_equal(read.time, DAYS)
    assert read.periods_per_year == 252.5
    assert [path.name for path in tmp_path.iterdir()] == [RETURNS_FILE]


def test_a_torn_file_is_named(tmp_path):
    path = tmp_path / RETURNS_FILE
    ValidationReturns(DAYS, np.zeros(30), 252.0).write(path)
    path.write_bytes(path.read_bytes()[:-1])
    sentence = r"cannot be read as validation returns.*remove it to judge the study"
    with pytest.raises(UserError, match=sentence) as raised:
        read_validation_returns(tmp_path)
    assert str(path) in str(raised.value)


def test_no_change_of_a_file_goes_unnoticed(tmp_path):
    path = tmp_path / RETURNS_FILE
    values = np.random.default_rng(0).standard_normal(30)
    ValidationReturns(DAYS, values, 252.0).write(path)
    whole = path.read_bytes()
    unusable = [b"", b"no archive", whole[: len(whole) // 2], whole[:-1]]
    unusable += [
        whole[:at] + bytes(20) + whole[at + 20 :] for at in range(60, len(whole) - 20, 40)
    ]  # flipped in places
    said = []
    for contents in unusable:
        path.write_bytes(contents)
        with suppress(UserError):
            read = read_validation_returns(tmp_path)
            np.testing.assert_array_equal(read.returns, values)  # where a byte was changed that means nothing
            np.testing.assert_array_equal(read.time, DAYS)
            continue
        said.append(contents)
    assert len(said) > len(unusable) / 2


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"returns": np.zeros(3)}, "time"),
        ({"returns": np.zeros(3), "time": DAYS[:2], "periods_per_year": 252.0}, "Each return needs a time"),
        ({"returns": np.array([np.nan]), "time": DAYS[:1], "periods_per_year": 252.0}, "must be finite numbers"),
        ({"returns": np.zeros(1), "time": DAYS[:1], "periods_per_year": 0.0}, "must be finite numbers"),
        ({"returns": np.array([None]), "time": DAYS[:1], "periods_per_year": 1.0}, "cannot be read"),
        ({"returns": np.array(["a"]), "time": DAYS[:1], "periods_per_year": 1.0}, "cannot be read"),
    ],
)
def test_a_file_of_something_else_is_said(tmp_path, fields, message):
    np.savez(tmp_path / RETURNS_FILE, **fields)
    with pytest.raises(UserError, match=message):
        read_validation_returns(tmp_path)
    np.save(tmp_path / "array", np.zeros(3))
    (tmp_path / "array.npy").replace(tmp_path / RETURNS_FILE)
    with pytest.raises(UserError, match="cannot be read as validation returns"):
        read_validation_returns(tmp_path)


def test_returns_that_unpack_to_gigabytes_are_refused_unread(tmp_path, monkeypatch):
    monkeypatch.setattr(validation_returns, "_MOST_BYTES", 1 << 20)
    zeros = np.zeros(1 << 18)
    np.savez_compressed(tmp_path / RETURNS_FILE, time=zeros, returns=zeros, periods_per_year=252.0)
    with pytest.raises(UserError, match=r"it unpacks to more than 1\.05 MB; remove it"):
        read_validation_returns(tmp_path)

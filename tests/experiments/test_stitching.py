"""Folds become one evaluation whose ledger adds up from the first bar to the last."""

import numpy as np
import pytest

from ml_pipeline.experiments.stitching import stitched_evaluation, stitched_ledger
from ml_pipeline.trading.accounts.ledger import symbols_of
from ml_pipeline.trading.market.splits import Split
from ml_pipeline.trading.market.synthetic import synthetic_market
from ml_pipeline.trading.settings import TradingConfig
from ml_pipeline.trading.task import TradingTask


@pytest.fixture(scope="module")
def folds():
    market = synthetic_market(n_bars=400, n_symbols=2)
    config = TradingConfig(features=("log_return_1",), fee_bps=20, borrow_bps_per_year=300)
    generator = np.random.default_rng(0)
    compared = []
    for start, stop in ((200, 260), (259, 330), (329, 400)):
        splits = {
            "train": Split("train", 10, 190),
            "validation": Split("validation", 190, 200),
            "test": Split("test", start, stop),
        }
        task = TradingTask(config, market=market, splits=splits)
        compared.append(task.compare(lambda _: generator.uniform(-1, 1, 2)).evaluation)
    return compared


def assert_adds_up(ledger):
    symbols = symbols_of(ledger)
    paid = np.diff(ledger["costs_paid"])
    spent = sum(ledger[f"filled_{s}"][1:] * np.nan_to_num(ledger[f"fill_price_{s}"][1:]) for s in symbols)
    np.testing.assert_allclose(np.diff(ledger["cash"]), -spent - paid, atol=1e-6)
    worth = sum(ledger[f"position_{s}"] * ledger[f"close_{s}"] for s in symbols)
    np.testing.assert_allclose(ledger["equity"], ledger["cash"] + worth, atol=1e-6)
    for s in symbols:
        np.testing.assert_allclose(np.diff(ledger[f"position_{s}"]), ledger[f"filled_{s}"][1:], atol=1e-9)


def test_the_ledgers_go_on_and_add_up(folds):
    whole, begun = stitched_evaluation(folds, "walk-forward")
    assert begun == [60, 131]
    for ledger in (whole.agent, whole.buy_and_hold, whole.equal_weight, *whole.random):
        assert_adds_up(ledger)
    times = whole.agent["time"]
    assert [row for row in range(1, len(times)) if times[row] == times[row - 1]] == begun
    assert (np.diff(times) >= np.timedelta64(0)).all()


def test_the_returns_of_the_folds_multiply(folds):
    whole, _ = stitched_evaluation(folds, "walk-forward")
    for name in ("agent", "buy_and_hold"):
        parts = [getattr(fold, name)["equity"] for fold in folds]
        product = np.prod([part[-1] / part[0] for part in parts])
        assert whole.figures[name]["total_return"] == pytest.approx(product - 1)
    assert sum(whole.limits.values()) == sum(sum(fold.limits.values()) for fold in folds)


def test_a_ruined_account_trades_no_later_fold():
    runs = [
        {"equity": np.array([100.0, 0.5]), "cash": np.array([100.0, 0.5]), "costs_paid": np.zeros(2)},
        {"equity": np.array([100.0, 200.0]), "cash": np.array([100.0, 200.0]), "costs_paid": np.zeros(2)},
    ]
    assert stitched_ledger(runs)["equity"].tolist() == [100.0, 0.5]

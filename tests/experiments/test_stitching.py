"""Folds become one evaluation whose ledger adds up from the first bar to the last."""

import numpy as np
import pytest

from ml_pipeline.experiments.stitching import closed_at_the_end, closed_ledger, stitched_evaluation, stitched_ledger
from ml_pipeline.trading.accounts.ledger import symbols_of
from ml_pipeline.trading.accounts.rules import TradingRules
from ml_pipeline.trading.accounts.trades import costs_of, trades_of
from ml_pipeline.trading.market.splits import Split
from ml_pipeline.trading.market.synthetic import synthetic_market
from ml_pipeline.trading.settings import TradingConfig
from ml_pipeline.trading.task import TradingTask
from ml_pipeline.trading.traded_market import TradedMarket


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
        task = TradingTask(config, accounts={"": TradedMarket(config, market=market, splits=splits)})
        compared.append(closed_at_the_end(task.compare(lambda _: generator.uniform(-1, 1, 2)).evaluation))
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
    assert begun == [60, 131]  # the rows in which the fold before closed its positions
    for ledger in (whole.agent, whole.buy_and_hold, whole.equal_weight, *whole.random):
        assert_adds_up(ledger)
    times = whole.agent["time"]
    assert [row for row in range(1, len(times)) if times[row] == times[row - 1]] == [*begun, len(times) - 1]
    assert (np.diff(times) >= np.timedelta64(0)).all()


def test_the_returns_of_the_folds_multiply(folds):
    whole, _ = stitched_evaluation(folds, "walk-forward")
    for name in ("agent", "buy_and_hold", "equal_weight"):
        parts = [getattr(fold, name)["equity"] for fold in folds]
        product = np.prod([part[-1] / part[0] for part in parts])
        assert whole.figures[name]["total_return"] == pytest.approx(product - 1)
    assert sum(whole.limits.values()) == sum(sum(fold.limits.values()) for fold in folds)


@pytest.mark.parametrize("name", ["agent", "buy_and_hold", "equal_weight"])
def test_what_is_held_at_the_end_of_a_fold_is_closed_at_its_cost(folds, name):
    """A fee of 20 bps and no other cost of trading: the last row sells or buys back all at the close."""
    whole, begun = stitched_evaluation(folds, "walk-forward")
    ledger = getattr(whole, name)
    for row in (*begun, len(ledger["time"]) - 1):
        held = [ledger[f"position_{s}"][row - 1] * ledger[f"close_{s}"][row - 1] for s in symbols_of(ledger)]
        assert any(held)
        paid = ledger["costs_paid"][row] - ledger["costs_paid"][row - 1]
        assert paid == pytest.approx(np.abs(held).sum() * 0.002)
        assert ledger["equity"][row] == pytest.approx(ledger["equity"][row - 1] - paid)
        assert not any(ledger[f"position_{s}"][row] for s in symbols_of(ledger))
    assert not any(trade.open for trade in trades_of(ledger))


def test_closing_pays_every_cost_of_an_order():
    """Sells 10 at 50: 5 bps of fee, 3 of slippage and a half-spread of 20 on 500, and 2 per order make 3.4."""
    rules = TradingRules(fee_bps=9, sell_fee_bps=5, slippage_bps=3, fixed_fee=2)
    ledger = {
        "time": np.array(["2024-01-01", "2024-01-02"], dtype="datetime64[ns]"),
        "equity": np.array([1000.0, 1000.0]),
        "cash": np.array([1000.0, 500.0]),
        "costs_paid": np.array([0.0, 7.0]),
        "close_A": np.array([50.0, 50.0]),
        "position_A": np.array([0.0, 10.0]),
        "filled_A": np.array([0.0, 10.0]),
        "fill_price_A": np.array([np.nan, 50.0]),
        "half_spread_A": np.array([0.002, 0.002]),
    }
    closed = closed_ledger(ledger, rules, 252)
    assert closed["cash"][-1] == closed["equity"][-1] == pytest.approx(500 + 500 - 3.4)
    assert closed["costs_paid"][-1] == pytest.approx(7 + 3.4)
    assert (closed["filled_A"][-1], closed["fill_price_A"][-1], closed["position_A"][-1]) == (-10, 50, 0)
    assert costs_of(closed, rules, 252)["other"][-1].sum() == pytest.approx(0, abs=1e-12)


def test_a_ruined_account_trades_no_later_fold():
    runs = [
        {"equity": np.array([100.0, 0.5]), "cash": np.array([100.0, 0.5]), "costs_paid": np.zeros(2)},
        {"equity": np.array([100.0, 200.0]), "cash": np.array([100.0, 200.0]), "costs_paid": np.zeros(2)},
    ]
    assert stitched_ledger(runs)["equity"].tolist() == [100.0, 0.5]

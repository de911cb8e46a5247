"""Rolling figures, drawdowns and months: by hand, by their slow definition, and against quantstats."""

import importlib.util
import warnings

import numpy as np
import pytest

from ml_pipeline.trading.evaluation import metrics
from ml_pipeline.trading.evaluation.metrics import (
    Drawdown,
    drawdowns,
    monthly_returns,
    rolling_sharpe,
    rolling_volatility,
)

needs_quantstats = pytest.mark.skipif(
    importlib.util.find_spec("quantstats") is None, reason="quantstats is not installed"
)


@pytest.mark.parametrize("scale", [1e-6, 0.01, 0.5])
def test_rolling_figures_are_those_of_each_window(scale):
    returns = np.random.default_rng(0).normal(scale / 10, scale, 300)
    volatility, ratio = rolling_volatility(returns, 20, 252), rolling_sharpe(returns, 20, 252)
    assert np.isnan(volatility[:19]).all()
    assert np.isnan(ratio[:19]).all()
    for i in range(19, 300):
        assert volatility[i] == pytest.approx(metrics.volatility(returns[i - 19 : i + 1], 252), rel=1e-9)
        assert ratio[i] == pytest.approx(metrics.sharpe(returns[i - 19 : i + 1], 252), rel=1e-9)


def test_a_flat_stretch_has_no_sharpe_and_no_volatility():
    returns = np.concatenate([np.random.default_rng(1).normal(0, 0.05, 50), np.zeros(30)])
    assert (rolling_volatility(returns, 10, 252)[-20:] == 0).all()
    assert np.isnan(rolling_sharpe(returns, 10, 252)[-20:]).all()
    assert np.isnan(rolling_sharpe(returns[:5], 10, 252)).all()  # too short for one window


def test_drawdowns_by_hand():
    #                   0    1    2   3    4    5    6    7   8
    equity = np.array([100, 110, 99, 88, 111, 111, 100, 112, 56], dtype=float)
    deepest, second, third = drawdowns(equity)
    assert deepest == Drawdown(peak=7, trough=8, end=None, depth=-0.5, bars=1)
    assert second == Drawdown(peak=1, trough=3, end=4, depth=pytest.approx(-0.2), bars=3)
    assert third == Drawdown(peak=5, trough=6, end=7, depth=pytest.approx(100 / 111 - 1), bars=2)
    assert drawdowns(equity, most=1) == [deepest]
    assert drawdowns(np.array([1.0, 2.0, 3.0])) == []
    assert drawdowns(np.array([100.0, 50.0, -20.0])) == [Drawdown(0, 2, None, -1.0, 2)]


@needs_quantstats
@pytest.mark.filterwarnings("ignore")
def test_quantstats_says_the_same():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import pandas as pd
        import quantstats.stats as peer

    for seed in range(5):
        values = np.random.default_rng(seed).normal(0.0005, 0.02, 400)
        days = pd.date_range("2020-01-01", periods=401)
        series = pd.Series(values, index=days[1:])
        equity = np.concatenate([[1.0], np.cumprod(1 + values)])
        theirs = peer.rolling_sharpe(series, rolling_period=60, periods_per_year=252)
        np.testing.assert_allclose(rolling_sharpe(values, 60, 252)[59:], theirs.to_numpy()[-341:], rtol=1e-9)
        theirs = peer.rolling_volatility(series, rolling_period=60, periods_per_year=252)
        np.testing.assert_allclose(rolling_volatility(values, 60, 252)[59:], theirs.to_numpy()[-341:], rtol=1e-9)

        table = peer.drawdown_details(peer.to_drawdown_series(pd.Series(equity, index=days).pct_change().fillna(0)))
        theirs = sorted(zip(table["max drawdown"], table["start"], table["valley"], strict=True))
        ours = drawdowns(equity)
        assert len(ours) == len(theirs)
        for mine, (depth, start, valley) in zip(ours, theirs, strict=True):
            assert mine.depth * 100 == pytest.approx(depth, rel=1e-9)
            # They begin with the first bar below the peak.
            assert (str(days[mine.peak + 1].date()), str(days[mine.trough].date())) == (
                str(start)[:10],
                str(valley)[:10],
            )


def test_monthly_returns_by_hand():
    days = np.array(["2023-12-30", "2023-12-31", "2024-01-15", "2024-01-31", "2024-03-01"], dtype="datetime64[ns]")
    returns = monthly_returns(days, np.array([100.0, 110.0, 50.0, 121.0, 60.5]))
    assert returns[2023] == pytest.approx({12: 0.1})
    assert returns[2024] == pytest.approx({1: 0.1, 3: -0.5})

"""Every figure against empyrical-reloaded and quantstats, to 1e-9."""

import importlib.util
import math
import warnings

import numpy as np
import pytest

from ml_pipeline.trading.evaluation import metrics

pytestmark = [
    pytest.mark.skipif(
        any(importlib.util.find_spec(name) is None for name in ("empyrical", "quantstats")),
        reason="empyrical-reloaded and quantstats are not installed",
    ),
    pytest.mark.filterwarnings("ignore"),
]

GENERATOR = np.random.default_rng(0)
RUINED = np.concatenate([GENERATOR.normal(0, 0.02, 50), [-1.0], np.zeros(10)])
CURVES = {
    **{f"random {i}": GENERATOR.normal(0.0005, 0.02, 300) for i in range(5)},
    "all winning": GENERATOR.uniform(0.001, 0.02, 100),
    "all losing": -GENERATOR.uniform(0.001, 0.02, 100),
    "two bars": np.array([0.01, -0.02]),
    "flat": np.zeros(50),
    "ruined": RUINED,
}


@pytest.fixture(scope="module")
def peers():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import empyrical
        import pandas as pd
        import quantstats.stats

    return empyrical, quantstats.stats, lambda r: pd.Series(r, index=pd.date_range("2020-01-01", periods=len(r)))


@pytest.mark.parametrize("name", CURVES)
@pytest.mark.parametrize("per_year", [252, 365 * 24])
def test_equal(peers, name, per_year):
    empyrical, quantstats, series = peers
    returns = series(CURVES[name])
    equity = 1e4 * np.concatenate([[1.0], np.cumprod(1 + CURVES[name])])
    values = CURVES[name]
    ours = {
        "volatility": metrics.volatility(values, per_year),
        "sharpe": metrics.sharpe(values, per_year),
        "sortino": metrics.sortino(values, per_year),
        "max_drawdown": metrics.max_drawdown(equity),
        "cagr": metrics.cagr(equity, per_year),
        "calmar": metrics.calmar(equity, per_year),
        "total_return": metrics.total_return(equity),
    }
    of_empyrical = {
        "volatility": empyrical.annual_volatility(returns, annualization=per_year),
        "sharpe": empyrical.sharpe_ratio(returns, annualization=per_year),
        "sortino": empyrical.sortino_ratio(returns, annualization=per_year),
        "max_drawdown": empyrical.max_drawdown(returns),
        "cagr": empyrical.cagr(returns, annualization=per_year),
        "calmar": empyrical.calmar_ratio(returns, annualization=per_year),
        "total_return": empyrical.cum_returns_final(returns),
    }
    of_quantstats = {
        "volatility": quantstats.volatility(returns, periods=per_year),
        "sharpe": quantstats.sharpe(returns, periods=per_year),
        "sortino": quantstats.sortino(returns, periods=per_year),
        "max_drawdown": quantstats.max_drawdown(returns),
        "cagr": quantstats.cagr(returns, periods=per_year),
        "total_return": quantstats.comp(returns),
    }
    too_short = {"cagr", "calmar"} if len(values) < per_year / 4 else set()  # ours are undefined, theirs are not
    for theirs in (of_empyrical, of_quantstats):
        for figure, value in theirs.items():
            if figure in too_short:
                assert math.isnan(ours[figure]), figure
            elif math.isnan(ours[figure]):
                assert not math.isfinite(value) or value == 0, (
                    figure,
                    value,
                )  # undefined: theirs are NaN, infinite or 0
            else:
                assert ours[figure] == pytest.approx(value, rel=1e-9, abs=1e-12), figure

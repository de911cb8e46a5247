import math

import numpy as np
import pytest

from ml_pipeline.trading.evaluation import metrics
from ml_pipeline.trading.evaluation.uncertainty import (
    bootstrap_interval,
    calmar_interval,
    calmar_ratios,
    interval_of,
    long_run_covariance,
    profit_factor_interval,
    profit_factors,
    proportion_standard_error,
    sharpe_standard_error,
    sortino_standard_error,
    stationary_bootstrap,
)


@pytest.fixture(scope="module")
def brief_evaluations():
    """Here they are whole."""


def _returns(generator, n, *, phi=0.0, mean=0.0005, deviation=0.01):
    """Normal returns of an autoregression of order 1, started in its stationary distribution."""
    noise = generator.normal(0, deviation * math.sqrt(1 - phi**2), n)
    values = np.empty(n)
    values[0] = generator.normal(0, deviation)
    for i in range(1, n):
        values[i] = phi * values[i - 1] + noise[i]
    return values + mean


def _means(samples):
    return samples.mean(axis=1)


def test_for_independent_normal_returns_it_is_the_formula_of_lo():
    returns = _returns(np.random.default_rng(0), 20_000, mean=0.003)
    ratio = metrics.sharpe(returns, 1)
    assert sharpe_standard_error(returns, 252) == pytest.approx(
        math.sqrt((1 + ratio**2 / 2) / 20_000) * math.sqrt(252), rel=0.05
    )


def test_without_lags_it_is_the_formula_of_mertens_for_skewed_and_fat_tailed_returns(monkeypatch):
    """Mertens 2002: (1 + SR^2 / 2 - skewness SR + (kurtosis - 3) / 4 SR^2) / n."""
    monkeypatch.setattr(
        "ml_pipeline.trading.evaluation.uncertainty.long_run_covariance", lambda values: np.array([[values.var()]])
    )
    returns = np.random.default_rng(1).exponential(0.01, 500) - 0.005
    z = (returns - returns.mean()) / returns.std()
    ratio, skewness, kurtosis = returns.mean() / returns.std(), (z**3).mean(), (z**4).mean()
    expected = (1 + ratio**2 / 2 - skewness * ratio + (kurtosis - 3) / 4 * ratio**2) / 500
    assert sharpe_standard_error(returns, 252) == pytest.approx(math.sqrt(expected * 252))


@pytest.mark.parametrize("phi", [0.0, 0.4, -0.3])
@pytest.mark.parametrize(
    ("figure", "error"),
    [(metrics.sharpe, sharpe_standard_error), (metrics.sortino, sortino_standard_error)],
    ids=["sharpe", "sortino"],
)
def test_it_is_how_far_the_figure_of_other_samples_lies_off(figure, error, phi):
    generator = np.random.default_rng(2)
    samples = [_returns(generator, 1_000, phi=phi, mean=0.001) for _ in range(300)]
    spread = float(np.std([figure(returns, 252) for returns in samples]))
    errors = float(np.mean([error(returns, 252) for returns in samples]))
    assert errors == pytest.approx(spread, rel=0.15)


def test_a_few_days_of_minutes_say_little_about_a_year():
    # Five days of 390 minutes are 5 / 252 years: the error is about 1 / sqrt(years) = 7.1.
    returns = np.random.default_rng(3).normal(1e-5, 1e-3, 5 * 390)
    assert sharpe_standard_error(returns, 252 * 390) == pytest.approx(math.sqrt(252 / 5), rel=0.1)


def test_the_long_run_covariance_by_its_sum():
    values = np.random.default_rng(4).normal(0, 1, (50, 2)).cumsum(axis=0)
    n, lags = 50, int(4 * 0.5 ** (2 / 9))
    centred = values - values.mean(axis=0)
    expected = np.zeros((2, 2))
    for s in range(n):
        for t in range(n):
            if abs(s - t) <= lags:
                expected += (1 - abs(s - t) / (lags + 1)) * np.outer(centred[s], centred[t]) / n
    np.testing.assert_allclose(long_run_covariance(values), expected, rtol=1e-12)
    assert long_run_covariance(values[:, 0])[0, 0] == pytest.approx(expected[0, 0])


@pytest.mark.parametrize("error", [sharpe_standard_error, sortino_standard_error])
def test_what_has_no_ratio_has_no_error(error):
    assert math.isnan(error(np.zeros(100), 252))
    assert math.isnan(error(np.array([0.01, -0.01]), 252))
    assert math.isnan(error(np.empty(0), 252))


def test_a_proportion():
    assert proportion_standard_error(0.2, 400) == pytest.approx(0.02)
    for part, n in ((math.nan, 0), (0.5, 9), (1.0, 50), (0.0, 50)):
        assert math.isnan(proportion_standard_error(part, n))


def test_a_resample_is_made_of_blocks_of_the_mean_length():
    generator = np.random.default_rng(5)
    lengths = []
    for indices in stationary_bootstrap(1_000, 8.0, generator, n_resamples=50):
        assert indices.shape == (1_000,)
        assert indices.min() >= 0
        assert indices.max() < 1_000
        lengths.append(1_000 / (1 + np.count_nonzero((np.diff(indices) - 1) % 1_000)))
    assert np.mean(lengths) == pytest.approx(8, rel=0.1)
    assert np.count_nonzero((np.diff(stationary_bootstrap(1_000, 1.0, generator, n_resamples=1)[0]) - 1) % 1_000) > 990


def test_every_observation_is_as_likely_as_any_other():
    generator = np.random.default_rng(6)
    counts = np.bincount(stationary_bootstrap(20, 5.0, generator, n_resamples=5_000).ravel(), minlength=20)
    np.testing.assert_allclose(counts / 5_000, 1, atol=0.08)


def test_an_interval_of_the_mean_is_that_of_the_normal_distribution():
    values = np.random.default_rng(7).normal(3, 2, 400)
    low, high = bootstrap_interval(values, _means, mean_block=1.0)
    assert (low, high) == pytest.approx((values.mean() - 1.96 * 0.1, values.mean() + 1.96 * 0.1), abs=0.03)
    assert bootstrap_interval(values, _means) == bootstrap_interval(values, _means)  # the seed is fixed


def test_an_interval_of_autocorrelated_values_is_wider():
    values = _returns(np.random.default_rng(8), 2_000, phi=0.6)
    independent = bootstrap_interval(values, _means, mean_block=1.0)
    blocks = bootstrap_interval(values, _means, mean_block=30.0)
    # The true error is sqrt((1 + 0.6) / (1 - 0.6)) = 2 times as large.
    assert (blocks.high - blocks.low) / (independent.high - independent.low) == pytest.approx(2, rel=0.15)


def test_too_few_values_have_no_interval():
    assert all(math.isnan(bound) for bound in profit_factor_interval(np.array([1.0, -1.0])))
    assert all(math.isnan(bound) for bound in profit_factor_interval(np.ones(30)))  # nothing was ever lost
    low, high = profit_factor_interval(np.tile([2.0, -1.0], 50))
    assert low < 2 < high


@pytest.mark.parametrize("drift", [0.0008, -0.001])
def test_the_bounds_of_a_calmar_ratio_are_the_same_for_other_resamples(drift):
    """125 bars: with 1,000 resamples the upper bound of 10.2 moved by 1.1. One step apart is rounding."""
    returns = np.random.default_rng(9).normal(drift, 0.01, 125)
    bounds = np.array([calmar_interval(returns, 252, seed=seed) for seed in range(4)])
    for of_bound in bounds.T:
        values, counts = np.unique(of_bound, return_counts=True)
        assert len(values) <= 2
        assert np.ptp(values) <= 0.2 * np.abs(values).max()
        assert counts.max() >= 2


def test_the_figures_of_many_resamples_are_those_of_each(monkeypatch):
    returns = np.random.default_rng(10).normal(0.001, 0.02, (50, 300))
    returns[0, 100] = -1.0  # ruin
    returns[1] = 0.001  # no drawdown
    of_each = [metrics.calmar(np.concatenate([[1.0], np.cumprod(1 + row)]), 252) for row in returns]
    np.testing.assert_allclose(calmar_ratios(returns, 252), of_each, rtol=1e-9)
    np.testing.assert_allclose(profit_factors(returns), [metrics.profit_factor(row) for row in returns], rtol=1e-9)


def test_a_bound_has_the_digits_that_its_resamples_support():
    """The 97.5 % quantile of N normal values has the error sqrt(0.025 * 0.975 / N) / 0.0584; a step is five of them."""
    generator = np.random.default_rng(11)
    interval = interval_of(generator.normal(10, 1, 10_000))  # error 0.027: two digits of 12, steps of 0.2 of 8
    assert interval in {(8.0, 12.0), (8.2, 12.0)}

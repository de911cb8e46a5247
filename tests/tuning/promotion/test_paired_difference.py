"""The difference between two models, by hand."""

import math

import numpy as np
import pytest

from ml_pipeline.tuning.promotion.verdict import difference_of_episodes, difference_of_returns


def test_the_difference_of_episodes_is_that_of_pairs():
    # Differences 2, 4, 3, 3: mean 3, deviation sqrt(2 / 3), standard error sqrt(2 / 3) / 2.
    found = difference_of_episodes(np.array([10.0, 20.0, 30.0, 40.0]), np.array([8.0, 16.0, 27.0, 37.0]))
    assert (found.difference, found.n, found.challenger, found.incumbent) == (3.0, 4, 25.0, 22.0)
    assert found.standard_error == pytest.approx(math.sqrt(2 / 3) / 2)
    assert found.exceeds(7.0)
    assert not found.exceeds(8.0)


def test_the_difference_of_returns_is_of_logarithms():
    ours, theirs = np.tile([0.1, 0.2], 10), np.tile([0.0, 0.1], 10)
    found = difference_of_returns(ours, theirs, 252.0)
    expected = np.log1p(ours) - np.log1p(theirs)
    assert found.difference == pytest.approx(expected.mean(), abs=1e-15)
    assert found.unit == "bar"


def test_without_autocorrelation_the_standard_error_is_the_usual_one():
    noise = np.random.default_rng(0).normal(size=20_000) * 1e-3
    found = difference_of_returns(np.expm1(noise), np.zeros_like(noise), 252.0)
    assert found.standard_error == pytest.approx(noise.std() / math.sqrt(len(noise)), rel=0.05)


def test_autocorrelation_makes_the_standard_error_larger():
    generator = np.random.default_rng(0)
    noise = np.convolve(generator.normal(size=5_000), np.ones(4) / 4, mode="valid") * 1e-3
    found = difference_of_returns(np.expm1(noise), np.zeros_like(noise), 252.0)
    # A moving average of 4 equal weights: the variance of the mean is 4 times that of independent values.
    assert found.standard_error == pytest.approx(2 * noise.std() / math.sqrt(len(noise)), rel=0.2)


def test_a_ruined_account_counts_as_a_large_loss():
    ruined = np.zeros(20)
    ruined[3] = -1.0
    found = difference_of_returns(np.zeros(20), ruined, 252.0)
    assert math.isfinite(found.difference)
    assert found.difference > 0.5


def test_equal_models_differ_by_nothing_and_exceed_nothing():
    same = np.random.default_rng(0).normal(size=50) * 0.01
    found = difference_of_returns(same, same, 252.0)
    assert (found.difference, found.standard_error) == (0.0, 0.0)
    assert not found.exceeds(0.0)


@pytest.mark.parametrize("n", [0, 1])
def test_too_few_pairs_exceed_nothing(n):
    found = difference_of_episodes(np.full(n, 5.0), np.zeros(n))
    assert math.isnan(found.standard_error)
    assert not found.exceeds(1.0)
    assert found.as_json()["standard_error"] is None


def test_too_few_bars_exceed_nothing():
    found = difference_of_returns(np.full(9, 0.1), np.zeros(9), 252.0)
    assert not found.exceeds(1.0)
    assert "over 9 bars" in str(found)

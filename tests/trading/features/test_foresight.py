"""Features that were made from later bars are told from those that were not, on made and on real markets."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import spearmanr

from ml_pipeline.trading.features.foresight import foresight, rank_correlation
from ml_pipeline.trading.features.indicators import DEFAULT_FEATURES, compute_features
from ml_pipeline.trading.market.files import load_market
from ml_pipeline.trading.market.synthetic import synthetic_market

SHARED = Path(__file__).resolve().parents[4] / "shared" / "data"
HONEST = [*DEFAULT_FEATURES, "log_return_2", "log_return_60", "volatility_60", "rsi_2", "rsi_100"]


def walk(n, seed=0, deviation=0.01):
    return 100 * np.exp(np.random.default_rng(seed).normal(0, deviation, n).cumsum())


def leaks(close, seed=0):
    """Columns that were made from later bars, by name."""
    n, returns = len(close), np.append(np.diff(np.log(close)), 0.0)
    noise = np.random.default_rng(seed).normal(0, returns.std(), n)
    return {
        "sign": np.sign(returns),
        "rank": np.argsort(np.argsort(returns)).astype(float),
        "half noise": 0.5 * returns + 0.5 * noise,
        "centred mean": np.convolve(close, np.ones(5) / 5, "same"),
        "five bars": np.append(np.log(close[5:] / close[:-5]), np.zeros(5)),
        "next close": np.append(close[1:], close[-1]),
        "folded": np.abs(returns - returns.std()),
    }


@pytest.mark.parametrize("seed", range(3))
def test_what_was_made_from_later_bars_is_impossible(seed):
    close = walk(2000, seed)
    for name, values in leaks(close, seed).items():
        found = foresight(values, close)
        assert found is not None, name
        assert found.impossible, name


def test_the_size_of_moves_to_come_is_impossible():
    close = walk(5000)
    found = foresight(np.abs(np.append(np.diff(np.log(close)), 0.0)), close)
    assert found is not None
    assert found.impossible
    assert "bits about the size of the return of the next bar" in found.sentence


def test_a_leak_that_begins_late_is_found():
    close = walk(20_000)
    returns = np.append(np.diff(np.log(close)), 0.0)
    late = np.where(np.arange(20_000) > 19_000, returns, np.random.default_rng(1).normal(0, 0.01, 20_000))
    assert foresight(late, close) is not None


def test_a_little_truth_is_unlikely():
    close = walk(5000)
    returns = np.append(np.diff(np.log(close)), 0.0)
    found = foresight(0.25 * returns + 0.75 * np.random.default_rng(1).normal(0, 0.01, 5000), close)
    assert found is not None
    assert not found.impossible
    assert "has a rank correlation of 0.29 with the return of the next bar" in found.sentence


@settings(max_examples=40)
@given(st.integers(0, 10_000), st.sampled_from([80, 250, 700, 3000]))
def test_what_knows_nothing_raises_no_alarm(seed, n):
    generator = np.random.default_rng(seed)
    close = walk(n, seed)
    for values in (generator.normal(size=n), generator.normal(size=n).cumsum(), generator.integers(0, 2, n) * 1.0):
        assert foresight(values, close) is None


def alarms(market):
    table = compute_features(market, HONEST)
    found = []
    for a in range(len(market.symbols)):
        own = market.tradable[:, a]
        for column in range(a * table.n_asset_features, (a + 1) * table.n_asset_features):
            if foresight(table.values[own, column], market.close[own, a]):
                found.append(table.columns[column])
    return found


def test_honest_features_of_the_built_in_market_raise_no_alarm():
    assert alarms(synthetic_market()) == []


@pytest.mark.parametrize(
    "name", ["BTC_USD-Hourly", "FOREX_EURUSD_1H_ASK", "bitstamp_BTC_ETH_LTC_USD_d", "dj30_test_2021"]
)
def test_honest_features_of_real_markets_raise_no_alarm(name):
    path = SHARED / f"{name}.csv"
    if not path.exists():
        pytest.skip(f"{path.name} is not here")
    assert alarms(load_market(path)) == []


def test_constants_and_short_series_tell_nothing():
    close = walk(500)
    assert foresight(np.full(500, 3.0), close) is None
    assert foresight(np.append(np.diff(close), 0)[:30], close[:30]) is None
    assert foresight(np.full(500, np.nan), close) is None


def test_rank_correlation_is_spearmans():
    generator = np.random.default_rng(0)
    one, other = generator.integers(0, 9, 200) * 1.0, generator.normal(size=200)
    assert rank_correlation(one, other) == pytest.approx(spearmanr(one, other).statistic)

"""Features that were made from later bars are told from those that were not, on made and on real markets."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import spearmanr

from benchmarks.leak_alarms import KINDS, alarms, honest_columns, leaking_columns, made_market
from ml_pipeline.trading.features import foresight as module
from ml_pipeline.trading.features.formulas import Bars
from ml_pipeline.trading.features.indicators import DEFAULT_FEATURES, bars_of, compute_features
from ml_pipeline.trading.features.innovations import centred_ranks, innovations
from ml_pipeline.trading.features.period_ends import periods_of, told_of_period
from ml_pipeline.trading.market.files import load_market
from ml_pipeline.trading.market.synthetic import synthetic_market

SHARED = Path(__file__).resolve().parents[4] / "shared" / "data"
HONEST = [*DEFAULT_FEATURES, "log_return_2", "log_return_60", "volatility_60", "rsi_2", "rsi_100"]


def foresight(values, close):
    times = np.arange(len(close)).astype("datetime64[D]")
    return module.foresight(values, innovations(Bars(times, close, close, close, close, np.zeros(len(close)), {})))


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
    assert "the range of the next bar" in found.sentence


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


@given(st.integers(0, 10_000), st.sampled_from([80, 250, 700, 3000]))
def test_what_knows_nothing_raises_no_alarm(seed, n):
    generator = np.random.default_rng(seed)
    close = walk(n, seed)
    for values in (generator.normal(size=n), generator.normal(size=n).cumsum(), generator.integers(0, 2, n) * 1.0):
        assert foresight(values, close) is None


@pytest.fixture(scope="module")
def minutes():
    return made_market(KINDS[0], 0, minutes=True, n_bars=7_800)


FAR = [
    *(f"{what} over the next {span}" for what in ("return", "volume", "range") for span in (1, 5, 20, 60, 250)),
    *("up over the next 60", "close 1440 later", "return over the next 1440", "volume over the next 1440"),
]


def test_what_was_made_from_bars_far_ahead_is_found(minutes):
    known, leaks = innovations(bars_of(minutes, 0)), leaking_columns(minutes)
    assert [name for name in FAR if not module.foresight(leaks[name], known)] == []


def test_the_sentence_names_how_far_ahead(minutes):
    found = module.foresight(leaking_columns(minutes)["close 240 later"], innovations(bars_of(minutes, 0)))
    assert found is not None
    assert found.impossible
    assert "with the return 240 bars later, but honest features have at most 0.12" in found.sentence


@pytest.mark.parametrize("kind", KINDS)
def test_honest_columns_of_made_markets_raise_no_alarm(kind):
    market = made_market(kind, 1, minutes=False, n_bars=600)
    assert set.union(*alarms(market, honest_columns(market, 1)).values()) == set()


@pytest.mark.slow
@pytest.mark.parametrize("kind", [KINDS[0], *(pytest.param(kind, marks=pytest.mark.long) for kind in KINDS[1:])])
def test_honest_columns_of_made_minutes_raise_no_alarm(kind):
    market = made_market(kind, 1, minutes=True, n_bars=7_800)
    assert set.union(*alarms(market, honest_columns(market, 1)).values()) == set()


def test_of_very_many_bars_stretches_are_looked_at(monkeypatch):
    close = walk(9_000)
    ahead = np.append(close[100:], np.full(100, close[-1]))
    known = innovations(Bars(np.arange(9_000).astype("datetime64[D]"), close, close, close, close, np.zeros(9_000), {}))
    monkeypatch.setattr("ml_pipeline.trading.features.innovations._MOST_AT_ONCE", 8_000)
    monkeypatch.setattr("ml_pipeline.trading.features.innovations._STRETCH", 2_000)
    assert [start for start, _ in known.stretches] == [0, 2333, 4666, 7000]
    honest_until_the_last = np.where(np.arange(9_000) < 7_000, np.random.default_rng(0).normal(size=9_000), ahead)
    assert "100 bars later" in module.foresight(honest_until_the_last, known).sentence


def alarms_of_features(market):
    table = compute_features(market, HONEST)
    found = []
    for a in range(len(market.symbols)):
        own = market.tradable[:, a]
        known = innovations(bars_of(market, a))
        periods = periods_of(known, market.timing)
        for column in range(a * table.n_asset_features, (a + 1) * table.n_asset_features):
            values = table.values[own, column]
            if module.foresight(values, known) or told_of_period(values, known, periods):
                found.append(table.columns[column])
    return found


def test_honest_features_of_the_built_in_market_raise_no_alarm():
    assert alarms_of_features(synthetic_market()) == []


@pytest.mark.parametrize(
    "name", ["BTC_USD-Hourly", "FOREX_EURUSD_1H_ASK", "bitstamp_BTC_ETH_LTC_USD_d", "dj30_test_2021"]
)
def test_honest_features_of_real_markets_raise_no_alarm(name):
    path = SHARED / f"{name}.csv"
    if not path.exists():
        pytest.skip(f"{path.name} is not here")
    assert alarms_of_features(load_market(path)) == []


def test_constants_and_short_series_tell_nothing():
    close = walk(500)
    assert foresight(np.full(500, 3.0), close) is None
    assert foresight(np.append(np.diff(close), 0)[:30], close[:30]) is None
    assert foresight(np.full(500, np.nan), close) is None


def test_rank_correlation_is_spearmans():
    generator = np.random.default_rng(0)
    one, other = generator.integers(0, 9, 200) * 1.0, generator.normal(size=200)
    assert np.mean(centred_ranks(one) * centred_ranks(other)) == pytest.approx(spearmanr(one, other).statistic)

"""Features on longer bars, and features that are given all symbols."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ml_pipeline.config.errors import UserError
from ml_pipeline.trading.features.indicators import compute_features
from ml_pipeline.trading.features.leaks import check_features
from ml_pipeline.trading.market.data import market_from_arrays
from ml_pipeline.trading.market.timeframes import Timing, make_clock

MINUTE = 60 * 10**9
NAMES = (
    "rsi_3@5m",
    "log_return_1@15m",
    "atr_2@1h",
    "ema_2@4h",
    "sma_2@1d",
    "feature_x@1h",
    "volatility_5",
    "macd_2_3@15m",
)


def _market(n=4000, *, stamped="open", seed=0, session=None, symbols=1):
    """Minutes with gaps, and a few stray bars between them."""
    generator = np.random.default_rng(seed)
    times = np.datetime64("2024-03-01", "ns") + np.flatnonzero(generator.random(n) < 0.7) * np.timedelta64(MINUTE, "ns")
    strays = generator.choice(times, 20) + np.timedelta64(59 * 10**9, "ns")
    times = np.union1d(times, strays)
    shape = (len(times), symbols)
    closes = 100 * np.exp(generator.normal(0, 0.001, shape).cumsum(axis=0))
    opens = np.vstack([closes[:1], closes[:-1]])
    bars = {"open": opens, "high": np.maximum(opens, closes) * 1.001, "low": np.minimum(opens, closes) * 0.999}
    bars |= {"volume": generator.uniform(1, 9, shape), "columns": {"feature_x": generator.normal(size=shape)}}
    closes[generator.random(shape) < 0.1] = np.nan if symbols > 1 else closes[0, 0]
    timing = Timing(MINUTE, stamped, make_clock(session, None))
    return market_from_arrays("ABC"[:symbols], times, closes, timing=timing, **bars)


@given(
    t=st.integers(2200, 2700),
    stamped=st.sampled_from(["open", "close"]),
    session=st.sampled_from([None, "09:30-16:00", "22:00-21:00"]),
    symbols=st.integers(1, 2),
)
def test_features_of_data_cut_at_t_are_those_of_the_whole(t, stamped, session, symbols):
    market = _market(stamped=stamped, session=session, symbols=symbols)
    whole, cut = compute_features(market, NAMES), compute_features(market.bars(0, t + 1), NAMES)
    np.testing.assert_array_equal(cut.values, whole.values[: t + 1])


def test_a_longer_bar_is_known_when_it_has_closed_and_not_before():
    times = np.datetime64("2024-01-01", "ns") + np.arange(20) * np.timedelta64(MINUTE, "ns")
    closes = np.arange(1.0, 21)
    for stamped in ("open", "close"):  # the bars of 00:04 to 00:05 are stamped by either end
        stamps = times + np.timedelta64(MINUTE if stamped == "close" else 0, "ns")
        market = market_from_arrays(["A"], stamps, closes, timing=Timing(MINUTE, stamped))
        values = compute_features(market, ["log_return_1@5m"]).values[:, 0]
        assert np.isnan(values[:9]).all()  # a return needs two longer bars
        assert values[9] == np.log(closes[9] / closes[4])
        np.testing.assert_array_equal(values[9:14], values[9])


def test_where_the_last_bars_are_missing_a_longer_bar_is_known_when_the_next_begins():
    minutes = np.array([0, 1, 2, 3, 5, 6, 7, 8, 9, 10, 11])  # 00:04 is missing
    times = np.datetime64("2024-01-01", "ns") + minutes * np.timedelta64(MINUTE, "ns")
    closes = np.arange(1.0, 12)
    market = market_from_arrays(["A"], times, closes, timing=Timing(MINUTE, "open"), columns={"feature_x": closes})
    values = compute_features(market, ["feature_x@5m"]).values[:, 0]
    np.testing.assert_array_equal(values, [np.nan] * 4 + [4, 4, 4, 4, 9, 9, 9])


def test_a_day_is_known_at_the_end_of_its_session():
    minutes = np.concatenate([np.arange(570, 960) + 1440 * day for day in range(3)])
    times = np.datetime64("2024-01-01", "ns") + minutes * np.timedelta64(MINUTE, "ns")
    closes = np.arange(1.0, len(times) + 1)
    timing = Timing(MINUTE, "open", make_clock("09:30-16:00", None))
    market = market_from_arrays(["A"], times, closes, timing=timing, columns={"feature_x": closes})
    values = compute_features(market, ["feature_x@1d"]).values[:, 0]
    assert np.isnan(values[:389]).all()
    np.testing.assert_array_equal(values[389:779], 390)
    np.testing.assert_array_equal(values[779:1169], 780)
    assert values[1169] == 1170


def test_a_timeframe_shorter_than_the_bars_is_refused():
    market = market_from_arrays(["A"], np.arange(50).astype("M8[D]"), np.ones(50))
    with pytest.raises(
        UserError, match=r"Feature rsi_14@1h needs bars .* the bars of the market have 1440 minutes; use"
    ):
        compute_features(market, ["rsi_14@1h"])
    with pytest.raises(
        UserError, match="has too few bars: 50, but feature rsi_14@1w needs 15 of 1w of an asset; use more"
    ):
        compute_features(market, ["rsi_14@1w"])


MODULE = """
import numpy as np

def over_average(bars, everyone):
    return bars.close / np.mean([other.close for other in everyone.values()], axis=0)

def with_option(bars, span=3):
    return bars.close * span

def next_of_b(bars, everyone):
    return np.append(everyone["B"].close[1:], 0.0)
"""


@pytest.fixture
def module(monkeypatch, tmp_path):
    (tmp_path / "across_assets.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("module")
def test_a_function_may_ask_for_all_symbols():
    closes = np.array([[1.0, np.nan], [2, 4], [np.nan, 6], [3, 9]])
    market = market_from_arrays(["A", "B"], np.arange(4).astype("M8[D]"), closes)
    values = compute_features(market, ["across_assets:over_average"]).values
    np.testing.assert_allclose(values[:, 0], [np.nan, 2 / 3, 2 / 3, 3 / 6])  # A has no bar at 2: its last value
    np.testing.assert_allclose(values[:, 1], [np.nan, 4 / 3, 6 / 4, 9 / 6])  # beside the last close of A, 2
    np.testing.assert_array_equal(compute_features(market, ["across_assets:with_option"]).values[3], [9, 27])


@pytest.mark.usefixtures("module")
def test_functions_of_all_symbols_are_cut_and_tested_for_leaks_too():
    market = _market(symbols=3)
    names = ["across_assets:over_average", "across_assets:over_average@15m"]
    whole = compute_features(market, names)
    np.testing.assert_array_equal(compute_features(market.bars(0, 2000), names).values, whole.values[:2000])
    (warning,) = check_features(market, names, whole)
    assert warning.sentence.startswith(
        "across_assets:over_average, across_assets:over_average@15m use longer bars or all symbols"
    )
    leaking = ["across_assets:next_of_b"]
    with pytest.raises(UserError, match=r"Feature .:across_assets:next_of_b uses later data"):
        check_features(market, leaking, compute_features(market, leaking))

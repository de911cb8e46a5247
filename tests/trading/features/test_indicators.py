import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ml_pipeline.config.errors import UserError
from ml_pipeline.trading.features.indicators import DEFAULT_FEATURES, compute_features, make_features
from ml_pipeline.trading.market.data import market_from_arrays
from ml_pipeline.trading.market.synthetic import synthetic_market

EVERY = (*DEFAULT_FEATURES, "log_return_60", "atr_1", "time_of_day", "time_of_week")


def _market(close, **prices):
    close = np.asarray(close, dtype=float)
    hours = np.datetime64("2024-01-01", "ns") + np.arange(len(close)) * np.timedelta64(1, "h")  # a Monday
    prices = {"open": close, "high": close, "low": close, "volume": np.ones_like(close), **prices}
    return market_from_arrays("ABC"[: 1 if close.ndim == 1 else close.shape[1]], hours, close, **prices)


def _value(name, market, bar=-1):
    return compute_features(market, [name]).values[bar, 0]


def test_log_return_and_volatility_by_hand():
    market = _market([100, 110, 99, 99])
    assert _value("log_return_1", market) == 0
    assert _value("log_return_2", market) == pytest.approx(np.log(99 / 110))
    assert _value("volatility_2", market) == pytest.approx(abs(np.log(0.9)) / 2)


def test_rsi_by_hand():
    # Changes +2, -1, +3, -1 over 2: gains begin at 1, losses at 0.5, then (1+3)/2 = 2, 0.25; then 1 and 0.625.
    assert _value("rsi_2", _market([10, 12, 11, 14, 13])) == pytest.approx(100 * 1 / 1.625)
    assert _value("rsi_2", _market([10, 10, 10])) == 50
    assert _value("rsi_2", _market([10, 11, 12])) == 100


def test_ema_distance_by_hand():
    # Span 3: begins with the mean of 1, 2, 3; then 2 + (6 - 2) / 2 = 4.
    assert _value("ema_distance_3", _market([1, 2, 3, 6])) == pytest.approx(np.log(6 / 4))


def test_macd_of_a_constant_and_of_a_rise():
    assert _value("macd", _market(np.full(30, 5.0))) == pytest.approx(0, abs=1e-15)
    assert _value("macd", _market(np.arange(1.0, 40.0))) == pytest.approx(7 / 39)  # averages lag by 5.5 and 12.5


def test_atr_by_hand():
    # True ranges: bar 1 from 8 to 12; bar 2, after a gap, from the close of 10 to 15. Mean of 4 and 5 over 14.
    market = _market([10, 10, 14], high=[10, 12, 15], low=[10, 8, 13], open=[10, 9, 14])
    assert _value("atr_2", market) == pytest.approx(4.5 / 14)


def test_volume_zscore_by_hand():
    close = np.ones(3)
    assert _value("volume_zscore_2", _market(close, volume=[9, 0, np.e - 1])) == pytest.approx(1)  # ln(1+v): 0, 1
    assert _value("volume_zscore_3", _market(close)) == 0


def test_time_turns_with_day_and_week():
    table = compute_features(_market(np.ones(24 * 7)), ["time_of_day", "time_of_week"])
    assert table.columns == ("time_of_day_sin", "time_of_day_cos", "time_of_week_sin", "time_of_week_cos")
    np.testing.assert_allclose(table.values[0], [0, 1, 0, 1], atol=1e-12)
    np.testing.assert_allclose(table.values[6, :2], [1, 0], atol=1e-12)
    np.testing.assert_allclose(table.values[42, 2:], [1, 0], atol=1e-12)  # a quarter of the week


@pytest.mark.parametrize("name", EVERY)
def test_the_warm_up_is_what_is_nan(name):
    market = synthetic_market(n_bars=100)
    warm_up = make_features(name)[0].warm_up
    values = compute_features(market, [name]).values
    assert np.isnan(values[:warm_up]).all()
    assert not np.isnan(values[warm_up:]).any()
    short = market.bars(0, warm_up + 1)
    np.testing.assert_array_equal(compute_features(short, [name]).values[-1], values[warm_up])


@given(t=st.integers(70, 118), seed=st.integers(0, 2**32 - 1))
def test_changing_the_future_leaves_every_feature_up_to_now_bit_for_bit(t, seed):
    generator = np.random.default_rng(seed)
    market = synthetic_market(seed=1, n_bars=120, n_symbols=2)
    arrays = {name: getattr(market, name).copy() for name in ("open", "high", "low", "close", "volume")}
    arrays["close"][:20, 1] = np.nan  # listed late
    arrays["close"][40:43, 0] = np.nan  # another calendar
    before = compute_features(market_from_arrays(market.symbols, market.times, **arrays), EVERY)
    for values in arrays.values():
        values[t + 1 :] = generator.uniform(0.01, 1e6, values[t + 1 :].shape)
    arrays["low"], arrays["high"] = np.minimum(arrays["low"], arrays["high"]), np.maximum(arrays["low"], arrays["high"])
    arrays["close"][t + 1 :][generator.random((119 - t, 2)) < 0.2] = np.nan
    after = compute_features(market_from_arrays(market.symbols, market.times, **arrays), EVERY)
    np.testing.assert_array_equal(before.values[: t + 1], after.values[: t + 1])
    assert before.first_bar == after.first_bar


def test_features_of_one_asset_ignore_the_others_and_the_bars_it_has_not():
    prices = np.exp(np.random.default_rng(0).normal(0, 0.1, 12).cumsum())
    alone = compute_features(_market(prices), ["log_return_2"]).values[:, 0]
    both = np.full((24, 2), np.nan)
    both[:, 0] = 1.0
    both[::2, 1] = prices
    table = compute_features(_market(both, open=both, high=both, low=both, volume=np.ones_like(both)), ["log_return_2"])
    assert table.columns == ("A:log_return_2", "B:log_return_2")
    assert table.first_bar == 2
    np.testing.assert_array_equal(table.values[::2, 1], alone)
    np.testing.assert_array_equal(table.values[1::2, 1], alone)  # carried forward


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("emma_20", 'no feature "emma_20". Did you mean "ema_20"'),
        ("rsi", 'no feature "rsi". Did you mean "rsi_14"'),
        ("rsi_1", "span of feature rsi_1 must be 2 or more"),
        ("log_return_0", "must be 1 or more"),
        ("macd_26_12", "spans of feature macd_26_12 must be 2 or more, the shorter one first"),
        ("rsi_14@7m", 'timeframe must be a part of a day .*, but got "7m"'),
        ("time_of_day@1h", "Feature time_of_day has no timeframe; write it without @1h"),
        ("tradable@1h", "Feature tradable has no timeframe"),
        ("", 'no feature ""'),
    ],
)
def test_unknown_features(name, sentence):
    with pytest.raises(UserError, match=sentence):
        make_features(name)


@pytest.mark.parametrize("n_bars", [1, 2, 25])
def test_fewer_bars_than_the_longest_feature_needs(n_bars):
    with pytest.raises(UserError, match=f"the market has too few bars: {n_bars}, but feature macd needs 26"):
        compute_features(_market(np.ones(n_bars)), ["log_return_1", "macd"])

import sys
from dataclasses import replace
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from ml_pipeline.config.errors import UserError
from ml_pipeline.trading.features.feature_stream import FeatureStream
from ml_pipeline.trading.features.indicators import DEFAULT_FEATURES, compute_features
from ml_pipeline.trading.market.bar_set import bar_sets_of
from ml_pipeline.trading.market.data import market_from_arrays
from ml_pipeline.trading.market.synthetic import synthetic_market
from ml_pipeline.trading.market.timeframes import Timing, make_clock
from tests.examples import COSTLY

MINUTE = 60 * 10**9
SHORT = (
    *("log_return_1", "log_return_3", "volatility_2", "volatility_9", "rsi_2", "rsi_5", "ema_distance_3", "ema_4"),
    *("sma_2", "sma_17", "macd_2_5", "atr_1", "atr_4", "volume_zscore_2", "volume_zscore_8", "tradable"),
    *("time_of_day", "time_of_week", "feature_x"),
)
LONGER = ("rsi_2@5m", "log_return_1@15m", "volume_zscore_2@15m", "atr_1@5m", "ema_2@1h", "sma_2@1d", "feature_x@15m")
CLOCKS = [(None, None), ("09:30-16:00", "America/New_York"), ("22:00-21:00", None), (None, "Australia/Lord_Howe")]


def random_market(seed, n_bars=70, n_assets=3, *, clock=(None, None), stamped="open"):
    """Minutes with gaps of minutes, hours and days; late listings, missing bars, prices that stand still, no volume."""
    generator = np.random.default_rng(seed)
    shape = (n_bars, n_assets)
    moves = generator.normal(0, 0.05, shape) * (generator.random(shape) < 0.8)
    close = 100 * np.exp(moves.cumsum(axis=0))
    if generator.random() < 0.7:
        close[generator.random(shape) < 0.2] = np.nan
        for a, listed in enumerate(generator.integers(0, n_bars // 2, n_assets)):
            close[:listed, a] = np.nan
        close[-1, np.isnan(close).all(axis=0)] = 50.0
    close[0, generator.integers(n_assets)] = 70.0
    open_ = close * np.exp(generator.normal(0, 0.01, shape))
    steps = generator.choice([1, 1, 1, 1, 2, 7, 61, 1441], n_bars)
    begin = np.datetime64("2024-03-08T14:00", "ns") + generator.integers(0, 5 * 1440) * np.timedelta64(1, "m")
    first = np.maximum.accumulate(~np.isnan(close), axis=0)
    return market_from_arrays(
        [f"S{a}" for a in range(n_assets)],
        begin + np.cumsum(steps) * np.timedelta64(1, "m"),
        close,
        open=open_,
        high=np.maximum(open_, close) * 1.01,
        low=np.minimum(open_, close) * 0.99,
        volume=generator.choice([0.0, 1.0, 7.3, 1e6], shape) * generator.random(shape),
        columns={"feature_x": np.where(first & (np.arange(n_bars) > 3)[:, None], generator.normal(size=shape), np.nan)},
        timing=Timing(MINUTE, stamped, make_clock(*clock)),
    )


def bits(values):
    """Bytes, in which NaN is NaN."""
    return np.where(np.isnan(values), np.nan, values).tobytes()


def assert_same_bits(market, names):
    table = compute_features(market, names)
    stream = FeatureStream(market.symbols, names, market.timing)
    for t, bars in enumerate(bar_sets_of(market)):
        row = stream.append(bars)
        different = [
            (table.columns[i], row[i], table.values[t, i])
            for i in range(len(row))
            if bits(row[i]) != bits(table.values[t, i])
        ]
        assert not different, (t, different[:3])
    assert stream.columns == table.columns
    assert stream.first_bar == table.first_bar
    assert stream.n_asset_features == table.n_asset_features


@given(seed=st.integers(0, 2**32 - 1), n_assets=st.sampled_from([1, 2, 5]))
def test_features_have_the_bits_of_those_computed_at_once(seed, n_assets):
    assert_same_bits(random_market(seed, n_assets=n_assets), SHORT)


@settings(max_examples=COSTLY)
@given(
    seed=st.integers(0, 2**32 - 1),
    clock=st.sampled_from(CLOCKS),
    stamped=st.sampled_from(["open", "close"]),
)
def test_features_on_longer_bars_have_them_too(seed, clock, stamped):
    market = random_market(seed, clock=clock, stamped=stamped)
    names = ("log_return_1", *LONGER)
    try:
        compute_features(market, names)
    except UserError:  # its few days have no long bar
        reject()
    assert_same_bits(market, names)


def test_so_do_those_of_every_bar_of_a_market_and_of_long_spans():
    names = (*DEFAULT_FEATURES, "volatility_200", "sma_129", "ema_distance_300", "volume_zscore_257", "log_return_300")
    assert_same_bits(synthetic_market(n_bars=700, n_symbols=3), names)


def test_a_volume_of_many_bars_is_added_in_the_same_order():
    market = synthetic_market(n_bars=400, n_symbols=2)
    generator = np.random.default_rng(0)
    times = np.datetime64("2024-01-01", "ns") + np.arange(400) * np.timedelta64(1, "m")
    prices = {name: getattr(market, name) for name in ("open", "high", "low")}
    volume = generator.exponential(1e5, market.close.shape)
    minutes = market_from_arrays(market.symbols, times, market.close, **prices, volume=volume)
    assert_same_bits(minutes, ("volume_zscore_2@1h", "volume_zscore_2@30m"))


@pytest.fixture
def own_features(monkeypatch):
    module = ModuleType("own_features")
    module.range = lambda bars: np.append(np.nan, ((bars.high - bars.low) / bars.close)[1:])
    module.level = lambda bars: np.cumsum(bars.close)
    module.spread = lambda bars, everyone: bars.close - everyone["S0"].close
    module.impatient = lambda bars: np.concatenate([[np.nan] * 3, bars.close[3:] / bars.close[2]])
    module.bad = lambda bars: np.where(bars.times > bars.times[0], np.inf, 1.0)
    monkeypatch.setitem(sys.modules, "own_features", module)


@pytest.mark.usefixtures("own_features")
@pytest.mark.parametrize("seed", range(5))
def test_a_users_functions_are_called_with_all_bars_so_far(seed):
    names = (
        "own_features:range",
        "log_return_1",
        "own_features:level@15m",
        "own_features:range@1h",
        "own_features:impatient",
    )
    assert_same_bits(random_market(seed, n_bars=40), names)


@pytest.mark.usefixtures("own_features")
@pytest.mark.parametrize("seed", range(5))
def test_bars_that_are_spared_a_users_functions_change_no_later_value(seed):
    names = ("own_features:range", "log_return_1", "own_features:level@15m")
    market = random_market(seed, n_bars=60)
    table = compute_features(market, names)
    stream = FeatureStream(market.symbols, names, market.timing)
    rows = [stream.append(bars, call_functions=t >= 50) for t, bars in enumerate(bar_sets_of(market))]
    assert bits(np.array(rows[50:])) == bits(table.values[50:])
    assert stream.first_bar == max(50, table.first_bar)


@pytest.mark.usefixtures("own_features")
def test_a_users_function_of_all_symbols_sees_them_all():
    market = synthetic_market(n_bars=12, n_symbols=2)
    market = market_from_arrays(["S0", "S1"], market.times, market.close)
    assert_same_bits(market, ("own_features:spread",))


@pytest.mark.usefixtures("own_features")
def test_a_function_that_fails_until_it_has_enough_bars_is_told_and_is_nan_until_then():
    market = of_hours([1.0] * 5)
    stream = FeatureStream(market.symbols, ["own_features:impatient"], market.timing)
    values, failing = [], []
    for bars in bar_sets_of(market):
        values.append(float(stream.append(bars)[0]))
        failing.append("IndexError" in str(stream.failures))
    assert failing == [True, True, False, False, False]
    np.testing.assert_array_equal(values, [np.nan, np.nan, np.nan, 1.0, 1.0])


def test_all_columns_of_the_data_are_features():
    assert_same_bits(random_market(1), ("feature_*", "feature_*@15m"))


def refused(market, names):
    stream = FeatureStream(market.symbols, names, market.timing, source=market.source)

    def append_all():
        for bars in bar_sets_of(market):
            stream.append(bars)

    with pytest.raises(UserError) as caught:
        append_all()
    return str(caught.value), stream


def of_hours(column):
    times = np.datetime64("2024-01-01", "ns") + np.arange(len(column)) * np.timedelta64(1, "h")
    return market_from_arrays(["A"], times, np.ones(len(column)), columns={"feature_x": column})


@pytest.mark.usefixtures("own_features")
@pytest.mark.parametrize(
    ("names", "column"),
    [
        (("feature_x",), [np.nan, 1.0, np.nan]),
        (("feature_x",), [1.0, np.inf, 1.0]),
        (("feature_y",), [1.0, 2.0, 3.0]),
        (("feature_x", "sma_2@30m"), [1.0, 2.0, 3.0]),
        (("own_features:bad",), [1.0, 2.0, 3.0]),
    ],
)
def test_what_cannot_be_used_is_refused_with_the_sentence_of_a_backtest(names, column):
    market = of_hours(column)
    with pytest.raises(UserError) as at_once:
        compute_features(market, names)
    sentence, stream = refused(market, names)
    assert sentence == str(at_once.value)
    with pytest.raises(UserError, match=f"^{sentence[:20]}"):
        stream.append(list(bar_sets_of(market))[-1])


def test_a_value_below_1e100_that_comes_late_on_a_longer_bar_is_refused():
    sentence, _ = refused(of_hours([1.0, 1.0, 1.0, np.nan, np.nan]), ("feature_x@2h",))
    assert sentence.startswith("feature_x@2h of A is nan at 2024-01-01 02:00:00, but after its first value")


@pytest.mark.parametrize("name", ["feature_x", "feature_x@2h"])
def test_bars_that_come_without_a_column_are_refused_as_if_it_were_nan(name):
    market = of_hours([1.0, 2.0, 3.0, 4.0])
    stream = FeatureStream(market.symbols, [name], market.timing)
    whole, another, *later = bar_sets_of(market)
    stream.append(whole)
    stream.append(another)

    def append_later():
        for bars in later:
            stream.append(replace(bars, columns={}))

    with pytest.raises(UserError, match=f"{name} of A is nan at 2024-01-01 02:00:00"):
        append_later()


def test_columns_are_known_once_there_is_a_bar():
    with pytest.raises(UserError, match="unknown before the first bar"):
        _ = FeatureStream(["A"], ["log_return_1"], Timing(MINUTE, "open")).columns

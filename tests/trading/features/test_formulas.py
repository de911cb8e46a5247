import numpy as np
import pytest

from ml_pipeline.trading.features import formulas
from ml_pipeline.trading.features.indicators import DEFAULT_FEATURES, compute_features
from ml_pipeline.trading.market.synthetic import synthetic_market

EVERY = (*DEFAULT_FEATURES, "ema_10", "sma_10", "macd_3_9", "volatility_2", "rsi_2", "atr_1")


@pytest.mark.parametrize("chunk", [1, 7, 64, 498, 499, 500])
def test_the_size_of_chunks_changes_no_bit(monkeypatch, chunk):
    market = synthetic_market(n_bars=500)
    whole = compute_features(market, EVERY)
    monkeypatch.setattr(formulas, "_CHUNK", chunk)
    np.testing.assert_array_equal(compute_features(market, EVERY).values, whole.values)


def test_averages_by_hand():
    closes = np.array([1.0, 2, 3, 6])
    bars = formulas.Bars(np.arange(4).astype("M8[D]"), closes, closes, closes, closes, closes, {})
    ema, sma = (formulas.SPANNED[name][0](bars, span=3) for name in ("ema", "sma"))
    np.testing.assert_array_equal(ema, [np.nan, np.nan, 2, 4])  # 2 + (6 - 2) / 2
    np.testing.assert_allclose(sma, [np.nan, np.nan, 2, 11 / 3])
    # EMA 2 is 1.5, 2.5, then 2.5 + (6 - 2.5) * 2 / 3; EMA 3 as above.
    np.testing.assert_allclose(formulas.macd(bars, 2, 3)[2:], [(2.5 - 2) / 3, (2.5 + 3.5 * 2 / 3 - 4) / 6])

"""The bars of a session are a file that training reads, with the same prices."""

from dataclasses import replace

import numpy as np

from ml_pipeline.live.retraining.bars_file import reading, write_bars
from ml_pipeline.trading.market.data import market_from_arrays
from ml_pipeline.trading.settings import TradingConfig
from ml_pipeline.trading.task import load_configured_market
from tests.live.retraining.small_sessions import market


def with_gaps(bars):
    """The second symbol has quotes, a column of its own, and no bar now and then."""
    tradable = np.ones_like(bars.tradable)
    tradable[5:20:3, 1] = False
    prices = {name: getattr(bars, name) for name in ("open", "high", "low", "volume")}
    return market_from_arrays(
        bars.symbols,
        bars.times,
        np.where(tradable, bars.close, np.nan),
        **prices,
        half_spread=np.full(bars.close.shape, 1e-4),
        columns={"feature_mood": np.arange(bars.close.size, dtype=float).reshape(bars.close.shape)},
    )


def test_training_reads_the_bars_that_were_traded(tmp_path):
    bars = with_gaps(market(60, symbols=("AAA", "B/B")))
    write_bars(bars, tmp_path / "bars.parquet")
    config = reading(TradingConfig(timeframe="15m", data=tmp_path / "other.csv"), bars, tmp_path / "bars.parquet")
    read = load_configured_market(config)
    assert read.symbols == bars.symbols
    assert read.timing == bars.timing
    assert read.periods_per_year == bars.periods_per_year
    for name in ("times", "open", "high", "low", "close", "volume", "tradable"):
        np.testing.assert_array_equal(getattr(read, name), getattr(bars, name), err_msg=name)
    own = bars.tradable
    np.testing.assert_array_equal(read.columns["feature_mood"][own], bars.columns["feature_mood"][own])
    np.testing.assert_allclose(read.half_spread, bars.half_spread, rtol=1e-9)


def test_bars_stamped_at_their_close_stay_so(tmp_path):
    bars = market(30)
    closing = replace(bars, timing=bars.timing._replace(stamped="close"))
    write_bars(closing, tmp_path / "bars.parquet")
    assert (
        load_configured_market(reading(TradingConfig(), closing, tmp_path / "bars.parquet")).timing.stamped == "close"
    )

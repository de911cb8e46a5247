"""The bars of a session are a file that training reads, with the same prices."""

from dataclasses import replace

import numpy as np
import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.live.retraining.bars import add_earlier_bars, reading, write_bars
from ml_pipeline.live.retraining.retraining_run import walk_forward
from ml_pipeline.trading.configured_market import load_configured_market
from ml_pipeline.trading.market.data import market_from_arrays
from ml_pipeline.trading.market.files import load_market
from ml_pipeline.trading.settings import TradingConfig
from tests.live.retraining.small_sessions import TRADING, market


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


ALL = market(360, symbols=("AAA", "BBB"))
OWN, EARLIER = ALL.bars(100, 350), ALL.bars(0, 160)


@pytest.fixture
def add(tmp_path):
    """Adds the first bars of ALL to those of a session that lie within them; the file then."""
    write_bars(OWN, tmp_path / "own.parquet")
    trading = reading(TRADING, OWN, tmp_path / "own.parquet")

    def do(bars=EARLIER, most=None):
        others = replace(bars, close=np.where(np.arange(bars.n_bars)[:, None] < 100, bars.close, bars.low))
        write_bars(others, tmp_path / "earlier.parquet")
        earlier = replace(TRADING, data=tmp_path / "earlier.parquet")
        add_earlier_bars(trading, earlier, n_own=OWN.n_bars, most=most)
        return load_market(tmp_path / "own.parquet")

    return do


def test_from_the_first_bar_of_the_session_its_own_count(add):
    for _ in range(2):  # an interrupted retraining does it again
        read = add()
        np.testing.assert_array_equal(read.times, ALL.times[:350])
        np.testing.assert_array_equal(read.close, ALL.close[:350])


def test_the_latest_of_them_may_be_all(add):
    for most in (30, 30):
        np.testing.assert_array_equal(add(most=most).times, ALL.times[70:350])


def test_none_are_added_where_the_session_has_enough(add):
    np.testing.assert_array_equal(add(most=0).times, OWN.times)


def test_bars_of_another_kind_or_time_are_refused(add):
    with pytest.raises(UserError, match=r"before the session's first, at 2024-01-05 04:00"):
        add(ALL.bars(100, 200))
    with pytest.raises(UserError, match=r"of 1 hour .* has bars of 2 hours"):
        add(replace(ALL.bars(0, 50), times=ALL.times[0] + 2 * (ALL.times[:50] - ALL.times[0])))
    with pytest.raises(UserError, match=r"bid and ask in only one of the two"):
        add(replace(ALL.bars(0, 50), half_spread=np.full((50, 2), 1e-4)))
    with pytest.raises(UserError, match=r"each symbol of the session, but .* lacks BBB"):
        add(EARLIER.select(("AAA",)))


def test_the_one_symbol_of_a_file_may_have_another_name(tmp_path):
    own, earlier = (market(100).bars(*rows) for rows in ((50, 100), (0, 50)))
    write_bars(own, tmp_path / "own.parquet")
    write_bars(replace(earlier, symbols=("years",)), tmp_path / "earlier.parquet")
    trading = reading(TRADING, own, tmp_path / "own.parquet")
    add_earlier_bars(trading, replace(TRADING, data=tmp_path / "earlier.parquet"), n_own=50, most=None)
    read = load_market(tmp_path / "own.parquet")
    assert (read.symbols, read.n_bars) == (("AAA",), 100)


def test_it_is_judged_on_bars_of_the_session_alone():
    bars = market(360, symbols=("AAA",))
    part = walk_forward(TRADING, bars, validation=0.2, n_own=50).validation_fraction
    alone = walk_forward(TRADING, bars, validation=0.2).validation_fraction
    usable = 360 - 15  # rsi_14 and a window of two
    assert (round(part * usable), round(alone * usable)) == (10, 69)

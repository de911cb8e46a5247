from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ml_pipeline.config.errors import UserError
from ml_pipeline.trading.market.bar_set import BarSet, MarketBuffer, bar_sets_of
from ml_pipeline.trading.market.data import market_from_arrays
from ml_pipeline.trading.market.files import load_market
from ml_pipeline.trading.market.timeframes import Calendar, Timing, make_clock

MINUTE = 60 * 10**9


def random_market(seed, n_bars=12, n_assets=3):
    """Late listings, missing bars, quotes, bars outside their range and columns, each in some markets."""
    generator = np.random.default_rng(seed)
    shape = (n_bars, n_assets)
    close = 100 * np.exp(generator.normal(0, 0.1, shape).cumsum(axis=0))
    close[generator.random(shape) < 0.3] = np.nan
    close[generator.integers(0, n_bars, n_assets), np.arange(n_assets)] = 100.0
    spread = np.where(generator.random(shape) < 0.5, generator.uniform(0, 0.01, shape), np.nan)
    open_ = close * np.exp(generator.normal(0, 0.01, shape))
    wick = generator.uniform(-0.002, 0.02, shape)
    column = np.where(generator.random(shape) < 0.7, generator.normal(size=shape), np.nan)
    times = np.datetime64("2024-01-01", "ns") + np.cumsum(generator.integers(1, 3, n_bars)) * np.timedelta64(1, "m")
    return market_from_arrays(
        [f"S{a}" for a in range(n_assets)],
        times,
        close,
        open=open_,
        high=np.maximum(open_, close) * (1 + wick),
        low=np.minimum(open_, close) * 0.99,
        volume=generator.uniform(0, 9, shape),
        half_spread=spread if generator.random() < 0.5 else None,
        columns={"feature_x": column} if generator.random() < 0.5 else None,
        timing=Timing(MINUTE, "open"),
    )


def tape_of(market, **settings):
    tape = MarketBuffer(market.symbols, market.timing, **settings)
    for bars in bar_sets_of(market):
        tape.append(bars)
    return tape


def assert_same(market, other):
    """Every field but the sentences; bits of arrays, NaN included."""
    for field in fields(market):
        if field.name in {"notices", "remarks", "source"}:
            continue
        one, two = getattr(market, field.name), getattr(other, field.name)
        if isinstance(one, dict):
            assert one.keys() == two.keys()
            assert all(one[name].tobytes() == two[name].tobytes() for name in one)
        elif isinstance(one, np.ndarray):
            assert one.dtype == two.dtype
            assert one.shape == two.shape
            assert one.tobytes() == two.tobytes(), field.name
        else:
            assert one == two, field.name


@given(seed=st.integers(0, 2**32 - 1))
def test_a_tape_of_a_markets_bars_is_the_market(seed):
    market = random_market(seed)
    assert_same(market, tape_of(market).market())


def test_any_part_of_the_bars_is_that_part_of_the_market():
    market = random_market(1, n_bars=40)
    tape = MarketBuffer(market.symbols, market.timing, market.calendar)
    for t, bars in enumerate(bar_sets_of(market)):
        tape.append(bars)
        so_far = tape.market()
        assert so_far.n_bars == tape.n_bars == t + 1
        assert so_far.close.tobytes() == market.close[: t + 1].tobytes()
        assert so_far.calendar == market.calendar


def test_a_tape_that_grew_is_the_market_and_leaves_earlier_views_as_they_were():
    market = random_market(2, n_bars=700)
    tape = MarketBuffer(market.symbols, market.timing)
    early = None
    for t, bars in enumerate(bar_sets_of(market)):
        tape.append(bars)
        early = tape.market() if t == 255 else early
    assert_same(market, tape.market())
    assert early.close.tobytes() == market.close[:256].tobytes()


def test_a_file_comes_back_bit_for_bit(tmp_path):
    file = tmp_path / "two.csv"
    file.write_text(
        "time,symbol,open,high,low,close,volume,bid,ask\n"
        "2024-01-01 10:00,A,1,2,0.5,1.5,10,1.4,1.6\n"
        "2024-01-01 10:01,A,1.5,1.6,1.5,1.7,11,1.6,1.8\n"  # closes above its high
        "2024-01-01 10:01,B,7,8,6,7.5,12,7.4,7.6\n"
        "2024-01-01 10:03,B,7,8,6,7.25,12,7.2,7.3\n"
    )
    market = load_market(file)
    assert market.outside.any()
    assert_same(market, tape_of(market).market())


def test_bars_are_nan_where_an_asset_has_none_and_say_whether_orders_can_be_filled():
    market = random_market(3)
    for t, bars in enumerate(bar_sets_of(market)):
        assert bars.present.tolist() == market.tradable[t].tolist()
        assert np.isnan(bars.open).tolist() == (~market.tradable[t]).tolist()
        assert bars.fillable.tolist() == market.fillable[t].tolist()


@pytest.mark.parametrize(
    ("stamped", "session", "length", "closes"),
    [
        ("open", None, 60, ["16:00", "16:45"]),
        ("close", None, 60, ["15:00", "15:45"]),
        ("open", "09:30-16:00", 60, ["16:00", "16:00"]),  # the last hour of a session is a quarter
        ("open", "09:30-15:30", 60, ["15:30", "16:45"]),  # a bar outside the session is as long as any
    ],
)
def test_a_bar_closes_at_its_end_or_at_that_of_its_session(stamped, session, length, closes):
    timing = Timing(length * MINUTE, stamped, make_clock(session, None))
    times = np.array(["2024-01-02T15:00", "2024-01-02T15:45"], dtype="datetime64[ns]")
    market = market_from_arrays(["A"], times, [1.0, 2.0], timing=timing)
    assert [str(bars.closed_at)[11:16] for bars in bar_sets_of(market)] == closes


def bar(time="2024-01-01T10:00", **changes):
    one = {name: np.array([1.0, 2.0]) for name in ("open", "high", "low", "close", "volume")}
    stamp = np.datetime64(time, "ns")
    whole = BarSet(time=stamp, closed_at=stamp, **one, fillable=np.array([True, True]))
    return replace(whole, **{name: np.array(values) for name, values in changes.items()})


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"close": [1.0, -2.0], "low": [1.0, -2.0]}, "close of B in bar 0 at 2024-01-01 10:01:00 is -2, but a price"),
        ({"open": [np.nan, 2.0]}, "open of A in bar 0 at 2024-01-01 10:01:00 is nan, but a price must be positive"),
        ({"high": [np.inf, 2.0]}, "high of A .* is inf"),
        ({"high": [0.5, 2.0]}, "but the low is above it"),
        ({"volume": [-1.0, 2.0]}, "volume of A .* is -1"),
        ({"half_spread": [0.0, 1.5]}, "half_spread of B .* is 1.5"),
        ({"close": [1.0]}, "must have 2 symbols, but got 1"),
    ],
)
def test_an_impossible_bar_is_refused_and_nothing_of_it_is_kept(changes, sentence):
    tape = MarketBuffer(["A", "B"], Timing(MINUTE, "open"))
    tape.append(bar())
    with pytest.raises(UserError, match=sentence):
        tape.append(bar("2024-01-01T10:01", **changes))
    assert tape.market().close.tolist() == [[1.0, 2.0]]
    tape.append(bar("2024-01-01T10:01"))
    assert tape.n_bars == 2


@pytest.mark.parametrize("time", ["2024-01-01T10:00", "2024-01-01T09:59"])
def test_bars_come_in_order(time):
    tape = MarketBuffer(["A", "B"], Timing(MINUTE, "open"))
    tape.append(bar())
    with pytest.raises(UserError, match="must be in order"):
        tape.append(bar(time))


def test_a_tape_without_bars_has_no_market():
    with pytest.raises(UserError, match="there is none yet"):
        MarketBuffer(["A"], Timing(MINUTE, "open")).market()


def test_an_asset_without_a_bar_needs_none_of_its_numbers():
    tape = MarketBuffer(["A", "B"], Timing(MINUTE, "open"), Calendar("24/7", 10.0, "by hand"))
    tape.append(bar(close=[np.nan, 2.0], open=[-1.0, 2.0], volume=[np.nan, 1.0]))
    assert np.isnan(tape.market().open[0, 0])
    assert tape.market().volume[0].tolist() == [0.0, 1.0]
    assert tape.market().periods_per_year == 10.0


def test_columns_keep_their_order_which_features_of_all_of_them_take():
    names = [f"feature_{letter}" for letter in "qhzbxmakrt"]
    market = random_market(1)
    market = replace(market, columns={name: market.close * i for i, name in enumerate(names)})

    assert list(tape_of(market).market().columns) == names

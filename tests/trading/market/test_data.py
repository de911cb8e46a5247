import numpy as np
import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.trading.market.data import market_from_arrays

DAYS = np.arange("2024-01-01", "2024-01-06", dtype="datetime64[D]")
NAN = np.nan


def test_what_is_missing_is_masked_and_valued_at_the_last_close_never_filled_backwards():
    close = np.array([[1, NAN], [2, NAN], [3, 30], [NAN, 40], [5, NAN]])
    market = market_from_arrays(
        ["A", "B"], DAYS, close, open=close - 0.5, high=close, low=close - 0.5, volume=close * 100
    )
    np.testing.assert_array_equal(market.tradable, ~np.isnan(close))
    np.testing.assert_array_equal(market.close, [[1, NAN], [2, NAN], [3, 30], [3, 40], [5, 40]])
    np.testing.assert_array_equal(market.open, [[0.5, NAN], [1.5, NAN], [2.5, 29.5], [3, 39.5], [4.5, 40]])
    np.testing.assert_array_equal(market.volume[:, 1], [0, 0, 3000, 4000, 0])
    assert market.notices == (
        "A has no bar at 1 of the 5 times; it cannot be traded then and is valued at its last close",
        "B begins at 2024-01-03; it cannot be traded in the 2 bars before",
        "B has no bar after 2024-01-04; it cannot be traded then and is valued at its last close",
    )


def test_no_notice_where_nothing_is_changed():
    prices = np.arange(1.0, 6.0)
    market = market_from_arrays(["A"], DAYS, prices, open=prices, high=prices, low=prices, volume=prices)
    assert market.notices == ()
    np.testing.assert_array_equal(market.close[:, 0], prices)
    assert market.times.dtype == "datetime64[ns]"


def test_a_close_stands_in_for_other_prices_with_a_notice():
    market = market_from_arrays(["A"], DAYS, np.arange(1.0, 6.0))
    np.testing.assert_array_equal(market.open, market.close)
    assert market.notices == (
        "there are no open or high or low prices; the close of the bar is used instead",
        "there is no volume; it counts as 0",
    )


def test_slices_and_selections():
    close = np.arange(1.0, 11.0).reshape(5, 2)
    market = market_from_arrays(["A", "B"], DAYS, close)
    part = market.bars(1, 3)
    assert part.n_bars == 2
    assert part.periods_per_year == market.periods_per_year == 252
    np.testing.assert_array_equal(market.select(["B", "A"]).close, close[:, ::-1])
    with pytest.raises(UserError, match='no symbol "C"'):
        market.select(["C"])


@pytest.mark.parametrize(
    ("times", "close", "sentence"),
    [
        (DAYS[:0], np.empty((0, 1)), "at least one bar"),
        (DAYS[[0, 2, 1]], [1, 2, 3], "bar 2 at 2024-01-02 follows 2024-01-03"),
        (DAYS[[0, 0]], [1, 2], "times must increase"),
        (DAYS[:2], [1, 0], "close of A in bar 1 at 2024-01-02 is 0, but a price must be positive"),
        (DAYS[:2], [1, np.inf], "is inf, but a price"),
        (DAYS[:2], [NAN, NAN], "A has no bars"),
        (DAYS[:2], [1, 2, 3], r"close must have shape \(bars, symbols\) = \(2, 1\), but got \(3, 1\)"),
    ],
)
def test_arrays_that_cannot_be_used(times, close, sentence):
    with pytest.raises(UserError, match=sentence):
        market_from_arrays(["A"], times, close)


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ({"open": [1, NAN]}, "open of A in bar 1 at 2024-01-02 is nan, but a price must be positive and finite; drop"),
        ({"volume": [1, -1]}, "volume of A in bar 1 at 2024-01-02 is -1, but a volume must be finite .*; fix it"),
        ({"volume": [np.inf, 1]}, "volume of A in bar 0 at 2024-01-01 is inf"),
        ({"high": [1, 2], "low": [1, 2.5]}, "high of A in bar 1 at 2024-01-02 is 2, but the low is above it; fix"),
        ({"half_spread": [0, 1]}, "half_spread of A in bar 1 at 2024-01-02 is 1, but it is a fraction of the price"),
    ],
)
def test_a_bar_that_cannot_be_is_named_with_its_row_and_a_remedy(arrays, sentence):
    with pytest.raises(UserError, match=sentence):
        market_from_arrays(["A"], DAYS[:2], [1, 2], **arrays)


def test_a_bar_that_does_not_exist_may_hold_anything():
    market = market_from_arrays(["A"], DAYS[:3], [1, NAN, 2], high=[1, 0, 2], low=[1, 5, 2], volume=[1, -1, 1])
    np.testing.assert_array_equal(market.high[:, 0], [1, 1, 2])


def test_a_market_shows_its_symbols_and_its_span_in_one_line():
    times = ["2024-01-01", "2024-01-02", "2024-01-05"]
    market = market_from_arrays(["A", "B"], times, np.ones((3, 2)), source="prices.csv")
    assert repr(market) == "MarketData(prices.csv: A, B; 3 bars from 2024-01-01 to 2024-01-05)"
    assert repr(market.bars(0, 0)) == "MarketData(prices.csv: A, B; 0 bars)"
    many = market_from_arrays([*"ABCDEF"], times, np.ones((3, 6)), source="six")
    assert repr(many).startswith("MarketData(six: A, B, C, D, E, ...; 3 bars from ")

import numpy as np
import polars as pl
import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.trading.market.files import load_market, market_from_frame


def test_frames_of_pandas_and_polars_read_as_a_file_does(tmp_path):
    path = tmp_path / "prices.csv"
    path.write_text("time,close,volume\n2024-01-01,11,100\n2024-01-02,12,200\n2024-01-03,13,300\n")
    expected = load_market(path)
    frame = pl.read_csv(path, try_parse_dates=True)
    markets = [market_from_frame(frame, name="prices")]
    try:
        import pandas as pd
    except ImportError:
        pass
    else:
        dated = pd.read_csv(path, parse_dates=["time"])
        indexed = dated.set_index("time")
        zoned = indexed.tz_localize("UTC").tz_convert("Asia/Tokyo")
        tokyo = indexed.tz_localize("Asia/Tokyo")
        markets += [market_from_frame(each, name="prices") for each in (dated, indexed, zoned, tokyo)]
    for market in markets:
        assert market.symbols == ("prices",)
        np.testing.assert_array_equal(market.times, expected.times)
        np.testing.assert_array_equal(market.close, expected.close)
        np.testing.assert_array_equal(market.volume, expected.volume)


def test_frames_of_pandas_in_other_layouts():
    pd = pytest.importorskip("pandas")
    days = pd.date_range("2024-01-01", periods=2, name="Date")
    closes = np.array([[1.0, 10.0], [2.0, 20.0]])
    titles = pd.MultiIndex.from_product([["Close"], ["AAPL", "MSFT"]])
    side_by_side = pd.DataFrame(closes, index=days, columns=titles)
    below = pd.DataFrame({"close": closes.ravel()}, index=pd.MultiIndex.from_product([days, ["AAPL", "MSFT"]]))
    below.index.names = ["date", "ticker"]
    for frame in (side_by_side, below):
        market = market_from_frame(frame)
        assert market.symbols == ("AAPL", "MSFT")
        np.testing.assert_array_equal(market.close, closes)
        np.testing.assert_array_equal(market.times, days.to_numpy())
    seconds = pd.Index([1_700_000_000, 1_700_003_600], name="timestamp")
    market = market_from_frame(pd.DataFrame({"close": [1.0, 2.0]}, index=seconds))
    assert str(market.times[1])[:16] == "2023-11-14T23:13"
    with pytest.raises(UserError, match="but got ndarray; for arrays, use market_from_arrays"):
        market_from_frame(np.arange(5.0))

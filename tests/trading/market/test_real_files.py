"""Real exports, where the machine has them."""

import pytest

from ml_pipeline.trading.market.files import load_market


def test_eurusd(market_file):
    market = load_market(market_file("FOREX_EURUSD_1H_ASK.csv"))
    assert market.close.shape == (6_225, 1)
    assert str(market.times[0]) == "2017-01-01T22:00:00.000000000"
    assert str(market.times[-1]) == "2017-12-29T21:00:00.000000000"
    assert market.close[-1, 0] == 1.20075
    assert market.notices == ()
    assert market.periods_per_year == 260 * 24


def test_btc_is_newest_first(market_file):
    market = load_market(market_file("BTC_USD-Hourly.csv"))
    assert market.close.shape == (33_259, 1)
    assert market.symbols == ("BTC/USD",)
    newest_first, swapped = market.notices
    assert newest_first == "BTC_USD-Hourly.csv: rows were newest first; sorted"
    assert "columns volume and Volume USD are swapped in 20,143 of 33,259 rows, from 2018-05-15" in swapped
    assert "to 2020-10-12 08:00:00; swap them back" in swapped
    assert (market.close[0, 0], market.close[-1, 0]) == (8740.99, 43312.27)
    assert market.periods_per_year == 365 * 24


def test_bitstamp_lists_two_of_three_late(market_file):
    market = load_market(market_file("bitstamp_BTC_ETH_LTC_USD_d.csv"))
    assert market.close.shape == (1_865, 3)
    assert (~market.tradable).sum() * 5 == 10_085  # the empty cells, five a bar
    assert market.notices == (
        "ETH begins at 2017-11-09; it cannot be traded in the 1,077 bars before",
        "LTC begins at 2017-06-25; it cannot be traded in the 940 bars before",
    )


def test_dj30_is_long_and_adjusted(market_file):
    market = load_market(market_file("dj30_test_2021.csv"), symbols=["WMT", "AAPL"])
    assert market.symbols == ("WMT", "AAPL")
    assert market.close.shape == (252, 2)
    assert market.close[0, 1] == pytest.approx(128.45343017578125, rel=1e-15)
    assert "dj30_test_2021.csv: prices were adjusted to column adjcp" in market.notices

"""Files in the layouts that their sources document are read as they stand, or one sentence names the flag to give."""

import numpy as np
import polars as pl
import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.trading.inspect_data import main
from ml_pipeline.trading.market.columns import make_dialect
from ml_pipeline.trading.market.diagnosis import layouts_of
from ml_pipeline.trading.market.files import load_market, market_from_frame
from ml_pipeline.trading.market.tables import Faults

# Of each source: its name, as the program says it; the text; the first time in UTC, the closes and the volumes.
LAYOUTS = {
    "binance in milliseconds": (
        "Binance klines",
        "1502942400000,4261.48,4313.62,4261.32,4308.83,47.181009,1502945999999,202366.13,171,35.16,150952.47,7887.63\n"
        "1502946000000,4308.83,4328.69,4291.37,4315.32,23.234916,1502949599999,100304.82,102,21.44,92608.27,8039.26\n",
        "2017-08-17T04:00",
        [4308.83, 4315.32],
        [47.181009, 23.234916],
    ),
    "binance in microseconds": (
        "Binance klines",
        "1735689600000000,4.152,4.1587,4.1506,4.1554,539.23,1735693199999999,2240.39,13,401.82,1669.98,0\n"
        "1735693200000000,4.1554,4.16,4.15,4.151,12.5,1735696799999999,51.9,4,3.0,12.4,0\n",
        "2025-01-01T00:00",
        [4.1554, 4.151],
        [539.23, 12.5],
    ),
    "binance futures with a header": (
        "Binance klines",
        "open_time,open,high,low,close,volume,close_time,quote_volume,count,taker_buy_volume,taker_buy_quote_volume,"
        "ignore\n1704067200000,10,12,9,11,5,1704070799999,55,3,2,22,0\n1704070800000,11,12,9,10,6,1704074399999,6,3,2,2,0\n",
        "2024-01-01T00:00",
        [11, 10],
        [5, 6],
    ),
    "kraken": (
        "Kraken OHLCVT",
        "1381095255,122.0,122.0,122.0,122.0,0.1,1\n1381179030,123.61,123.61,123.61,123.61,0.1,1\n",
        "2013-10-06T21:34:15",
        [122.0, 123.61],
        [0.1, 0.1],
    ),
    "metatrader 5": (
        "MetaTrader 5",
        "<DATE>\t<TIME>\t<OPEN>\t<HIGH>\t<LOW>\t<CLOSE>\t<TICKVOL>\t<VOL>\t<SPREAD>\n"
        "2024.01.02\t00:05:00\t1.10427\t1.10434\t1.10425\t1.10429\t50\t0\t9\n"
        "2024.01.02\t00:10:00\t1.10429\t1.10440\t1.10421\t1.10431\t61\t0\t9\n",
        "2024-01-02T00:05",
        [1.10429, 1.10431],
        [50, 61],
    ),
    "metatrader 5, days": (
        "MetaTrader 5",
        "<DATE>\t<OPEN>\t<HIGH>\t<LOW>\t<CLOSE>\t<TICKVOL>\t<VOL>\t<SPREAD>\n"
        "2024.01.02\t1.10427\t1.10434\t1.10425\t1.10429\t50\t0\t9\n"
        "2024.01.03\t1.10429\t1.10440\t1.10421\t1.10431\t61\t0\t9\n",
        "2024-01-02",
        [1.10429, 1.10431],
        [50, 61],
    ),
    "metatrader 4": (
        "MetaTrader 4 or HistData",
        "2012.02.01,00:00,1.306600,1.306600,1.306560,1.306560,3\n2012.02.01,00:01,1.306570,1.306570,1.306470,1.306560,4\n",
        "2012-02-01T00:00",
        [1.30656, 1.30656],
        [3, 4],
    ),
    "ninjatrader": (
        "NinjaTrader or HistData",
        "20120201 000000;1.306600;1.306600;1.306560;1.306560;3\n"
        "20120201 000100;1.306570;1.306570;1.306470;1.306560;4\n",
        "2012-02-01T00:00",
        [1.30656, 1.30656],
        [3, 4],
    ),
    "ninjatrader, days": (
        "NinjaTrader or HistData",
        "20061023;1377.25;1377.25;1377.25;1377.25;86\n20061024;1377.25;1378.25;1377.25;1377.5;27\n",
        "2006-10-23",
        [1377.25, 1377.5],
        [86, 27],
    ),
    "dukascopy": (
        "Dukascopy",
        "Gmt time,Open,High,Low,Close,Volume\n01.01.2020 22:00:00.000,1.12119,1.12123,1.12104,1.12123,51.41\n"
        "01.01.2020 22:01:00.000,1.12123,1.12125,1.12110,1.12112,22.13\n",
        "2020-01-01T22:00",
        [1.12123, 1.12112],
        [51.41, 22.13],
    ),
    "dukascopy in local time": (
        "Dukascopy",
        "Local time,Open,High,Low,Close,Volume\n"
        "01.01.2020 23:00:00.000 GMT+0100,1.12119,1.12123,1.12104,1.12123,51.41\n"
        "01.01.2020 23:01:00.000 GMT+0100,1.12123,1.12125,1.12110,1.12112,22.13\n",
        "2020-01-01T22:00",
        [1.12123, 1.12112],
        [51.41, 22.13],
    ),
    "dukascopy's JForex in EET": (
        "Dukascopy",
        "Time (EET),Open,High,Low,Close,Volume \n2020.07.01 00:00:00,1.12119,1.12123,1.12104,1.12123,51.41\n"
        "2020.07.01 00:01:00,1.12123,1.12125,1.12110,1.12112,22.13\n",
        "2020-06-30T21:00",
        [1.12123, 1.12112],
        [51.41, 22.13],
    ),
    "tradingview in Unix time": (
        "TradingView",
        "time,open,high,low,close,Volume,RSI\n1704205800,187.15,188.44,183.885,185.64,82488700,47.1\n"
        "1704292200,184.22,185.88,183.43,184.25,58414460,44.9\n",
        "2024-01-02T14:30",
        [185.64, 184.25],
        [82488700, 58414460],
    ),
    "tradingview in ISO": (
        "TradingView",
        "time,open,high,low,close,Volume\n2024-01-02T09:30:00-05:00,187.15,188.44,183.885,185.64,82488700\n"
        "2024-01-02T09:35:00-05:00,184.22,185.88,183.43,184.25,58414460\n",
        "2024-01-02T14:30",
        [185.64, 184.25],
        [82488700, 58414460],
    ),
    "stooq, days": (
        "Stooq or yfinance",
        "Date,Open,High,Low,Close,Volume\n2024-01-02,187.15,188.44,183.88,185.64,82488700\n"
        "2024-01-03,184.22,185.88,183.43,184.25,58414460\n",
        "2024-01-02",
        [185.64, 184.25],
        [82488700, 58414460],
    ),
    "stooq in bulk": (
        "Stooq",
        "<TICKER>,<PER>,<DATE>,<TIME>,<OPEN>,<HIGH>,<LOW>,<CLOSE>,<VOL>,<OPENINT>\n"
        "AAPL.US,5,20240102,153000,187.15,188.44,183.88,185.64,824,0\nAAPL.US,5,20240102,153500,184.2,185.8,183.4,184.2,58,0\n",
        "2024-01-02T15:30",
        [185.64, 184.2],
        [824, 58],
    ),
    "stooq in Polish": (
        "Stooq",
        "Data,Otwarcie,Najwyzszy,Najnizszy,Zamkniecie,Wolumen\n2024-01-02,187.15,188.44,183.88,185.64,824\n"
        "2024-01-03,184.22,185.88,183.43,184.25,584\n",
        "2024-01-02",
        [185.64, 184.25],
        [824, 584],
    ),
    "yfinance in three lines": (
        None,
        "Price,Close,High,Low,Open,Volume\nTicker,AAPL,AAPL,AAPL,AAPL,AAPL\nDate,,,,,\n"
        "2024-01-02,185.64,188.44,183.88,187.15,82488700\n2024-01-03,184.25,185.88,183.43,184.22,58414460\n",
        "2024-01-02",
        [185.64, 184.25],
        [82488700, 58414460],
    ),
    "yfinance of one ticker": (
        "yfinance",
        "Date,Open,High,Low,Close,Volume,Dividends,Stock Splits\n"
        "2024-01-02 00:00:00-05:00,187.15,188.44,183.88,185.64,82488700,0.0,0.0\n"
        "2024-01-03 00:00:00-05:00,184.22,185.88,183.43,184.25,58414460,0.0,0.0\n",
        "2024-01-02",
        [185.64, 184.25],
        [82488700, 58414460],
    ),
    "interactive brokers with a zone": (
        "Interactive Brokers",
        "date,open,high,low,close,volume,average,barCount\n"
        "20240102  09:30:00 US/Eastern,187.15,188.44,183.88,185.64,824,186,7\n"
        "20240102  09:31:00 US/Eastern,185.6,185.88,183.43,184.25,584,184.5,5\n",
        "2024-01-02T14:30",
        [185.64, 184.25],
        [824, 584],
    ),
    "interactive brokers in UTC": (
        "Interactive Brokers",
        "date,open,high,low,close,volume,average,barCount\n20240102-14:30:00,187.15,188.44,183.88,185.64,824,186,7\n"
        "20240102-14:31:00,185.6,185.88,183.43,184.25,584,184.5,5\n",
        "2024-01-02T14:30",
        [185.64, 184.25],
        [824, 584],
    ),
    "alpha vantage, adjusted": (
        "Alpha Vantage",
        "timestamp,open,high,low,close,adjusted_close,volume,dividend_amount,split_coefficient\n"
        "2024-01-03,184.22,185.88,183.43,184.25,184.25,584,0.0,1.0\n2024-01-02,187.15,188.44,183.88,185.64,185.64,824,0.0,1.0\n",
        "2024-01-02",
        [185.64, 184.25],
        [824, 584],
    ),
    "yahoo": (
        "Yahoo Finance or yfinance",
        "Date,Open,High,Low,Close,Adj Close,Volume\n2024-01-02,187.15,188.44,183.88,185.64,185.64,824\n"
        "2024-01-03,184.22,185.88,183.43,184.25,184.25,584\n",
        "2024-01-02",
        [185.64, 184.25],
        [824, 584],
    ),
    "investing.com": (
        "Investing.com",
        '"Date","Price","Open","High","Low","Vol.","Change %"\n'
        '"01/16/2024","42,580.5","42,510.1","43,578.0","42,085.0","3.43M","0.16%"\n'
        '"01/15/2024","42,511.1","41,732.5","43,319.0","41,718.0","65.71K","1.87%"\n',
        "2024-01-15",
        [42511.1, 42580.5],
        [65_710, 3_430_000],
    ),
    "nasdaq": (
        "Nasdaq",
        "Date,Close/Last,Volume,Open,High,Low\n01/17/2024,$182.68,47317430,$181.27,$182.93,$180.30\n"
        "01/16/2024,$183.63,65603040,$182.16,$184.26,$180.934\n",
        "2024-01-16",
        [183.63, 182.68],
        [65603040, 47317430],
    ),
    "cryptodatadownload": (
        "CryptoDataDownload",
        "https://www.CryptoDataDownload.com\nunix,date,symbol,open,high,low,close,Volume BTC,Volume USD\n"
        "1646096400,2022-03-01 01:00:00,BTC/USD,43312.27,43600,43200,43500.5,52.5,2283776.25\n"
        "1646092800,2022-03-01 00:00:00,BTC/USD,43221.71,43626.49,43185.48,43312.27,52.0,2252238\n",
        "2022-03-01T00:00",
        [43312.27, 43500.5],
        [52.0, 52.5],
    ),
    "decimal commas and semicolons": (
        None,
        "Datum;Erster;Hoch;Tief;Schlusskurs;Stuecke;Volumen\n2024-01-02;1.187,15;1.188,44;1.183,88;1.185,64;824;9\n"
        "2024-01-03;1.184,22;1.185,88;1.183,43;1.184,25;584;9\n",
        "2024-01-02",
        [1185.64, 1184.25],
        [824, 584],
    ),
    "times in digits alone": (
        None,
        "DateTime;Open;High;Low;Close\n202401020930;4;5;3;4.5\n202401020931;4.5;5;3;4\n",
        "2024-01-02T09:30",
        [4.5, 4.0],
        [0, 0],
    ),
    "names of other exports": (
        None,
        "Trade Date,Opening Price,High Price,Low Price,Last\n2024-01-02,4,5,3,4.5\n2024-01-03,4.5,5,3,4\n",
        "2024-01-02",
        [4.5, 4.0],
        [0, 0],
    ),
    "a time in UTC by its name": (
        None,
        "timestamp_utc,1. open,2. high,3. low,4. close,5. volume\n2024-01-02 09:30:00+00,4,5,3,4.5,7\n"
        "2024-01-02 09:31:00+00,4.5,5,3,4,8\n",
        "2024-01-02T09:30",
        [4.5, 4.0],
        [7, 8],
    ),
}


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_layout_of_a_source_is_read_and_named(tmp_path, layout, encoding):
    name, text, first, closes, volumes = LAYOUTS[layout]
    path = tmp_path / "prices.csv"
    path.write_bytes(text.encode(encoding))
    market = load_market(path)
    assert str(market.times[0].astype("datetime64[s]")) == str(np.datetime64(first, "s"))
    np.testing.assert_array_equal(market.close[:, 0], closes)
    np.testing.assert_allclose(market.volume[:, 0], volumes, rtol=1e-12)
    assert [sentence.partition(";")[0] for sentence in layouts_of([path])] == (
        []
        if name is None
        else [f"Layout of prices.csv: {name}".rstrip(".") + ("" if ";" in layouts_of([path])[0] else ".")]
    )


def test_a_file_without_a_header_says_how_its_columns_were_read(tmp_path):
    path = tmp_path / "BTCUSDT-1h.csv"
    path.write_text(LAYOUTS["binance in milliseconds"][1])
    assert load_market(path).notices == (
        "BTCUSDT-1h.csv: there is no header; columns were read as open_time, open, high, low, close, volume, "
        "close_time, quote_volume, count, taker_buy_volume, taker_buy_quote_volume, ignore, "
        "the layout of Binance klines",
    )
    path.write_text("2024-01-02 09:30:00,4,5,3,4.5,7\n2024-01-02 09:31:00,4.5,5,3,4,8\n")
    assert load_market(path).notices == (
        "BTCUSDT-1h.csv: there is no header; columns were read as time, open, high, low, close, volume",
    )


def test_columns_of_no_known_layout_are_numbered(tmp_path):
    """Bitfinex writes the close before the high: taken as open, high, low, close, no bar could have these prices."""
    path = tmp_path / "prices.csv"
    path.write_text("1704067200000,4,4.5,5,3,7\n1704067260000,4.5,4,5,3,8\n")
    with pytest.raises(
        UserError, match=r"no header and no known layout; .* --columns time=1 open=2 high=3 low=4 close=5 volume=6\.$"
    ):
        load_market(path)
    dialect = make_dialect({"time": "1", "open": "2", "close": "3", "high": "4", "low": "5", "volume": "6"}, None)
    market = load_market(path, dialect=dialect)
    np.testing.assert_array_equal(market.close[:, 0], [4.5, 4])
    np.testing.assert_array_equal(market.high[:, 0], [5, 5])
    assert market.notices == ()


ODD = "stamp,px,RSI (14),Amount\n2024-01-02,4,50,7\n2024-01-03,5,51,8\n"


def test_columns_are_named_and_left_out(tmp_path):
    path = tmp_path / "prices.csv"
    path.write_text(ODD)
    with pytest.raises(
        UserError,
        match=r"has no price column and no time column.*; if these columns are meant, pass --columns time=stamp close",
    ):
        load_market(path)
    with pytest.raises(UserError, match=r"has no time column.*; if this column is meant, pass --columns time=stamp"):
        load_market(path, dialect=make_dialect({"close": "px"}, None))
    named = {"time": "stamp", "close": "px", "feature_rsi": "RSI (14)", "volume": "Amount"}
    market = load_market(path, dialect=make_dialect(named, None))
    np.testing.assert_array_equal(market.columns["feature_rsi"][:, 0], [50, 51])
    np.testing.assert_array_equal(market.volume[:, 0], [7, 8])
    from_frame = market_from_frame(pl.read_csv(path), dialect=make_dialect(named, None))
    np.testing.assert_array_equal(from_frame.volume, market.volume)
    without = load_market(path, dialect=make_dialect({**named, "volume": "none"}, None))
    assert "prices.csv: no column for volume; taken as 0" in without.notices
    with pytest.raises(
        UserError, match=r'prices.csv: columns names "pxx", but there is no such column. Did you mean "px"'
    ):
        load_market(path, dialect=make_dialect({"close": "pxx"}, None))
    with pytest.raises(UserError, match=r'columns cannot name a column "closing"\. Did you mean "close"'):
        make_dialect({"closing": "px"}, None)


def test_a_day_and_a_time_of_day_are_named_apart(tmp_path):
    path = tmp_path / "prices.csv"
    path.write_text("D,C,close\n2024-01-02,930,4\n2024-01-02,1005,5\n")
    market = load_market(path, dialect=make_dialect({"date": "D", "time": "C"}, None))
    assert [str(time)[:16] for time in market.times] == ["2024-01-02T09:30", "2024-01-02T10:05"]


AMBIGUOUS = "Date,Price\n03/04/2024,1\n04/04/2024,2\n05/04/2024,3\n"


def test_the_order_of_a_date_that_no_row_tells_is_a_flag(tmp_path):
    path = tmp_path / "prices.csv"
    path.write_text(AMBIGUOUS)
    with pytest.raises(UserError, match=r"no row shows which; pass --date-order dmy or --date-order mdy\.$"):
        load_market(path)
    for order, days in (("dmy", ["2024-04-03", "2024-04-04"]), ("mdy", ["2024-03-04", "2024-04-04"])):
        times = load_market(path, dialect=make_dialect({}, order)).times
        assert [str(time)[:10] for time in times[:2]] == days
    with pytest.raises(UserError, match="date_order must be one of dmy, mdy, ymd, but got"):
        make_dialect({}, "ydm")


BARS = "time,open,high,low,close,volume\n2024-01-02,4,5,3,4.5,{}\n2024-01-03,4.5,5,3,4,{}\n2024-01-04,4,5,3,4,{}\n"


@pytest.mark.parametrize("cell", ["n.v.", "-1", "3.43X"])
def test_a_column_without_any_volume_costs_no_row(tmp_path, capsys, cell):
    path = tmp_path / "prices.csv"
    path.write_text(BARS.format(cell, cell, cell))
    market = load_market(path)
    assert market.n_bars == 3
    assert not market.volume.any()
    (notice,) = market.notices
    assert "volume of prices holds no volume in any row, first " in notice
    assert main([str(path)]) == 0
    assert notice in capsys.readouterr().out  # at least what training says


def test_a_volume_that_cannot_be_read_costs_its_cell_and_not_its_row(tmp_path):
    path = tmp_path / "prices.csv"
    path.write_text(BARS.format("7", "x", "9"))
    with pytest.raises(UserError, match=r'volume of prices is "x".*--drop-bad-rows empties such cells'):
        load_market(path)
    market = load_market(path, faults=Faults("drop"))
    np.testing.assert_array_equal(market.volume[:, 0], [7, 0, 9])
    assert any(notice.startswith("emptied: prices.csv row 2 (line 3)") for notice in market.notices)


def test_data_without_a_usable_row_say_why(tmp_path):
    path = tmp_path / "prices.csv"
    path.write_text("time,close\n2024-01-02,x\n2024-01-03,y\n")
    with pytest.raises(UserError, match=r'no row of prices can be used; use other data. prices.csv row 1 .* is "x"'):
        load_market(path, faults=Faults("list"))


def test_what_is_proposed_for_unused_columns_can_be_pasted(tmp_path, capsys):
    path = tmp_path / "prices.csv"
    path.write_text(ODD.replace("stamp,px", "time,close"))
    assert main([str(path)]) == 0
    out = capsys.readouterr().out
    proposed = "--columns 'feature_rsi_14=RSI (14)' feature_amount=Amount --features 'feature_*'"
    assert proposed in out
    assert main([str(path), "--columns", "feature_rsi_14=RSI (14)", "feature_amount=Amount"]) == 0
    assert "own features: feature_rsi_14, feature_amount" in capsys.readouterr().out

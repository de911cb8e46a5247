import gzip

import numpy as np
import polars as pl
import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.trading.market.files import load_market
from ml_pipeline.trading.market.tables import Faults

GOOD = """time,open,high,low,close,volume
2024-01-01,10,12,9,11,100
2024-01-02,11,13,10,12,200
2024-01-03,12,14,11,13,300
"""


@pytest.fixture
def write(tmp_path):
    def to_file(text, name="prices.csv"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    return to_file


def _reversed(text):
    header, *rows = text.strip().splitlines()
    return "\n".join([header, *rows[::-1]])


def test_a_clean_file_is_read_as_it_is(write):
    market = load_market(write(GOOD))
    assert market.symbols == ("prices",)
    assert market.source == "prices.csv"
    assert market.notices == ()
    np.testing.assert_array_equal(market.times, np.arange("2024-01-01", "2024-01-04", dtype="datetime64[D]"))
    np.testing.assert_array_equal(market.open[:, 0], [10, 11, 12])
    np.testing.assert_array_equal(market.high[:, 0], [12, 13, 14])
    np.testing.assert_array_equal(market.low[:, 0], [9, 10, 11])
    np.testing.assert_array_equal(market.close[:, 0], [11, 12, 13])
    np.testing.assert_array_equal(market.volume[:, 0], [100, 200, 300])


@pytest.mark.parametrize(
    "text",
    [
        GOOD.replace(",", ";"),
        GOOD.replace(",", "\t"),
        "\ufeff" + GOOD,
        GOOD + "\n\n",
        GOOD.replace("\n", "\r\n"),
        "https://www.example.com\n" + GOOD,
        GOOD.replace("time,open", "Gmt time,Open").replace("close", "Close/Last").replace("volume", "Volume BTC"),
        GOOD.replace("time,open,high,low,close,volume", "<DATE>,<OPEN>,<HIGH>,<LOW>,<CLOSE>,<TICKVOL>"),
        GOOD.replace("time,", ","),
    ],
    ids=[
        "semicolons",
        "tabs",
        "byte order mark",
        "blank end",
        "windows",
        "title",
        "names",
        "metatrader",
        "pandas index",
    ],
)
def test_usual_dialects_read_the_same(write, text):
    market = load_market(write(text))
    np.testing.assert_array_equal(market.close[:, 0], [11, 12, 13])
    np.testing.assert_array_equal(market.volume[:, 0], [100, 200, 300])
    assert market.notices == ()


def test_parquet_and_gzip_read_the_same(tmp_path, write):
    frame = pl.read_csv(write(GOOD), try_parse_dates=True)
    frame.write_parquet(tmp_path / "prices.parquet")
    (tmp_path / "prices.csv.gz").write_bytes(gzip.compress(GOOD.encode()))
    expected = load_market(tmp_path / "prices.csv")
    for name in ("prices.parquet", "prices.csv.gz"):
        market = load_market(tmp_path / name)
        assert market.symbols == ("prices",)
        np.testing.assert_array_equal(market.times, expected.times)
        np.testing.assert_array_equal(market.close, expected.close)


def test_newest_first_is_sorted_and_said(write):
    market = load_market(write(_reversed(GOOD)))
    np.testing.assert_array_equal(market.close, load_market(write(GOOD)).close)
    market = load_market(write(_reversed(GOOD)))
    assert market.notices == ("prices.csv: rows were newest first; sorted",)
    np.testing.assert_array_equal(market.volume[:, 0], [100, 200, 300])


def test_a_date_and_a_clock_are_joined(write):
    market = load_market(write("<DATE>\t<TIME>\t<CLOSE>\n2024.01.01\t22:00:00\t1\n2024.01.01\t23:00:00\t2\n"))
    assert str(market.times[1]) == "2024-01-01T23:00:00.000000000"


def test_only_a_close_is_enough_and_said(write):
    market = load_market(write("date,price\n2024-01-01,5\n2024-01-02,6\n"))
    np.testing.assert_array_equal(market.open, [[5], [6]])
    assert market.notices == (
        "prices.csv: no column for volume; taken as 0",
        "prices.csv: no column for open, high, low; the close of the bar is used instead",
    )


def test_an_adjusted_close_adjusts_every_price(write):
    market = load_market(
        write("date,open,high,low,close,adj close,volume\n2024-01-01,8,12,6,10,5,1\n2024-01-02,8,8,8,8,8,1\n")
    )
    np.testing.assert_array_equal(np.hstack([market.open, market.high, market.low, market.close])[0], [4, 6, 3, 5])
    assert market.notices == ("prices.csv: prices were adjusted to column adj close",)


LONG = """date,tic,close,open,high,low,volume
2024-01-01,A,1,1,1,1,1
2024-01-01,B,10,10,10,10,1
2024-01-02,A,2,2,2,2,1
2024-01-03,A,3,3,3,3,1
2024-01-03,B,30,30,30,30,1
"""


def test_a_long_file_has_a_symbol_column(write):
    market = load_market(write(LONG))
    assert market.symbols == ("A", "B")
    np.testing.assert_array_equal(market.close, [[1, 10], [2, 10], [3, 30]])
    np.testing.assert_array_equal(market.tradable, [[1, 1], [1, 0], [1, 1]])
    assert market.notices == (
        "B has no bar at 1 of the 3 times; it cannot be traded then and is valued at its last close",
    )


def test_symbols_are_chosen_and_ordered(write):
    path = write(LONG)
    assert load_market(path, symbols=["B", "A"]).symbols == ("B", "A")
    chosen = load_market(path, symbols=["B"])
    assert chosen.n_bars == 2  # the times of what was not chosen are gone with it
    with pytest.raises(UserError, match=r'prices.csv has no symbol "C". Known names: A, B'):
        load_market(path, symbols=["C"])


def test_what_is_not_chosen_may_be_broken(write):
    assert load_market(write(LONG.replace("B,10", "B,-10")), symbols=["A"]).n_bars == 3


WIDE = """,X:open,X:high,X:low,X:close,X:volume,Y:close,Y:open,Y:high,Y:low,Y:volume
2024-01-01,1,1,1,1,5,,,,,
2024-01-02,2,2,2,2,5,20,20,20,20,5
2024-01-03,3,3,3,3,5,30,30,30,30,5
"""


def test_a_wide_file_has_the_symbols_side_by_side(write):
    for separator in (":", "_", "."):
        market = load_market(write(WIDE.replace(":", separator)))
        assert market.symbols == ("X", "Y")
        np.testing.assert_array_equal(market.close, [[1, np.nan], [2, 20], [3, 30]])
        assert market.notices == ("Y begins at 2024-01-02; it cannot be traded in the 1 bar before",)


def test_a_folder_has_a_file_a_symbol(write, tmp_path):
    write(GOOD, "market/BTC.csv")
    write(GOOD.replace("2024-", "2025-"), "market/ETH.csv")
    write("notes", "market/README.md")
    market = load_market(tmp_path / "market")
    assert market.symbols == ("BTC", "ETH")
    assert market.n_bars == 6
    np.testing.assert_array_equal(market.tradable, [[1, 0]] * 3 + [[0, 1]] * 3)


def test_one_symbol_in_two_files_is_refused(write, tmp_path):
    for name in ("a", "b"):
        write(LONG, f"market/{name}.csv")
    with pytest.raises(UserError, match=r"A is in a.csv and in b.csv; keep one"):
        load_market(tmp_path / "market")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", r"prices.csv is empty; expected a header"),
        ("time,close\n", "a header and no rows"),
        ("time,open\n2024-01-01,5\n", "prices.csv has no price column; expected close .*, but it has: time, open"),
        ("close,open\n5,5\n", "prices.csv has no time column"),
        (
            GOOD.split("\n", 1)[1].replace(",9,", ",99,"),
            r"it has no header and no known layout; number its columns, as in --columns time=1 open=2",
        ),
        (GOOD.replace("11,13,10", "11,9,10"), r"row 2 \(line 3\): the high of prices is 9, below its low of 10; fix"),
        (LONG.replace("B,30,30,30", "B,30,30,29"), r"row 5 \(line 6\): the high of B is 29, below its low of 30"),
        (
            GOOD.replace("12,200", ",200"),
            r"prices.csv row 2 \(line 3\): close of prices is empty or not a number; drop the row",
        ),
        (GOOD.replace("11,13,10", ",13,10"), r"row 2 \(line 3\): open of prices is empty"),
        (GOOD.replace("12,200", "nan,200"), "close of prices is empty or not a number"),
        (GOOD.replace("12,200", "0,200"), r"row 2 \(line 3\): close of prices is 0, but a price is positive"),
        (GOOD.replace("12,200", "-12,200"), "close of prices is -12"),
        (GOOD.replace("12,200", "inf,200"), "close of prices is inf"),
        (
            GOOD.replace("12,200", "12$,200"),
            r'row 2 \(line 3\): close of prices is "12\$", which is not a number like 1234.56',
        ),
        (GOOD.replace("200", "-200"), r"row 2 \(line 3\): volume of prices is -200"),
        (GOOD.replace("2024-01-02", "yesterday"), r'row 2 \(line 3\): "yesterday" is not a time; expected'),
        (GOOD.replace("2024-01-02", ""), r"row 2 \(line 3\): the time is empty"),
        (GOOD.replace("2024-01-02", "2024-01-01"), r"row 2 \(line 3\): a second bar of prices at 2024-01-01; drop one"),
        (
            GOOD.replace("2024-01-02", "2024-01-09"),
            r"row 3 \(line 4\): prices at 2024-01-03 comes after 2024-01-09, which is out of order",
        ),
        (GOOD.replace("12,200", "12,200,7"), r"row 2 \(line 3\): 7 cells, but the header has 6"),
        (GOOD.replace("2024-01-03,12,14,11,13,300", "2024-01-03,12,1"), r"row 3 \(line 4\): low of prices is empty"),
        (LONG.replace(",B,30", ",,30"), r"row 5 \(line 6\): tic is empty"),
        (LONG.replace("B,30", "B,"), r"row 5 \(line 6\): close of B is empty"),
        (LONG.replace("2024-01-03,B", "2024-01-01,B"), r"row 5 \(line 6\): a second bar of B at 2024-01-01"),
        (WIDE.replace("20,20,20,20,5", ",20,20,20,5"), r"row 2 \(line 3\): Y:close is empty"),
        (
            "time,close\n03/04/2024,1\n04/04/2024,2\n",
            "a time like 03/04/2024 can be read with the day first or the month",
        ),
        ("https://x\n" + GOOD.replace("12,200", ",200"), r"row 2 \(line 4\): close"),
    ],
)
def test_what_cannot_be_used_is_one_sentence_with_row_and_remedy(write, text, sentence):
    with pytest.raises(UserError, match=sentence) as error:
        load_market(write(text))
    assert "\n" not in str(error.value)


def test_files_that_are_none(tmp_path, write):
    with pytest.raises(UserError, match=r"There is no market data at .*nowhere.csv; check the path"):
        load_market(tmp_path / "nowhere.csv")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="holds no market data; expected CSV or Parquet"):
        load_market(tmp_path / "empty")
    for name in ("noise.csv", "noise.parquet"):
        (tmp_path / name).write_bytes(bytes(range(256)) * 4)
        with pytest.raises(UserError, match=rf"{name} (cannot be read as a table|is a binary file, and not CSV)"):
            load_market(tmp_path / name)


def test_parquet_names_rows_without_lines(tmp_path):
    pl.DataFrame({"time": [1, 2], "close": [1.0, None]}).with_columns(pl.col("time") + 1_700_000_000).write_parquet(
        tmp_path / "a.parquet"
    )
    with pytest.raises(UserError, match=r"a.parquet row 2: close of a is empty"):
        load_market(tmp_path / "a.parquet")
    times = [1_700_000_000 + i for i in range(4)]
    pl.DataFrame({"time": times, "close": [1.0, None, 2.0, None]}).write_parquet(tmp_path / "b.parquet")
    load_market(tmp_path / "b.parquet", faults=(faults := Faults("list")))
    assert faults.sentences[0].endswith("2 rows have this problem: rows 2, 4.")


def test_quotes_give_the_spread_and_the_close_where_there_is_none(write):
    market = load_market(write("time,bid,ask\n2024-01-01,99,101\n2024-01-02,98,100\n"))
    np.testing.assert_array_equal(market.close[:, 0], [100, 99])
    np.testing.assert_allclose(market.half_spread[:, 0], [0.01, 1 / 99])
    assert "prices.csv: no column for close; the middle of bid and ask is used instead" in market.notices
    market = load_market(write("time,close,bid,ask\n2024-01-01,100.5,99,101\n"))
    np.testing.assert_array_equal(market.close, [[100.5]])
    with pytest.raises(UserError, match=r"row 2 \(line 3\): the ask of prices is 97, below its bid of 98"):
        load_market(write("time,bid,ask\n2024-01-01,99,101\n2024-01-02,98,97\n"))


def test_prices_in_dollars_and_in_groups_of_thousands(write):
    text = 'Date,Close/Last,Open\n01/31/2024,"$1,234.50","1,000,000.5"\n02/01/2024,$2.00,3\n'
    market = load_market(write(text))
    np.testing.assert_array_equal(market.close[:, 0], [1234.5, 2])
    np.testing.assert_array_equal(market.open[:, 0], [1_000_000.5, 3])
    with pytest.raises(UserError, match=r'close of prices is "1,234", which may be 1234 or 1\.234, and no other'):
        load_market(write('date,close\n2024-01-01,"1,234"\n'))


def test_european_files_have_decimal_commas(write):
    market = load_market(write("Datum;Date;Close;Volume\nx;31.01.2024;1.085,5;1.200\nx;01.02.2024;1,085;12\n"))
    np.testing.assert_array_equal(market.close[:, 0], [1085.5, 1.085])
    np.testing.assert_array_equal(market.volume[:, 0], [1200, 12])
    np.testing.assert_array_equal(market.times.astype("datetime64[D]").astype(str), ["2024-01-31", "2024-02-01"])


def test_bare_columns_are_no_closes_but_their_reader_is_told_how_they_would_be(write):
    with pytest.raises(
        UserError, match="has: time, BTC, ETH; if this column is meant, pass --columns close=BTC, or rename the closes"
    ):
        load_market(write("time,BTC,ETH\n2024-01-01,1,2\n"))


SWAPPED = """time,close,Volume BTC,Volume USD
2024-01-01,100,7,700
2024-01-02,100,800,8
2024-01-03,100,900,9
"""


def test_swapped_volumes_are_said_wherever_the_file_is_read(write):
    said = (
        "prices.csv: columns Volume BTC and Volume USD are swapped in 2 of 3 rows, from 2024-01-02 to 2024-01-03; swap"
    )
    assert [notice for notice in load_market(write(SWAPPED)).notices if notice.startswith(said)]
    straight = SWAPPED.replace("800,8", "8,800").replace("900,9", "9,900")
    assert not [notice for notice in load_market(write(straight)).notices if "swapped" in notice]


def test_own_features_are_read_from_every_layout(write):
    market = load_market(write("time,close,feature_x,feature_Y2\n2024-01-01,1,7,\n2024-01-02,1,8,9\n"))
    assert list(market.columns) == ["feature_x", "feature_Y2"]
    np.testing.assert_array_equal(market.columns["feature_x"], [[7], [8]])
    np.testing.assert_array_equal(market.columns["feature_Y2"], [[np.nan], [9]])
    wide = load_market(write("time,A:close,B:close,B:feature_x\n2024-01-01,1,2,3\n", "wide.csv"))
    np.testing.assert_array_equal(wide.columns["feature_x"], [[np.nan, 3]])


def test_the_days_of_an_exchange_east_of_greenwich_stay_its_days(write):
    days = np.busday_offset("2024-01-08", np.arange(60), roll="forward")
    rows = "".join(f"{day}T00:00:00+09:00,{i + 1}\n" for i, day in enumerate(days))
    market = load_market(write("time,close\n" + rows, "both/TOKYO.csv"))
    np.testing.assert_array_equal(market.times, days)
    assert market.periods_per_year == 252
    assert "TOKYO: bars keep the dates of their exchange" in market.notices
    hours = np.arange("2024-01-07", "2024-02-07", dtype="datetime64[h]")
    write("open time,close\n" + "".join(f"{hour}:00Z,5\n" for hour in hours), "both/H.csv")
    beside = load_market(tmp := write("open time,close\n" + rows, "both/TOKYO.csv").parent)
    own = beside.tradable[:, beside.symbols.index("TOKYO")]
    assert tmp.name == "both"
    assert str(beside.times[own][0]) == "2024-01-08T14:00:00.000000000"  # the hour that ends with the day in Tokyo


def test_an_exchange_open_from_sunday_to_thursday_does_not_trade_round_the_clock(write):
    days = np.busday_offset("2024-01-07", np.arange(60), roll="forward", weekmask="1111001")
    market = load_market(write("time,close\n" + "".join(f"{day},{i + 1}\n" for i, day in enumerate(days))))
    assert market.periods_per_year == 252


def test_a_change_of_unit_is_read_and_said_and_a_jump_of_years_is_refused(write):
    stamps = [1_735_689_600_000 + i * 60_000 for i in range(-10, 10)]
    mixed = [stamp * (1_000 if i >= 10 else 1) for i, stamp in enumerate(stamps)]
    market = load_market(write("time,close\n" + "".join(f"{stamp},5\n" for stamp in mixed)))
    np.testing.assert_array_equal(market.times, np.array(stamps, dtype="datetime64[ms]"))
    said = "prices.csv row 11 (line 12): from this row on, times are in us instead of ms; each is read in its unit"
    assert said in market.notices
    days = ["2024-01-01", "2024-01-02", "2024-01-03", "2034-01-04", "2034-01-05"]
    path = write("time,close\n" + "".join(f"{day},5\n" for day in days))
    sentence = (
        r"row 4 \(line 5\): prices at 2034-01-04 comes 10 years after the bar before at 2024-01-03; fix the times"
    )
    for policy in ("refuse", "drop"):
        with pytest.raises(UserError, match=sentence):
            load_market(path, faults=Faults(policy))
    load_market(path, faults=(faults := Faults("list")))
    assert len(faults.sentences) == 1


def test_years_are_no_jump_between_bars_of_years(write):
    years = "".join(f"{year}-01-01,5\n" for year in range(1990, 2020) if year != 2001)
    assert load_market(write("time,close\n" + years)).n_bars == 29


def test_the_name_of_a_file_keeps_its_dots(write, tmp_path):
    for name in ("BRK.A.csv", "BRK.B.csv"):
        write(GOOD, f"market/{name}")
    (tmp_path / "market/BRK.C.csv.gz").write_bytes(gzip.compress(GOOD.encode()))
    assert load_market(tmp_path / "market").symbols == ("BRK.A", "BRK.B", "BRK.C")


YFINANCE = """Price,Close,High,Low,Open,Volume
Ticker,AAPL,AAPL,AAPL,AAPL,AAPL
Date,,,,,
2024-01-02,11,12,9,10,100
2024-01-03,12,13,10,11,200
"""
SEVERAL = """,Close,Close,Volume,Volume
,AAPL,MSFT,AAPL,MSFT
2024-01-02,11,21,100,1
2024-01-03,12,22,200,2
"""


@pytest.mark.parametrize("text", [YFINANCE, YFINANCE.replace("Date,,,,,\n", ""), YFINANCE.replace("Price,", "Date,")])
def test_the_header_of_yfinance_is_read(write, text):
    market = load_market(write(text))
    assert market.symbols == ("AAPL",)
    np.testing.assert_array_equal(np.hstack([market.open, market.close, market.volume]), [[10, 11, 100], [11, 12, 200]])
    assert market.notices == ()


def test_a_header_of_two_lines_names_several_symbols_in_either_order(write):
    upside_down = "\n".join(np.array(SEVERAL.splitlines())[[1, 0, 2, 3]])
    for text in (SEVERAL, upside_down):
        market = load_market(write(text))
        assert market.symbols == ("AAPL", "MSFT")
        np.testing.assert_array_equal(market.close, [[11, 21], [12, 22]])
    with pytest.raises(UserError, match=r"prices.csv row 2 \(line 4\): Close:MSFT is -22"):
        load_market(write(SEVERAL.replace(",22,", ",-22,")))


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_utf_16_is_read(tmp_path, encoding):
    (tmp_path / "prices.csv").write_bytes(GOOD.encode(encoding))
    (tmp_path / "packed.csv.gz").write_bytes(gzip.compress(GOOD.encode(encoding)))
    for name in ("prices.csv", "packed.csv.gz"):
        market = load_market(tmp_path / name)
        np.testing.assert_array_equal(market.close[:, 0], [11, 12, 13])


@pytest.mark.parametrize("odd", ["1.5", " 1.5", "+1.5", "1.5e0", "$1.5", '"1.5"', "nan", "", "n/a", "x", "inf", "1,5"])
def test_a_file_read_as_numbers_at_once_is_what_its_text_says(write, monkeypatch, odd):
    text = f"time,close,volume\n2024-01-01,0.1,7\n2024-01-02,{odd if ',' not in odd else chr(34) + odd + chr(34)},8\n"

    def read():
        try:
            market = load_market(write(text))
        except UserError as error:
            return str(error)
        return market.close.tolist(), market.volume.tolist()

    at_once = read()
    monkeypatch.setattr("ml_pipeline.trading.market.csv_file.CsvFile._as_numbers", lambda _: None)
    assert read() == at_once

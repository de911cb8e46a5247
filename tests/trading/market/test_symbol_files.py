"""A symbol finds its file; what is missing or ambiguous is named, with what the folder holds."""

import zipfile

import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.trading.market.files import load_market
from ml_pipeline.trading.market.symbol_files import files_of, find_symbol_files
from tests.trading.market.daily_bars import write_bars


def folder_of(folder, *names):
    for name in names:
        (folder / name).write_text("time,close\n")
    return folder


@pytest.mark.parametrize(
    ("symbol", "file"),
    [
        ("EURUSD", "EURUSD.csv"),
        ("EURUSD", "eurusd.parquet"),
        ("EURUSD", "FOREX_EURUSD_1H_ASK.csv"),
        ("eurusd", "forex-EURUSD-1h.csv.gz"),
        ("BTC/USD", "BTC_USD-Hourly.csv"),
        ("BTCUSD", "BTC_USD-Hourly.csv"),
        ("BRK.A", "BRK.A.csv"),
    ],
)
def test_a_symbol_is_the_name_of_a_file_or_a_part_of_it(tmp_path, symbol, file):
    folder_of(tmp_path, file, "EURUSDT.csv", "GBPUSD.csv", "notes.md")
    assert find_symbol_files(tmp_path, [symbol])[symbol].files == (tmp_path / file,)


def test_a_whole_name_wins_over_a_part_of_one(tmp_path):
    folder_of(tmp_path, "EURUSD.csv", "EURUSD_4H.csv")
    assert find_symbol_files(tmp_path, ["EURUSD"])["EURUSD"].files == (tmp_path / "EURUSD.csv",)


def test_several_files_of_a_symbol_are_named(tmp_path):
    folder_of(tmp_path, "EURUSD_1H.csv", "EURUSD_4H.csv", "GBPUSD.csv")
    with pytest.raises(UserError, match=r"EURUSD may be in EURUSD_1H.csv, EURUSD_4H.csv of .*; keep one"):
        find_symbol_files(tmp_path, ["EURUSD"])


def test_the_same_symbol_in_two_formats_is_ambiguous(tmp_path):
    folder_of(tmp_path, "EURUSD.csv", "eurusd.parquet")
    with pytest.raises(UserError, match=r"EURUSD may be in EURUSD.csv, eurusd.parquet"):
        find_symbol_files(tmp_path, ["EURUSD"])


def test_what_is_missing_is_named_with_what_there_is_and_the_nearest(tmp_path):
    folder_of(tmp_path, "FOREX_EURUSD_1H.csv", "FOREX_GBPUSD_1H.csv")
    with pytest.raises(UserError) as caught:
        find_symbol_files(tmp_path, ["EURUSD", "GBPUSB", "XAUUSD"])
    assert str(caught.value) == (
        f"{tmp_path} has no file of GBPUSB, XAUUSD; it holds FOREX_EURUSD_1H.csv, FOREX_GBPUSD_1H.csv. Did you mean "
        '"GBPUSD"?'
    )


def test_a_large_folder_is_not_listed_in_full(tmp_path):
    folder_of(tmp_path, *(f"S{i:02}.csv" for i in range(20)))
    with pytest.raises(UserError, match=r"S07.csv and 12 others"):
        find_symbol_files(tmp_path, ["GBPUSD"])


def test_a_folder_without_data_and_one_that_is_not_there(tmp_path):
    with pytest.raises(UserError, match="holds no market data; expected CSV or Parquet files"):
        find_symbol_files(tmp_path, ["EURUSD"])
    with pytest.raises(UserError, match=r"There is no market data at .*gone; check the path"):
        find_symbol_files(tmp_path / "gone", ["EURUSD"])
    file = folder_of(tmp_path, "a.csv") / "a.csv"
    with pytest.raises(UserError, match="is a file, but a folder with one file per symbol"):
        find_symbol_files(file, ["EURUSD"])


@pytest.mark.parametrize(
    ("symbols", "sentence"),
    [
        (["EURUSD", "eur_usd"], "EURUSD is named twice"),
        ("EURUSD", 'symbols must be a list such as \\["EURUSD"\\]'),
        (["///"], "A symbol must be a text such as EURUSD"),
        (["../EURUSD"], r"not a path, but got '\.\./EURUSD'"),
        (["/EURUSD"], "not a path"),
        (["./EURUSD"], "not a path"),
        (["..\\EURUSD"], "not a path"),
        (["EUR/US/D"], "not a path"),
        (["EURUSD\0"], "not a path"),
        ([7], "A symbol must be a text such as EURUSD, but got 7"),
    ],
)
def test_symbols_that_are_none(tmp_path, symbols, sentence):
    with pytest.raises(UserError, match=sentence):
        find_symbol_files(folder_of(tmp_path, "EURUSD.csv"), symbols)


def test_without_symbols_every_file_is_one(tmp_path):
    assert list(find_symbol_files(folder_of(tmp_path, "B.csv", "A.parquet", "x.md"), [])) == ["A", "B"]


def test_files_of_bid_and_ask_are_one_symbol(tmp_path):
    folder_of(tmp_path, "EURUSD_bid.csv", "EURUSD_ask.csv", "GBPUSD_ask.csv", "FOREX_USDJPY_1H_BID.csv")
    folder_of(tmp_path, "FOREX_USDJPY_1H_ASK.csv")
    found = find_symbol_files(tmp_path, [])
    assert list(found) == ["EURUSD", "FOREX_USDJPY_1H", "GBPUSD_ask"]
    assert [file.name for file in found["EURUSD"].files] == ["EURUSD_bid.csv", "EURUSD_ask.csv"]
    assert found["EURUSD"].settings == {"data": tmp_path, "symbols": ("EURUSD",)}
    by_part = find_symbol_files(tmp_path, ["usdjpy", "GBPUSD", "EURUSD"])
    assert [len(own.files) for own in by_part.values()] == [2, 1, 2]
    assert by_part["usdjpy"].settings == {"data": tmp_path, "symbols": ("FOREX_USDJPY_1H",)}


def test_a_pair_and_a_file_of_the_same_name_are_refused(tmp_path):
    folder_of(tmp_path, "EURUSD_bid.csv", "EURUSD_ask.csv", "EURUSD.csv")
    with pytest.raises(
        UserError, match=r"EURUSD is in one file, EURUSD.csv, and EURUSD_bid.csv and EURUSD_ask.csv are"
    ):
        find_symbol_files(tmp_path, [])


def test_two_formats_of_a_symbol_are_not_taken_for_one_when_none_is_named(tmp_path):
    folder_of(tmp_path, "EURUSD.csv", "EURUSD.parquet")
    with pytest.raises(UserError, match=r"EURUSD may be in EURUSD.csv, EURUSD.parquet"):
        find_symbol_files(tmp_path, [])


@pytest.mark.parametrize(
    ("symbol", "names"),
    [
        ("BTCUSDT", ["BTCUSDT-1h-2023-01.csv", "BTCUSDT-1h-2023-02.csv", "BTCUSDT-1h-2023-03-01.csv"]),
        ("XBTUSD", ["XBTUSD_60.csv"]),
        ("EURUSD", ["EURUSD_M1_202201030000_202212302359.csv", "EURUSD_M1_202301020000_202312292359.csv"]),
        ("EURUSD", ["EURUSD_Daily_20220103_20221230.csv"]),
        ("EURUSD", ["EURUSD60.csv"]),
        ("EURUSD", ["DAT_ASCII_EURUSD_M1_2022.csv", "DAT_ASCII_EURUSD_M1_202301.csv"]),
        ("EURUSD_BID", ["EURUSD_Candlestick_1_h_BID_01.01.2023-31.12.2023.csv"]),
        ("EURUSD", ["DAT_ASCII_EURUSD_M1_2022.csv", "DAT_MT_EURUSD_M1_2023.csv"]),
        ("XAUEUR", ["XAUEUR1440.csv"]),
        ("SYMBOL1", ["SYMBOL1.csv"]),
        ("US30", ["US30.csv"]),
        ("AAPL_1", ["AAPL_1.csv"]),
        ("EURUSD_1H", ["EURUSD_1H.csv"]),
    ],
)
def test_names_that_a_source_documents_hold_the_symbol(tmp_path, symbol, names):
    found = find_symbol_files(folder_of(tmp_path, *names), [])
    assert {name: [file.name for file in own.files] for name, own in found.items()} == {symbol: names}


def test_bars_of_several_lengths_are_several_symbols(tmp_path):
    folder_of(tmp_path, "BTCUSDT-1h-2023-01.csv", "BTCUSDT-4h-2023-01.csv", "BTCUSDT-1h-2023-02.csv", "ETHUSD_60.csv")
    assert {name: len(own.files) for name, own in find_symbol_files(tmp_path, []).items()} == {
        "BTCUSDT-1h": 2,
        "BTCUSDT-4h": 1,
        "ETHUSD": 1,
    }
    assert find_symbol_files(tmp_path, ["btcusdt-4h"])["btcusdt-4h"].name == "BTCUSDT-4h"
    with pytest.raises(UserError, match=r"with its length; name BTCUSDT-1h or BTCUSDT-4h\."):
        find_symbol_files(tmp_path, ["BTCUSDT"])


def test_a_symbol_of_several_lengths_is_refused_with_the_symbols_that_are_there(tmp_path):
    for name in ("XBTUSD_60", "XBTUSD_1440", "ETHUSD_60"):
        write_bars(tmp_path / f"{name}.csv")
    sentence = (
        'has no symbol "XBTUSD". XBTUSD has bars of several lengths there, and each is a symbol named with its length; '
        "name XBTUSD_1440 or XBTUSD_60."
    )
    with pytest.raises(UserError) as caught:
        load_market(tmp_path, symbols=["XBTUSD"])
    assert sentence in str(caught.value)
    assert load_market(tmp_path, symbols=["XBTUSD_60", "ETHUSD"]).symbols == ("XBTUSD_60", "ETHUSD")


def test_files_of_other_names_between_them_do_not_part_those_of_a_symbol(tmp_path):
    names = ["DAT_ASCII_EURUSD_M1_2022.csv", "DAT_ASCII_GBPUSD_M1_2022.csv", "DAT_MT_EURUSD_M1_2023.csv"]
    found = find_symbol_files(folder_of(tmp_path, *names), [])
    assert {name: len(own.files) for name, own in found.items()} == {"EURUSD": 2, "GBPUSD": 1}


def zip_of(path, *members):
    with zipfile.ZipFile(path, "w") as archive:
        for member in members:
            archive.writestr(member, "time,close\n")


def test_an_archive_in_a_folder_counts_if_it_holds_one_table_that_is_not_beside_it(tmp_path):
    zip_of(tmp_path / "GBPUSD.zip", "GBPUSD.csv", "__MACOSX/GBPUSD.csv")
    zip_of(tmp_path / "backup.zip", "a.csv", "b.csv")
    zip_of(tmp_path / "notes.zip", "notes.md")
    zip_of(tmp_path / "empty.zip")
    assert [file.name for file in files_of(tmp_path)] == ["GBPUSD.zip"]
    folder_of(tmp_path, "EURUSD.csv", "USDJPY.parquet")
    for name in ("EURUSD.zip", "EURUSD.csv.zip", "USDJPY.zip"):
        zip_of(tmp_path / name, "prices.csv")
    zip_of(tmp_path / "download.zip", "old/EURUSD.csv")
    assert [file.name for file in files_of(tmp_path)] == ["EURUSD.csv", "GBPUSD.zip", "USDJPY.parquet"]


def test_an_archive_that_is_no_table_is_named_if_a_folder_holds_nothing_else(tmp_path):
    zip_of(tmp_path / "backup.zip", "a.csv", "b.csv")
    with pytest.raises(UserError, match=r"holds no market data; .*; backup\.zip does not hold exactly one table"):
        files_of(tmp_path)


def test_a_damaged_archive_is_not_passed_over(tmp_path):
    write_bars(folder_of(tmp_path, "GBPUSD.zip") / "EURUSD.csv")
    with pytest.raises(UserError, match=r"GBPUSD\.zip cannot be unpacked"):
        load_market(tmp_path)


def test_files_of_both_sides_and_several_years_are_one_symbol(tmp_path):
    names = [f"EURUSD_Candlestick_1_h_{side}_01.01.{y}-31.12.{y}.csv" for side in ("BID", "ASK") for y in (2022, 2023)]
    found = find_symbol_files(folder_of(tmp_path, *names), ["EURUSD"])["EURUSD"]
    assert [file.name for file in found.files] == names
    assert found.settings == {"data": tmp_path, "symbols": ("EURUSD",)}

"""A symbol finds its file; what is missing or ambiguous is named, with what the folder holds."""

import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.trading.market.symbol_files import find_symbol_files


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
    with pytest.raises(UserError, match=r"EURUSD may be in EURUSD_1H.csv, EURUSD_4H.csv of .*; leave one"):
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
        (["../EURUSD"], r"no path, but got '\.\./EURUSD'"),
        (["/EURUSD"], "no path"),
        (["./EURUSD"], "no path"),
        (["..\\EURUSD"], "no path"),
        (["EUR/US/D"], "no path"),
        (["EURUSD\0"], "no path"),
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
        UserError, match=r"EURUSD is a file of its own, EURUSD.csv, and EURUSD_bid.csv and EURUSD_ask.csv are"
    ):
        find_symbol_files(tmp_path, [])


def test_two_formats_of_a_symbol_are_not_taken_for_one_when_none_is_named(tmp_path):
    folder_of(tmp_path, "EURUSD.csv", "EURUSD.parquet")
    with pytest.raises(UserError, match=r"EURUSD may be in EURUSD.csv, EURUSD.parquet"):
        find_symbol_files(tmp_path, [])

"""Files of bid bars and of ask bars of one instrument."""

import numpy as np
import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.trading.market.files import load_market
from ml_pipeline.trading.market.tables import Faults
from tests.trading.market.daily_bars import CLOSES, OPENS, N, write_bars


def test_files_of_bid_and_ask_are_one_pair(tmp_path):
    bid = write_bars(tmp_path / "fx/EURUSD_1H_BID.csv", OPENS, CLOSES)
    write_bars(tmp_path / "fx/EURUSD_1H_ASK.csv", OPENS[:-1] * 1.002, CLOSES[:-1] * 1.002)
    market = load_market(bid.parent)
    assert market.symbols == ("EURUSD_1H",)
    assert market.n_bars == N - 1
    np.testing.assert_allclose(market.close[:, 0], CLOSES[:-1] * 1.001)
    np.testing.assert_allclose(market.half_spread, 0.001 / 1.001)
    np.testing.assert_array_equal(market.volume, 2000)
    assert market.notices == (
        "EURUSD_1H: prices are the mid of EURUSD_1H_BID and EURUSD_1H_ASK, volumes their sum; "
        "1 bar of one side only was left out",
    )
    assert load_market(bid.parent, symbols=["EURUSD_1H"]).symbols == ("EURUSD_1H",)
    write_bars(tmp_path / "fx/GBPUSD_bid.csv")
    beside = load_market(bid.parent)
    assert beside.symbols == ("EURUSD_1H", "GBPUSD_bid")
    (remark,) = beside.remarks
    assert remark.startswith("GBPUSD_bid: by its name it holds only the bid side")


def test_pairs_that_do_not_fit_are_refused(tmp_path):
    bid = write_bars(tmp_path / "fx/E_bid.csv", OPENS, CLOSES)
    ask = write_bars(tmp_path / "fx/E_ask.csv", OPENS * 0.9, CLOSES * 0.9)
    sentence = (
        "E_ask and E_bid have 300 bars with impossible quotes, first at 2023-01-02: the ask is .* and the bid .*; fix"
    )
    with pytest.raises(UserError, match=sentence):
        load_market(bid.parent)
    with pytest.raises(UserError, match="E_bid and E_ask have no bar at the same time; use bid and ask of the same"):
        load_market(bid.parent, faults=Faults("drop"))
    ask.rename(bid.with_name("E.csv"))
    write_bars(tmp_path / "fx/E_ask.csv", OPENS, CLOSES)
    with pytest.raises(UserError, match="E is in one file, and E_bid and E_ask are its bid and ask; keep the"):
        load_market(bid.parent)


def test_other_files_of_a_folder_need_not_be_usable(tmp_path):
    bid = write_bars(tmp_path / "fx/EURUSD_bid.csv", OPENS, CLOSES)
    write_bars(tmp_path / "fx/EURUSD_ask.csv", OPENS * 1.002, CLOSES * 1.002)
    bid.with_name("broken.csv").write_text("nothing\n")
    assert load_market(bid.parent, symbols=["EURUSD"]).symbols == ("EURUSD",)
    with pytest.raises(UserError, match=r"broken\.csv"):
        load_market(bid.parent)


def write_month(folder, month, *, first=0, n=40, shift=0.0):
    """Binance's klines of hours, from the hour `first` of the month on."""
    start = np.datetime64(f"2023-{month:02}-01", "h") + first
    times = (start + np.arange(n)).astype("datetime64[ms]").astype(int)
    rows = [
        f"{t},10,30,9,{10 + 0.01 * i + shift:.2f},5,{t + 3_599_999},50,3,2,20,0" for i, t in enumerate(times.tolist())
    ]
    (folder / f"BTCUSDT-1h-2023-{month:02}.csv").write_text("\n".join(rows) + "\n")


def test_files_that_follow_each_other_are_one_symbol(tmp_path):
    write_month(tmp_path, 2, n=28 * 24)
    write_month(tmp_path, 1, n=31 * 24)
    market = load_market(tmp_path)
    assert market.symbols == ("BTCUSDT",)
    hours = np.arange("2023-01-01", "2023-03-01", np.timedelta64(1, "h"), dtype="datetime64[ns]")
    np.testing.assert_array_equal(market.times, hours)
    np.testing.assert_allclose(market.close[[0, 31 * 24], 0], [10, 10])
    assert [n for n in market.notices if "header" not in n] == ["BTCUSDT: 2 files of consecutive dates were joined"]
    (header,) = (n for n in market.notices if "header" in n)
    assert header.startswith("BTCUSDT-1h-2023-01.csv and 1 other: there is no header")
    assert load_market(tmp_path, symbols=["BTCUSDT"]).n_bars == market.n_bars


def test_gaps_and_overlaps_of_files_are_told(tmp_path):
    write_month(tmp_path, 1, n=31 * 24 + 5)
    write_month(tmp_path, 2, n=5, shift=7.44)  # its bars are those that January's file ends with
    write_month(tmp_path, 4)
    (notice,) = (n for n in load_market(tmp_path).notices if "consecutive" in n)
    assert notice == (
        "BTCUSDT: 3 files of consecutive dates were joined; 5 bars were in two of them; no bars from "
        "2023-02-01 04:00:00 to 2023-04-01"
    )


def test_bars_that_differ_between_files_are_refused(tmp_path):
    write_month(tmp_path, 1, n=31 * 24 + 5)
    write_month(tmp_path, 2)
    with pytest.raises(
        UserError, match=r"BTCUSDT has 5 bars with different values in two files, first at 2023-02-01; keep"
    ):
        load_market(tmp_path)
    assert load_market(tmp_path, faults=Faults("drop")).n_bars == 31 * 24 + 40


@pytest.mark.parametrize("order", [1, -1])
def test_a_value_that_only_some_of_the_files_have_is_taken_from_them(tmp_path, order):
    """Three files have the same bar; the one without its feature is the first, or the last."""
    names = [f"EURUSD_M1_2023010{day}_2023010{day}.csv" for day in (2, 3, 4)]
    features = {"09:01": "1,1,5", "09:02": "1,1,"}, {"09:02": "1,1,6", "09:03": "1,1,7"}, {"09:02": "1,1,"}
    for name, rows in zip(names[::order], features, strict=True):
        lines = [f"2023-01-02 {clock},{cells}" for clock, cells in rows.items()]
        (tmp_path / name).write_text("\n".join(["time,close,volume,feature_x", *lines]) + "\n")
    market = load_market(tmp_path)
    assert market.columns["feature_x"][:, 0].tolist() == [5, 6, 7]
    assert any("1 bar was in two of them" in notice for notice in market.notices)


def test_values_that_differ_around_a_file_without_them_are_refused(tmp_path):
    for day, value in ((2, "5"), (3, ""), (4, "6")):
        (tmp_path / f"EURUSD_M1_2023010{day}_2023010{day}.csv").write_text(
            f"time,close,feature_x\n2023-01-02 09:01,1,4\n2023-01-02 09:02,1,{value}\n"
        )
    with pytest.raises(
        UserError, match=r"EURUSD has 1 bar with different values in two files, first at 2023-01-02 09:02"
    ):
        load_market(tmp_path)


def test_sides_of_several_years_are_joined(tmp_path):
    for side, close in (("BID", 1.1), ("ASK", 1.2)):
        for year in (2022, 2023):
            rows = [f"0{day}.01.{year} 10:00:00.000,{close},{close},{close},{close},5" for day in range(1, 6)]
            (tmp_path / f"EURUSD_Candlestick_1_D_{side}_01.01.{year}-31.12.{year}.csv").write_text(
                "\n".join(["Gmt time,Open,High,Low,Close,Volume", *rows]) + "\n"
            )
    market = load_market(tmp_path)
    assert market.symbols == ("EURUSD",)
    assert market.n_bars == 10
    np.testing.assert_allclose(market.close, 1.15)
    assert market.half_spread is not None

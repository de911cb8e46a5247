import subprocess
import sys
from datetime import date, timedelta

import numpy as np
import polars as pl
import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.trading.inspect_data import describe, main
from ml_pipeline.trading.market.data import market_from_arrays
from ml_pipeline.trading.market.diagnosis import diagnose
from ml_pipeline.trading.market.files import load_market


def _problems(close, *, times=None, **arrays):
    close = np.asarray(close, dtype=float)
    arrays = {"open": close, "high": close, "low": close, "volume": np.ones_like(close), **arrays}
    times = np.datetime64("2024-01-01") + np.arange(len(close)) if times is None else times
    market = market_from_arrays(["A"], times, close, **arrays)
    return [finding.problem for finding in diagnose(market)]


WALK = 100 * np.exp(np.random.default_rng(0).normal(0, 0.01, 100).cumsum())


def test_clean_data_are_left_in_peace():
    assert _problems(WALK) == []


def test_gaps():
    times = np.datetime64("2024-01-01") + np.concatenate([np.arange(50), np.arange(60, 110)])
    assert _problems(WALK, times=times) == [
        "1 gap of 10 missing bars, the longest of 11 days from 2024-02-19 to 2024-03-01"
    ]
    weekdays = np.busday_offset("2024-01-01", np.arange(100))
    assert _problems(WALK, times=weekdays) == ["19 gaps of up to 3 days over weekends"]


def test_gaps_are_counted_by_kind():
    """A session of 09:30 to 16:00, with minutes missing inside, a weekend, and a Wednesday without bars."""
    days = np.busday_offset("2024-01-01", np.arange(10), roll="forward")
    days = days[days != np.datetime64("2024-01-03")]
    minutes = np.concatenate([day + np.timedelta64(570, "m") + np.arange(390) for day in days]).astype("datetime64[ns]")
    left_out = [50, 51, 52, 1_000, 2_500]
    times = np.delete(minutes, left_out)
    walk = 100 * np.exp(np.random.default_rng(0).normal(0, 1e-4, len(times)).cumsum())
    assert _problems(walk, times=times) == [
        "1 gap of 2.73 days over weekends",
        "6 gaps of up to 17.5 hours between sessions",
        "1 gap of 1.73 days as on holidays",
        "3 gaps of 5 missing bars, the longest of 4 minutes from 2024-01-01 10:19:00 to 2024-01-01 10:23:00",
    ]


def test_five_minutes_missing_are_no_weekend():
    times = np.datetime64("2024-01-01T00", "ns") + np.arange(5 * 1440) * np.timedelta64(1, "m")
    times = np.delete(times, np.arange(100, 5_000, 97))
    walk = 100 * np.exp(np.random.default_rng(0).normal(0, 1e-4, len(times)).cumsum())
    (problem,) = _problems(walk, times=times)
    assert problem.startswith("51 gaps of 51 missing bars, the longest of 2 minutes from")


def test_an_adjusted_close_that_does_not_differ_is_not_said_to(tmp_path, capsys):
    path = tmp_path / "prices.csv"
    rows = [f"2024-01-0{i},{i},{i}" for i in range(1, 6)]
    path.write_text("\n".join(["date,close,adj close", *rows]))
    assert main([str(path)]) == 0
    out = capsys.readouterr().out
    assert "differs" not in out
    assert "ratio" not in out
    path.write_text("\n".join(["date,close,adj close", *rows]).replace("5,5", "5,4"))
    main([str(path)])
    assert "close differs from adj close in 1 of 5 rows" in capsys.readouterr().out


def test_weekends_are_none_to_an_asset_of_another_calendar():
    days = np.datetime64("2024-01-01") + np.arange(100)
    closes = np.column_stack([WALK, np.where(np.is_busday(days), WALK, np.nan)])
    bars = {"open": closes, "high": closes, "low": closes, "volume": np.ones_like(closes)}
    (finding,) = diagnose(market_from_arrays(["coin", "stock"], days, closes, **bars))
    assert finding[:3] == ("stock", "14 gaps of up to 3 days over weekends", "nothing to do")


def _closing_words(close, times, refused=()):
    ones = np.ones_like(close)
    bars = {"open": close, "high": close, "low": close, "volume": ones}
    return describe(market_from_arrays(["A"], times, close, **bars), refused=refused).splitlines()[-2:]


def test_where_nothing_is_to_be_done_the_last_line_says_so():
    days = np.datetime64("2024-01-01") + np.arange(100)
    weekdays = np.busday_offset("2024-01-01", np.arange(100))
    wrong = WALK.copy()
    wrong[40] *= 10
    nothing = "Nothing needs to be done."
    assert _closing_words(WALK, days) == ["No problems were found.", nothing]
    assert _closing_words(WALK, weekdays) == ["", nothing]  # after gaps of weekends
    assert nothing not in _closing_words(wrong, weekdays)
    assert nothing not in _closing_words(WALK, days, refused=["row 7 (line 8)"])


def test_impossible_bars():
    opens = WALK.copy()
    opens[5] *= 1.2
    assert _problems(WALK, open=opens) == ["open or close lies outside low..high in 1 bar, first at 2024-01-06"]


def test_who_lasted_and_one_side_of_the_quotes_are_named():
    days = np.datetime64("2024-01-01") + np.arange(len(WALK))
    closes = np.repeat(WALK[:, None], 5, axis=1)
    symbols = ["EURUSD_ASK", "BID", "MASK", "Basket", "E"]
    bars = {"open": closes, "high": closes, "low": closes, "volume": np.ones_like(closes)}
    said = [finding[:2] for finding in diagnose(market_from_arrays(symbols, days, closes, **bars))]
    assert said == [
        ("EURUSD_ASK", "by its name it holds only the ask side"),
        ("BID", "by its name it holds only the bid side"),
        ("the market", "all 5 symbols trade from the first bar to the last"),
    ]
    bars["half_spread"] = np.full_like(closes, 0.001)
    closes[0, 2] = np.nan  # listed a day late
    assert diagnose(market_from_arrays(symbols, days, closes, **bars)) == []


MESSY = """date,tic,open,high,low,close,volume,mood
2024-01-01,A,10,12,9,11,100,1
2024-01-02,A,11,13,10,,200,1
2024-01-03,A,12,14,11,13,300,1
2024-01-03,A,12,14,11,13,300,1
2024-01-05,A,12,10,11,13,300,1
2024-01-06,A,12,14,11,13,-1,1
someday,A,12,14,11,13,300,1
2024-01-08,A,12,14,11,nan$,300,1
2024-01-10,,12,14,11,13,300,1
2024-01-11,A,12,14,11,inf,300,1
2024-01-09,A,12,14,11,13,300,1
2024-01-07,A,12,14,11,13,300,1
2024-01-12,A,12,14,11,nan,300,1
"""


def test_everything_that_training_would_refuse_is_said_at_once(tmp_path, capsys):
    path = tmp_path / "prices.csv"
    path.write_text(MESSY)
    assert main([str(path)]) == 1
    out = capsys.readouterr().out
    assert "A: 5 bars since 2024-01-01" in out
    refused = out.partition("--drop-bad-rows, as here:\n")[2].partition("\n\n")[0].splitlines()
    assert [line.strip().removeprefix("prices.csv row ").partition(";")[0] for line in refused] == [
        '7 (line 8): "someday" is not a time',
        "9 (line 10): tic is empty",
        '8 (line 9): close of A is "nan$", which is not a number like 1234.56',
        "6 (line 7): volume of A is -1, but a volume is finite and not negative",
        "2 (line 3): close of A is empty or not a number",
        "10 (line 11): close of A is inf, but a price is positive and finite",
        "5 (line 6): the high of A is 10, below its low of 11",
        "4 (line 5): a second bar of A at 2024-01-03",
        "12 (line 13): A at 2024-01-07 comes after 2024-01-09, which is out of order",
    ]
    assert refused[4].endswith("2 rows have this problem: lines 3, 14.")
    assert "prices.csv: 1 column not used: mood" in out


@pytest.mark.parametrize(("n_bad", "more"), [(20, ""), (23, " and 3 more")])
def test_of_many_refused_rows_the_first_twenty_are_listed(tmp_path, capsys, n_bad, more):
    days = [str(day) for day in np.datetime64("2024-01-01") + np.arange(40)]
    bars = [f"{day},{'nan' if i < n_bad else 10 + i}" for i, day in enumerate(days)]
    (tmp_path / "prices.csv").write_text("\n".join(["time,close", *bars]))
    assert main([str(tmp_path / "prices.csv")]) == 1
    lines = ", ".join(str(line) for line in range(2, 22))  # the header is line 1
    assert f"{n_bad} rows have this problem: lines {lines}{more}.\n" in capsys.readouterr().out


def test_swapped_columns_are_told_from_single_rows(tmp_path, capsys):
    path = tmp_path / "prices.csv"
    path.write_text("date,open,low,high,close,volume\n" + "2024-01-0{},10,12,9,11,1\n" * 3)
    path.write_text(path.read_text().format(1, 2, 3))
    with pytest.raises(SystemExit, match="2"):  # no row is left
        main([str(path)])
    assert "no row of prices can be used" in capsys.readouterr().err
    with pytest.raises(UserError, match="as in most rows; the columns are probably swapped, rename them"):
        load_market(path)


def test_a_wrong_tick_stale_closes_and_missing_volume():
    wrong = WALK.copy()
    wrong[40] *= 10
    (problem,) = _problems(wrong)
    assert problem.startswith("1 close is reversed by the next bar, first +887%")
    assert problem.endswith("% at 2024-02-10")
    far = np.r_[WALK[:50], WALK[50:] * 0.42]
    assert _problems(far)[0].startswith("1 return is an outlier; the largest, -58%")
    split = np.r_[WALK[:50], WALK[50:] / 10]
    assert _problems(split) == ["prices change as after an unadjusted 10:1 split at 2024-02-20"]
    stale = WALK.copy()
    stale[30:60] = stale[30]
    assert "the close does not change for up to 30 bars, from 2024-01-31" in _problems(stale)
    assert _problems(WALK, volume=np.zeros(100)) == ["no bar has a volume"]
    assert _problems(WALK, volume=np.r_[0, np.ones(99)]) == ["1 of 100 bars has no volume"]


def test_swapped_volumes_of_the_real_file(market_file, capsys):
    assert main([str(market_file("BTC_USD-Hourly.csv"))]) == 0
    out = capsys.readouterr().out
    assert "columns volume and Volume USD are swapped in 20,1" in out
    assert "to 2020-10-12 08:00:00" in out
    assert "rows were newest first; sorted" in out


def test_the_gap_and_the_listings_of_the_real_file(market_file, capsys):
    main([str(market_file("bitstamp_BTC_ETH_LTC_USD_d.csv"))])
    out = capsys.readouterr().out
    assert "BTC, ETH, LTC: 1 gap of 12 missing bars, the longest of 13 days from 2019-03-19 to 2019-04-01" in out
    assert "ETH begins at 2017-11-09" in out


def test_the_weekends_and_the_adjustment_of_the_real_files(market_file, capsys):
    main([str(market_file("FOREX_EURUSD_1H_ASK.csv"))])
    out = capsys.readouterr().out
    assert "51 gaps of up to 2.08 days over weekends" in out
    assert "holds only the ask side" in out
    main([str(market_file("dj30_test_2021.csv"))])
    out = capsys.readouterr().out
    assert "prices were adjusted to column adjcp" in out
    assert "close differs from adjcp in 6,552 of 7,308 rows" in out
    assert "all 29 symbols trade from the first bar to the last" in out
    assert "AAPL, AMGN and 27 others: no bar has a volume" in out
    assert "12 columns not used: the first (row numbers), zopen, zhigh" in out


@pytest.mark.slow
def test_it_draws_and_runs_as_a_command(tmp_path):
    path = tmp_path / "prices.csv"
    path.write_text("time,close\n2024-01-01,1\n2024-01-02,2\n2024-01-03,1.5\n")
    command = [sys.executable, "-m", "ml_pipeline", "inspect-data", str(path), "--picture"]
    done = subprocess.run([*command, str(tmp_path / "a.png")], capture_output=True, text=True, check=True)
    assert "prices.csv: 1 symbol, 3 bars from 2024-01-01 to 2024-01-03" in done.stdout
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    done = subprocess.run([*command, str(tmp_path / "no" / "a.png")], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


def test_data_that_cannot_be_read_are_one_sentence(tmp_path, capsys):
    with pytest.raises(SystemExit, match="2"):
        main([str(tmp_path / "gone.csv")])
    assert capsys.readouterr().err.startswith("inspect_data: There is no market data at")


def test_severe_problems_stand_apart_and_all_rows_are_listed_if_asked(tmp_path, capsys):
    days = [str(day) for day in np.datetime64("2024-01-01") + np.arange(60)]
    rows = [f"{day},{'nan' if 0 < i < 40 else 10 + i / 100}" for i, day in enumerate(days)]
    rows[50:] = [f"{day},{(10 + i / 100) / 20}" for i, day in enumerate(days[50:])]
    (tmp_path / "A.csv").write_text("\n".join(["time,close", *rows]))
    assert main([str(tmp_path / "A.csv"), "--all"]) == 1
    out = capsys.readouterr().out
    assert f"lines {', '.join(str(line) for line in range(3, 42))}.\n" in out
    severe = out.partition("Problems that make results wrong:\n")[2].partition("\n\n")[0]
    assert severe.startswith(
        "  A: prices change as after an unadjusted 20:1 split at 2024-02-20\n    -> use adjusted prices, or"
    )
    main([str(tmp_path / "A.csv"), "--adjust-splits"])
    out = capsys.readouterr().out
    assert "Severe" not in out
    assert "A: the 11 bars before 2024-02-20 were adjusted for a 20:1 split" in out


def test_every_column_is_listed_with_what_became_of_it(tmp_path, capsys):
    path = tmp_path / "prices.csv"
    rows = [
        f"{i},2024-01-{i:02},{10 + i % 3},{5 + i},{7 * i % 5},{10 + i % 3},1,A{i},2024-02-{i:02}" for i in range(1, 28)
    ]
    path.write_text("\n".join([",time,close,volume,Volume MA,VWAP,Ignore,id,close_time", *rows]))
    assert main([str(path)]) == 0
    out = capsys.readouterr().out
    assert (
        "prices.csv: 6 columns not used: the first (row numbers), Volume MA, VWAP (equal to close), "
        "Ignore (constant), id (no numbers), close_time (another time)\n"
        "    -> to observe it, pass --columns 'feature_volume_ma=Volume MA' --features 'feature_*'"
    ) in out


def test_columns_of_a_typed_file_that_cannot_be_numbers_are_listed(tmp_path, capsys):
    n = 27
    others = {
        "tags": pl.Series([[i] for i in range(n)]),
        "levels": pl.Series([[i, i] for i in range(n)], dtype=pl.Array(pl.Int64, 2)),
        "sizes": pl.Series([{"a": i} for i in range(n)]),
        "delay": pl.Series([timedelta(i) for i in range(n)]),
        "key": pl.Series([b"\xff"] * n),
        "mood": pl.Series([i * 7 % 5 for i in range(n)]),
    }
    bars = {"time": [date(2024, 1, 1 + i) for i in range(n)], "close": [10.0 + i % 3 for i in range(n)]}
    pl.DataFrame(bars | others).write_parquet(tmp_path / "A.parquet")
    assert main([str(tmp_path / "A.parquet")]) == 0
    useless = ", ".join(f"{title} (no numbers)" for title in ("tags", "levels", "sizes", "delay", "key"))
    assert f"A.parquet: 6 columns not used: {useless}, mood\n" in capsys.readouterr().out


def test_a_file_whose_other_columns_are_useless_needs_nothing(tmp_path, capsys):
    path = tmp_path / "prices.csv"
    path.write_text(
        "\n".join(["time,close,volume,ignore", *(f"2024-01-{i:02},{10 + i % 3},5,0" for i in range(1, 28))])
    )
    assert main([str(path)]) == 0
    out = capsys.readouterr().out
    assert "1 column not used: ignore (constant)\n    -> nothing to do" in out
    assert out.endswith("Nothing needs to be done.\n")


def test_bars_of_closed_hours_come_with_a_way_to_drop_them(tmp_path, capsys):
    path = tmp_path / "prices.csv"
    rows = [f"2024-01-{i // 24 + 1:02} {i % 24:02}:00,{10 + i % 3 * (i < 90)},{5 * (i < 90)}" for i in range(140)]
    path.write_text("\n".join(["time,close,volume", *rows]))
    main([str(path)])
    assert capsys.readouterr().out.count('frame[frame["Volume"] > 0]') == 2

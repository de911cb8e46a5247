import subprocess
import sys

import numpy as np
import pytest

from ml_pipeline.trading.diagnosis import diagnose
from ml_pipeline.trading.inspect_data import main
from ml_pipeline.trading.market_data import market_from_arrays


def _problems(tmp_path, close, *, times=None, **arrays):
    close = np.asarray(close, dtype=float)
    arrays = {"open": close, "high": close, "low": close, "volume": np.ones_like(close), **arrays}
    times = np.datetime64("2024-01-01") + np.arange(len(close)) if times is None else times
    market = market_from_arrays(["A"], times, close, **arrays)
    return [finding.problem for finding in diagnose(market, tmp_path)]


WALK = 100 * np.exp(np.random.default_rng(0).normal(0, 0.01, 100).cumsum())


def test_clean_data_are_left_in_peace(tmp_path):
    assert _problems(tmp_path, WALK) == []


def test_gaps(tmp_path):
    times = np.datetime64("2024-01-01") + np.concatenate([np.arange(50), np.arange(60, 110)])
    assert _problems(tmp_path, WALK, times=times) == ["1 gap, the longest of 11 days from 2024-02-19 to 2024-03-01"]
    weekdays = np.busday_offset("2024-01-01", np.arange(100))
    assert _problems(tmp_path, WALK, times=weekdays) == ["19 gaps of up to 3 days, as weekends and holidays leave them"]


def test_impossible_bars(tmp_path):
    assert _problems(tmp_path, WALK, high=WALK * 0.9, low=WALK * 1.1)[0].startswith(
        "high is below low in 100 of 100 bars, first at 2024-01-01"
    )
    opens = WALK.copy()
    opens[5] *= 1.2
    assert _problems(tmp_path, WALK, open=opens) == [
        "open or close lies outside low..high in 1 bars, first at 2024-01-06"
    ]


def test_a_wrong_tick_stale_closes_and_missing_volume(tmp_path):
    wrong = WALK.copy()
    wrong[40] *= 10
    (problem,) = _problems(tmp_path, wrong)
    assert problem.startswith("2 returns are far out, 1 of them undone by the next bar; the largest")
    stale = WALK.copy()
    stale[30:60] = stale[30]
    assert "the close stands still for up to 30 bars, from 2024-01-31" in _problems(tmp_path, stale)
    assert _problems(tmp_path, WALK, volume=np.zeros(100)) == ["there is no volume at all"]
    assert _problems(tmp_path, WALK, volume=np.r_[0, np.ones(99)]) == ["1 of 100 bars have no volume"]


def test_swapped_volumes_of_the_real_file(market_file, capsys):
    assert main([str(market_file("BTC_USD-Hourly.csv"))]) == 0
    out = capsys.readouterr().out
    assert "columns volume and Volume USD are swapped in 20,1" in out
    assert "to 2020-10-12 08:00:00" in out
    assert "rows were newest first; sorted" in out


def test_the_gap_and_the_listings_of_the_real_file(market_file, capsys):
    main([str(market_file("bitstamp_BTC_ETH_LTC_USD_d.csv"))])
    out = capsys.readouterr().out
    assert "BTC: 1 gap, the longest of 13 days from 2019-03-19 to 2019-04-01" in out
    assert "ETH is listed from 2017-11-09" in out


def test_the_weekends_and_the_adjustment_of_the_real_files(market_file, capsys):
    main([str(market_file("FOREX_EURUSD_1H_ASK.csv"))])
    assert "52 gaps of up to 50 hours, as weekends" in capsys.readouterr().out
    main([str(market_file("dj30_test_2021.csv"))])
    assert "prices were adjusted to column adjcp" in capsys.readouterr().out


def test_it_draws_and_runs_as_a_command(tmp_path):
    path = tmp_path / "prices.csv"
    path.write_text("time,close\n2024-01-01,1\n2024-01-02,2\n2024-01-03,1.5\n")
    command = [sys.executable, "-m", "ml_pipeline.trading.inspect_data", str(path), "--picture"]
    done = subprocess.run([*command, str(tmp_path / "a.png")], capture_output=True, text=True, check=True)
    assert "prices.csv: 1 symbol, 3 bars from 2024-01-01 to 2024-01-03" in done.stdout
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    done = subprocess.run([*command, str(tmp_path / "no" / "a.png")], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


def test_data_that_cannot_be_read_are_one_sentence(tmp_path, capsys):
    with pytest.raises(SystemExit, match="2"):
        main([str(tmp_path / "gone.csv")])
    assert capsys.readouterr().err.startswith("inspect_data: There is no market data at")

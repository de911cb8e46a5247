"""A function that looks ahead in any way gives another value where later bars cannot be reached."""

import sys

import numpy as np
import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.trading.features.causality_check import refuse_what_sees_ahead
from ml_pipeline.trading.features.indicators import compute_features
from ml_pipeline.trading.market.synthetic import synthetic_market

MODULE = """
import os
import numpy as np

memory = {}
returns = lambda bars: np.append(np.diff(np.log(bars.close)), 0.0)

def honest(bars):
    values = np.full(len(bars.close), np.nan)
    values[5:] = np.log(bars.close[5:] / bars.close[:-5])
    print("computed")
    return values

def needs_ten(bars):
    values = np.full(len(bars.close), np.nan)
    values[9:] = np.lib.stride_tricks.sliding_window_view(bars.close, 10).mean(axis=-1)
    return values

def sum_of_columns(bars):
    return bars.columns["feature_x"].cumsum()

def one_row(bars):
    values = honest(bars)
    if len(bars.close) > 201:
        values[200] = bars.close[201] / bars.close[200] - 1
    return values

def every_hundredth(bars):
    values = honest(bars)
    values[100::100] = returns(bars)[100::100]
    return values

def last_rows(bars):
    values = honest(bars)
    n = int(len(bars.close) * 0.95)
    values[n:] = returns(bars)[n:]
    return values

def warm_up(bars):
    values = honest(bars)
    if len(bars.close) > 9:
        values[8] = bars.close[9] - bars.close[8]
    return values

def remaining(bars):
    return np.arange(len(bars.close))[::-1] * 1.0

def highest(bars):
    return np.full(len(bars.close), float(np.argmax(bars.close)))

def remembers(bars):
    known = memory.setdefault("returns", returns(bars))
    return np.append(known, np.zeros(len(bars.close)))[: len(bars.close)]

def writes(bars):
    bars.close[:] = 1.0
    return bars.close.copy()

def reads(bars):
    with open(os.environ["LATER_BARS"]) as file:
        return honest(bars) + 0 * len(file.read())

def polars_reads(bars):
    import polars
    polars.read_csv(os.environ["LATER_BARS"])
    return honest(bars)

def sqlite_reads(bars):
    import sqlite3
    sqlite3.connect(os.environ["LATER_BARS"]).close()
    return honest(bars)

def child_reads(bars):
    import subprocess
    if len(bars.close) < 3:
        subprocess.run(["/bin/cat", os.environ["LATER_BARS"]], stdout=subprocess.DEVNULL, check=True)
    return honest(bars)

def libc_reads(bars):
    import ctypes
    libc = ctypes.CDLL(None)
    libc.close(libc.open(os.environ["LATER_BARS"].encode(), 0))
    return honest(bars)

def module_holds(bars):
    import my_later_bars
    return honest(bars)

def only_whole(bars):
    if len(bars.close) < 100:
        raise ValueError("the bars are too few.")
    return bars.close * 1.0

def ends_the_process(bars):
    os._exit(3) if len(bars.close) < 100 else None
    return bars.close * 1.0
"""


@pytest.fixture
def checked(tmp_path, monkeypatch):
    (tmp_path / "my_blind_features.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_blind_features", raising=False)
    market = synthetic_market(n_bars=300, n_symbols=2)

    def check(*names, **options):
        names = [f"my_blind_features:{name}" for name in names]
        return refuse_what_sees_ahead(market, names, compute_features(market, names), **options)

    return check


def test_honest_functions_pass_at_every_bar(checked):
    found = checked("honest", "needs_ten", budget_s=1e6)
    assert found.every_bar
    assert found.n_cuts == 600
    assert found.opened == ()


@pytest.mark.parametrize(
    "name", ["one_row", "every_hundredth", "last_rows", "warm_up", "remaining", "highest", "remembers"]
)
def test_each_way_of_looking_ahead_is_refused(checked, name):
    sentence = rf"Feature SYNTH\d:my_blind_features:{name} uses later data \(or is random\): at \d{{4}}-.* it is"
    with pytest.raises(UserError, match=sentence):
        checked(name, budget_s=1e6)


def test_where_time_is_short_bars_are_drawn(checked):
    found = checked("honest", budget_s=0.0)
    assert not found.every_bar
    assert 80 <= found.n_cuts < 300
    with pytest.raises(UserError, match="uses later data"):
        checked("last_rows", budget_s=0.0)


def test_files_that_a_function_reads_are_named(checked, tmp_path, monkeypatch):
    (tmp_path / "later.csv").write_text("1,2")
    monkeypatch.setenv("LATER_BARS", str(tmp_path / "later.csv"))
    assert checked("reads").opened == (str(tmp_path / "later.csv"),)


SEEN = ["reads", "sqlite_reads", "polars_reads", "child_reads", "libc_reads"]


@pytest.mark.skipif(sys.platform != "linux", reason="native code is watched on Linux alone")
@pytest.mark.parametrize("name", SEEN)
@pytest.mark.parametrize("file", ["later.csv", "later.zip", "later"])
def test_files_are_named_whatever_reads_them(checked, tmp_path, monkeypatch, name, file):
    (tmp_path / file).write_text("1,2")
    monkeypatch.setenv("LATER_BARS", str(tmp_path / file))
    found = checked(name, budget_s=0.0)
    if not found.watched and name not in {"reads", "sqlite_reads"}:
        pytest.skip("this system does not tell what native code opens")
    assert str(tmp_path / file) in found.opened


def test_a_program_and_a_module_of_numbers_are_named(checked, tmp_path, monkeypatch):
    (tmp_path / "later.csv").write_text("1,2")
    (tmp_path / "my_later_bars.py").write_text(f"returns = {[i / 7 for i in range(400)]}")
    monkeypatch.setenv("LATER_BARS", str(tmp_path / "later.csv"))
    assert any(each.startswith("the program") for each in checked("child_reads", budget_s=0.0).opened)
    (found,) = checked("module_holds", budget_s=0.0).opened
    assert found.startswith(f"{tmp_path / 'my_later_bars.py'}, which holds 400 numbers")


def test_a_function_may_fail_before_its_first_value_and_not_after(checked):
    with pytest.raises(UserError, match=r"only_whole fails from only the bars up to 1960-01-01: .*too few"):
        checked("only_whole")


def test_a_process_that_ends_is_one_sentence(checked):
    with pytest.raises(UserError, match="cannot be computed from the bars so far: its process ended"):
        checked("ends_the_process")


def test_writing_into_the_bars_changes_no_other_call(checked):
    assert checked("writes", budget_s=1e6).every_bar


def test_columns_of_the_data_are_there_as_well(tmp_path, monkeypatch):
    from dataclasses import replace

    (tmp_path / "my_blind_features.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_blind_features", raising=False)
    market = synthetic_market(n_bars=60)
    market = replace(market, columns={"feature_x": np.arange(60.0)[:, None]})
    names = ["my_blind_features:sum_of_columns"]
    assert refuse_what_sees_ahead(market, names, compute_features(market, names), budget_s=1e6).every_bar

"""Prices at which no trade was possible: they are reported, refused or not filled."""

import numpy as np
import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.trading.market.data import market_from_arrays
from ml_pipeline.trading.market.files import load_market
from ml_pipeline.trading.market.plausibility import Split, find_splits, wrong_ticks
from ml_pipeline.trading.market.resampling import BarForm
from ml_pipeline.trading.market.tables import Faults
from ml_pipeline.trading.settings import TradingConfig
from ml_pipeline.trading.task import TradingTask
from tests.trading.market.daily_bars import CLOSES, OPENS, N, write_bars


@pytest.fixture
def outside(tmp_path):
    """Makes a file in which the open of one bar is `factor` times as high, outside its bar's range."""

    def make(factor):
        opens = OPENS.copy()
        opens[50] *= factor
        return write_bars(tmp_path / "A.csv", opens, high=np.maximum(OPENS, CLOSES) * 1.002)

    return make


def test_a_price_far_outside_its_bar_is_refused_with_its_row_or_dropped_and_listed(outside):
    sentence = r"row 51 \(line 52\): open of A is 10\d+\..*, far outside its low..high of .*; fix or drop the row. --d"
    with pytest.raises(UserError, match=sentence):
        load_market(outside(100))
    task = TradingTask(TradingConfig(data=outside(100), drop_bad_rows=True))
    assert task.account.market.n_bars == N - 1
    assert any("left out: A.csv row 51 (line 52): open of A is 10" in notice for notice in task.notices)


def test_a_bar_outside_its_range_is_never_filled_and_that_is_said(outside):
    task = TradingTask(TradingConfig(data=outside(1.2), features=("log_return_1",), fee_bps=0.0))
    said = (
        "A: open or close lies outside low..high in 1 bar, first at 2023-02-21; check how the bars were made; no order"
    )
    assert any(notice.startswith(said) for notice in task.notices)
    for fill_at in ("next_open", "close"):
        _, _, fillable = task.account.bars_of("train").fill_tables(fill_at)
        bad = 50 - task.account.first_bar
        assert list(np.flatnonzero(~fillable[:, 0])) == [bad - 1 if fill_at == "next_open" else bad]
    market = load_market(outside(1 + 1e-7))  # what rounding does
    assert market.outside is None
    assert market.remarks == ()


def test_the_report_repeats_what_is_severe(outside, tmp_path):
    task = TradingTask(TradingConfig(data=outside(1.2), features=("log_return_1",)))
    task.evaluate(lambda _: 2, "test", tmp_path / "report", page=True)
    assert "The data: A: open or close lies outside low..high in 1 bar" in (tmp_path / "report/report.html").read_text()


def test_a_table_without_high_and_low_has_no_range(tmp_path):
    path = tmp_path / "A.csv"
    path.write_text("time,open,close\n2024-01-01,10,11\n2024-01-02,12,11\n")
    assert load_market(path).outside is None


def test_splits_are_said_and_adjusted(tmp_path):
    """20 shares for one: a price of 100 goes on as 5, and so do the opens."""
    opens, closes = OPENS.copy(), CLOSES.copy()
    opens[120:], closes[120:] = opens[120:] / 20, closes[120:] / 20
    path = write_bars(tmp_path / "A.csv", opens, closes)
    said = "A: prices change as after an unadjusted 20:1 split at 2023-05-02; use adjusted prices, or --adjust-splits."
    assert TradingTask(TradingConfig(data=path, features=("log_return_1",))).notices == (said,)
    market = load_market(path, form=BarForm(adjust_splits=True))
    np.testing.assert_allclose(market.close[:, 0], CLOSES / 20, rtol=1e-12)
    np.testing.assert_allclose(market.open[:, 0], OPENS / 20, rtol=1e-12)
    np.testing.assert_array_equal(market.volume[[119, 120], 0], [20_000, 1000])
    assert market.remarks == ()
    assert market.notices == (
        "A: the 120 bars before 2023-05-02 were adjusted for a 20:1 split: prices / 20, volumes x 20",
    )


@pytest.mark.parametrize(("ratio", "name"), [(1.5, "3:2"), (2, "2:1"), (7, "7:1"), (0.1, "1:10")])
def test_splits_of_every_kind(ratio, name):
    opens, closes = OPENS.copy(), CLOSES.copy()
    opens[120:], closes[120:] = opens[120:] / ratio, closes[120:] / ratio
    (split,) = find_splits(opens, closes)
    assert split == Split(120, pytest.approx(ratio))
    assert str(split) == name


def test_crashes_ticks_and_volatile_markets_are_no_splits():
    crash = CLOSES.copy()
    crash[120:] /= 2
    assert find_splits(np.where(np.arange(N) == 120, CLOSES, np.r_[crash[0], crash[:-1]]), crash) == []  # within a day
    tick = CLOSES.copy()
    tick[120] /= 20
    assert find_splits(tick, tick) == []
    assert list(wrong_ticks(tick)) == [120]
    wild = np.exp(np.random.default_rng(1).normal(0, 0.3, N).cumsum())
    assert find_splits(wild, wild) == []


def test_wrong_ticks_and_wide_quotes_are_severe():
    tick = CLOSES.copy()
    tick[120] *= 100
    days = np.datetime64("2024-01-01") + np.arange(N)
    market = market_from_arrays(["A"], days, tick, half_spread=np.where(np.arange(N) == 9, 0.2, 0.001))
    first, second = market.remarks
    assert first.startswith("A: 1 close is reversed by the next bar, first +")
    assert second.startswith("A: bid and ask are up to 40% of the price apart, above 10% in 1 bar, first at 2024-01-10")


def test_an_ask_of_five_times_the_bid_is_refused(tmp_path):
    path = tmp_path / "A.csv"
    path.write_text("time,bid,ask\n2024-01-01,1,1.01\n2024-01-02,1,5\n2024-01-03,1,1.01\n")
    sentence = r"row 2 \(line 3\): the ask of A is 5, 5 times its bid of 1, which no market quotes; fix or drop the row"
    with pytest.raises(UserError, match=sentence):
        load_market(path)
    assert load_market(path, faults=Faults("drop")).n_bars == 2


@pytest.mark.parametrize("factor", [100, 0.1])
@pytest.mark.parametrize("order", [1, -1])
def test_a_bar_that_its_neighbours_take_back_is_refused(tmp_path, factor, order):
    opens, closes = OPENS.copy(), CLOSES.copy()
    opens[70], closes[70] = opens[70] * factor, closes[70] * factor
    path = write_bars(tmp_path / "A.csv", opens, closes)
    header, *lines = path.read_text().splitlines()
    path.write_text("\n".join([header, *lines[::order]]))
    row = 71 if order == 1 else N - 70
    with pytest.raises(
        UserError, match=rf"row {row} .*close of A is .*, but .* and .* in the bars before and after it"
    ):
        load_market(path)
    assert load_market(path, faults=Faults("drop")).n_bars == N - 1


def test_one_side_of_the_quotes_is_said_in_training(tmp_path):
    task = TradingTask(TradingConfig(data=write_bars(tmp_path / "EURUSD_bid.csv")))
    assert task.notices[0].startswith(
        "EURUSD_bid: by its name it holds only the bid side; add the file of the other side"
    )


def test_orders_pass_over_a_bar_outside_its_range():
    """Long is wanted from bar 4 on; bar 5 cannot have been filled, so bar 6 is, at its own open."""
    closes = np.full(40, 10.0)
    opens = closes.copy()
    opens[5] = 14.0
    days = np.datetime64("2024-01-01") + np.arange(40)
    market = market_from_arrays(["A"], days, closes, open=opens, high=closes, low=closes, volume=closes)
    env = TradingTask(TradingConfig(features=("tradable",), fee_bps=0.0), market=market).evaluation_env("train")
    env.reset(seed=0)
    for bar in range(9):
        env.step(2 if bar >= 4 else 1)
    ledger = env.ledger()
    assert list(np.flatnonzero(ledger["filled_A"])) == [6]
    assert ledger["fill_price_A"][6] == 10.0

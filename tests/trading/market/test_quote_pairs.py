"""Files of bid bars and of ask bars of one instrument."""

import numpy as np
import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.trading.market.faults import Faults
from ml_pipeline.trading.market.files import load_market
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
        "EURUSD_1H: EURUSD_1H_BID and EURUSD_1H_ASK are its two sides; prices are their middle, volumes their sum; "
        "1 bar of one side alone left out",
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
    sentence = "E_ask and E_bid in 300 bars, first at 2023-01-02: the ask is .* and the bid .*, which no market quotes"
    with pytest.raises(UserError, match=sentence):
        load_market(bid.parent)
    with pytest.raises(UserError, match="E_bid and E_ask have no bar at the same time; use bid and ask of the same"):
        load_market(bid.parent, faults=Faults("drop"))
    ask.rename(bid.with_name("E.csv"))
    write_bars(tmp_path / "fx/E_ask.csv", OPENS, CLOSES)
    with pytest.raises(UserError, match="E is a file of its own, and E_bid and E_ask are its bid and ask; keep the"):
        load_market(bid.parent)


def test_other_files_of_a_folder_need_not_be_usable(tmp_path):
    bid = write_bars(tmp_path / "fx/EURUSD_bid.csv", OPENS, CLOSES)
    write_bars(tmp_path / "fx/EURUSD_ask.csv", OPENS * 1.002, CLOSES * 1.002)
    bid.with_name("broken.csv").write_text("nothing\n")
    assert load_market(bid.parent, symbols=["EURUSD"]).symbols == ("EURUSD",)
    with pytest.raises(UserError, match=r"broken\.csv"):
        load_market(bid.parent)

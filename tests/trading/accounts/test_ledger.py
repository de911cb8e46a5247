import numpy as np
import pytest

from ml_pipeline.trading.accounts.ledger import trades_of


def _ledger(filled, price, costs_paid=None, close=None):
    n = len(filled)
    return {
        "time": np.datetime64("2024-01-01", "ns") + np.arange(n) * np.timedelta64(1, "D"),
        "costs_paid": np.zeros(n) if costs_paid is None else np.array(costs_paid, dtype=float),
        "close_A": np.array(price if close is None else close, dtype=float),
        "position_A": np.cumsum(filled, dtype=float),
        "filled_A": np.array(filled, dtype=float),
        "fill_price_A": np.array(price, dtype=float),
    }


def test_a_trade_runs_from_flat_to_flat():
    # 2 at 10 and 1 at 13 cost 33, an average of 11; 3 at 12 use 36. 1 a fill is paid.
    (trade,) = trades_of(_ledger([0, 2, 1, 0, -3], [9, 10, 13, 15, 12], costs_paid=[0, 1, 2, 2, 3]))
    assert (trade.symbol, trade.side, trade.open) == ("A", "long", False)
    assert (str(trade.entry_time)[:10], str(trade.exit_time)[:10], trade.holding_bars) == (
        "2024-01-02",
        "2024-01-05",
        3,
    )
    assert (trade.quantity, trade.entry_price, trade.exit_price) == (3, 11, 12)
    assert trade.profit == pytest.approx(36 - 33 - 3)


def test_a_fill_through_zero_ends_one_trade_and_begins_the_next():
    # Long 1 from 10 to 14, then short 2 from 14 to 9; the costs of 3 at the turn go by value, 1 and 2.
    long, short = trades_of(_ledger([1, -3, 2], [10, 14, 9], costs_paid=[0, 3, 3]))
    assert (long.side, long.profit, long.holding_bars) == ("long", pytest.approx(4 - 1), 1)
    assert (short.side, short.profit, short.holding_bars) == ("short", pytest.approx(10 - 2), 1)
    assert (short.entry_price, short.exit_price, short.quantity) == (14, 9, 2)


def test_what_is_open_at_the_end_is_valued_at_the_last_close():
    (trade,) = trades_of(_ledger([0, -2, 1], [10, 10, 8], close=[10, 9, 7]))
    assert trade.open
    assert trade.side == "short"
    # 2 sold for 20; one bought back for 8, the other would cost 7.
    assert trade.profit == pytest.approx(20 - 8 - 7)


def test_a_trade_opened_in_the_last_bar_and_none_at_all():
    (trade,) = trades_of(_ledger([0, 0, 1], [1, 1, 4], close=[1, 1, 5]))
    assert (trade.open, trade.profit, trade.holding_bars) == (True, 1, 0)
    assert trades_of(_ledger([0, 0, 0], [1, 1, 1])) == []

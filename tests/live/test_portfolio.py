"""The books by hand; that they have the backtest's bits is tested with the simulated broker."""

import json
from decimal import Decimal

import numpy as np
import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.live.brokers.broker import Charge, Fill, OrderUpdate
from ml_pipeline.live.portfolio import AccountBook
from ml_pipeline.trading.accounts.rules import TradingRules
from ml_pipeline.trading.market.bar_set import BarSet

NOON = np.datetime64("2024-03-01T12:00", "ns")
RULES = TradingRules("target_weights")


def bars(t, *closes, opened=None, half_spread=None):
    close = np.array(closes, dtype=float)
    opens = close if opened is None else np.array(opened, dtype=float)
    time = NOON + np.timedelta64(t, "m")
    spread = None if half_spread is None else np.array(half_spread)
    high, low = np.maximum(opens, close), np.minimum(opens, close)
    return BarSet(
        time, time + np.timedelta64(1, "m"), opens, high, low, close, np.ones(2), ~np.isnan(close), half_spread=spread
    )


def fill(name, symbol, quantity, price, costs=0.0, **more):
    return Fill(name, f"order of {symbol}", symbol, quantity, price, costs, NOON, **more)


@pytest.fixture
def books():
    books = AccountBook(("A", "B"), RULES)
    books.close_bar(bars(0, 100, 50))
    return books


def test_decimals_close_what_was_bought_and_floats_have_the_bits_of_the_kernel():
    for decimal, left in ((False, 0.1 + 0.2 - 0.3), (True, 0.0)):
        books = AccountBook(("A", "B"), RULES, decimal=decimal)
        books.close_bar(bars(0, 100, 50))
        for t, quantity in enumerate((0.1, 0.2, -0.3), start=1):
            books.apply(fill(f"{t}", "A", quantity, 100))
            books.close_bar(bars(t, 100, 50))
        assert books.holdings == [left, 0.0]


def test_decimals_survive_a_restart_and_floats_of_an_older_journal_are_rounded_to_nine_digits():
    books = AccountBook(("A", "B"), RULES, decimal=True)
    books.close_bar(bars(0, 100, 50))
    books.apply(fill("1", "A", Decimal("123456789.123456789"), 1.0))
    state = json.loads(json.dumps(books.state()))
    other = AccountBook(("A", "B"), RULES, decimal=True)
    other.set_state(state)
    assert other.positions == {"A": Decimal("123456789.123456789")}
    other.set_state({**state, "events": [], "holdings": [0.1 + 0.2, 0.0]})
    assert other.positions == {"A": Decimal("0.3")}


def test_what_is_told_counts_at_once_and_is_a_row_at_the_close(books):
    assert books.apply(fill("1", "A", 10, 101, 1.5))
    assert books.cash == 10_000 - 1010 - 1.5
    assert books.holdings == [10, 0]
    assert books.equity == 10_000 - 1010 - 1.5 + 10 * 100
    row = books.close_bar(bars(1, 103, 50, opened=[101, 50]))
    assert (row.cash, row.costs, row.equity) == (8988.5, 1.5, 8988.5 + 1030)
    assert (list(row.filled), list(row.fill_prices), list(row.positions)) == ([10, 0], [101, 50], [10, 0])
    assert books.weights(10.0) == [1030 / row.equity, 0.0]
    assert books.close_bar(bars(2, 103, 50)).filled == [0, 0]


def test_what_is_told_twice_counts_once(books):
    for _ in range(2):
        books.apply(fill("1", "A", 10, 100))
        books.apply(Charge("1", 5.0, "borrowing", NOON))
    assert not books.apply(fill("1", "A", 10, 100))
    books.close_bar(bars(1, 100, 50))
    assert not books.apply(fill("1", "A", 10, 100))
    assert not books.apply(Charge("1", 5.0, "borrowing", NOON))
    assert (books.cash, books.holdings) == (10_000 - 1000 - 5, [10, 0])


def test_several_fills_of_an_order_are_one_at_their_average_price(books):
    books.apply(fill("1", "A", 10, 100))
    books.apply(fill("2", "A", 30, 104))
    row = books.close_bar(bars(1, 104, 50))
    assert (row.filled[0], row.fill_prices[0]) == (40, 103)
    assert books.cash == 10_000 - 1000 - 3120


def test_a_symbol_without_a_bar_is_valued_at_its_last_close(books):
    books.apply(fill("1", "B", 10, 50))
    row = books.close_bar(bars(1, 100, np.nan))
    assert list(row.closes) == [100, 50]
    assert row.equity == 10_000


def test_an_overdraft_at_a_real_broker_stays_one(books):
    books.apply(fill("1", "A", 101, 100))
    assert books.cash == -100


def test_a_cash_that_only_rounding_takes_below_zero_is_zero(books):
    books.apply(fill("1", "A", 100, np.nextafter(100, 200)))
    assert books.cash == 0.0


def test_a_fee_that_could_not_be_paid_ends_the_session(books):
    books.apply(Charge("1", 3.0, "borrowing", NOON, margin_called=True))
    assert not books.ended
    books.close_bar(bars(1, 100, 50))
    assert books.ended


def test_ruin_ends_the_session(books):
    books.apply(Charge("1", 9_901.0, "a fine", NOON))
    assert books.ended


def test_a_symbol_of_somebody_else_is_refused(books):
    with pytest.raises(UserError, match="reported C, which this session does not trade"):
        books.apply(fill("1", "C", 1, 1))
    assert books.cash == 10_000


def test_the_first_row_has_the_spreads_of_the_first_bar_and_knows_closes_from_before():
    books = AccountBook(("A", "B"), RULES)
    books.warm_up(bars(0, 100, 50, half_spread=[0.1, 0.2]))
    books.warm_up(bars(1, 101, 51, half_spread=[0.3, 0.4]))
    row = books.close_bar(bars(2, 102, np.nan, half_spread=[0.5, np.nan]))
    assert list(row.half_spreads) == [0.1, 0.2]
    assert list(row.closes) == [102, 51]
    assert list(books.close_bar(bars(3, 102, 50, half_spread=[0.7, 0.8])).half_spreads) == [0.5, 0.4]


def test_books_go_on_from_their_state_in_the_middle_of_a_bar():
    rules = TradingRules("target_weights", limit_bps=50, stop_loss=0.1, financing_bps_per_year=100, max_gross=2)
    one = AccountBook(("A", "B"), rules)
    one.warm_up(bars(0, 100, 50, half_spread=[0.1, 0.2]))
    one.close_bar(bars(1, 100.1, 50.1, half_spread=[0.1, 0.2]))
    one.apply(fill("1", "A", 100 / 3, 100.05, 0.1))
    one.close_bar(bars(2, 99.7, 50.3, half_spread=[0.1, 0.2]))
    one.apply(fill("2", "A", -7.0, 99.9, 0.1, exit=True))
    one.apply(Charge("3", 0.123, "borrowing and financing", NOON, 2.0))
    one.apply(OrderUpdate("x", "B", "expired", None, 0.0, NOON, "", 49.9))
    other = AccountBook(("A", "B"), rules)
    other.set_state(json.loads(json.dumps(one.state())))
    assert (other.cash, other.holdings, other.equity) == (one.cash, one.holdings, one.equity)
    assert not other.apply(fill("1", "A", 100 / 3, 100.05, 0.1))
    assert repr(other.close_bar(bars(3, 98, 51))) == repr(one.close_bar(bars(3, 98, 51)))
    assert other.state() == one.state()

"""Buying power and pattern day trading are asked for before orders are sent."""

from decimal import Decimal

import pytest

from ml_pipeline.live.alpaca.limits import opened_by, refusals
from ml_pipeline.live.brokers.broker import OrderRequest, exact

ACCOUNT = {"buying_power": "10000", "equity": "20000", "multiplier": "2", "daytrade_count": 0}
DAY_TRADES = "the account has made 3 day trades in five days and has less than 25,000 dollars, so Alpaca might not let"


def order(name, quantity, symbol="AAPL", price=100.0, **more):
    return OrderRequest(name, symbol, exact(quantity), 0.1, price=price, **more)


def refused(*orders, positions=None, **changes):
    held = {symbol: Decimal(str(quantity)) for symbol, quantity in (positions or {}).items()}
    return refusals(orders, held, ACCOUNT | changes)


@pytest.mark.parametrize(
    ("quantity", "position", "opened"),
    [(5, 0, 5), (5, 2, 5), (-5, 0, -5), (-5, 3, -2), (-5, 5, 0), (-5, 8, 0), (5, -3, 2), (5, -8, 0)],
)
def test_what_opens_a_position_is_what_goes_away_from_zero(quantity, position, opened):
    assert opened_by(order("a", quantity), Decimal(position)) == opened
    assert opened_by(order("a", quantity, closing=True), Decimal(position)) == 0


def test_an_order_beyond_the_buying_power_is_refused_with_both_figures_and_smaller_ones_are_not():
    found = refused(order("a", 101.0), order("b", 60.0), order("c", 41.0), order("d", 40.0))
    assert found == {
        "a": "it needs about 10,100.00 of buying power, but the account has 10,000.00",
        "c": "it needs about 4,100.00 of buying power, but the account has 4,000.00",
    }


def test_a_short_counts_three_percent_more_as_at_alpaca():
    assert not refused(order("a", -97.0))
    assert "needs about 10,094.00" in refused(order("a", -98.0))["a"]


def test_what_the_decision_sells_pays_for_what_it_buys():
    sale, purchase = order("sale", -50.0, "TSLA"), order("buy", 150.0)
    assert refused(purchase)
    assert not refused(purchase, sale, positions={"TSLA": 50})
    assert not refused(purchase, order("sale", 0.0, "TSLA", closing=True), positions={"TSLA": 50})


def test_after_three_day_trades_a_small_account_on_margin_opens_nothing_and_closes_all():
    orders = order("open", 1.0), order("more", 1.0, "TSLA"), order("less", -1.0, "MSFT"), order("through", -3.0, "IBM")
    held = {"TSLA": 5, "MSFT": 5, "IBM": 2}
    found = refused(*orders, positions=held, daytrade_count=3)
    assert {*found} == {"open", "more", "through"}
    assert found["open"].startswith(DAY_TRADES)
    assert not refused(*orders, positions=held, daytrade_count=2)
    assert not refused(*orders, positions=held, daytrade_count=3, equity="25000")
    assert not refused(*orders, positions=held, daytrade_count=3, multiplier="1")
    assert refused(*orders, positions=held, daytrade_count=0, pattern_day_trader=True)


def test_a_rule_whose_figures_are_missing_is_not_applied():
    assert refusals([order("a", 1e6)], {}, {}) == {}
    assert not refused(order("a", 1e6, price=None))


def test_a_refused_order_is_not_sent_and_the_others_are(broker, server):
    answers = broker.submit([order("a", 1.0), order("b", 5_000.0), order("c", 2.0, "TSLA")])
    assert [each.status for each in answers] == ["filled", "rejected", "filled"]
    assert answers[1].reason == "it needs about 500,000.00 of buying power, but the account has 199,900.00"
    assert server.faults.requests.count("POST /v2/orders") == 2


def test_positions_are_closed_after_three_day_trades_and_none_is_opened(broker, server):
    exchange = server.trading.exchange
    exchange.cash = Decimal(20_000)
    broker.submit([order("a", 10.0)])
    exchange.day_trades = 3
    opened, closed = broker.submit([order("b", 1.0, "TSLA"), order("c", -10.0)])
    assert (opened.status, closed.status) == ("rejected", "filled")
    assert opened.reason.startswith(DAY_TRADES)
    assert exchange.positions == {}

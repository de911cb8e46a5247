"""Quantities are decimals from the broker's text to the order: what was bought is sold to its last digit."""

import itertools
from decimal import Decimal
from typing import NamedTuple

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from ml_pipeline.live.alpaca.entry import AlpacaAsset, order_fields, plan_order
from ml_pipeline.live.brokers.broker import SMALLEST_QUANTITY, Fill, QuantityRules, exact, quantity_text
from ml_pipeline.live.brokers.simulated import SimulatedBroker
from ml_pipeline.live.orders import closing_orders
from ml_pipeline.live.portfolio import AccountBook
from ml_pipeline.live.sizing import size_orders
from ml_pipeline.trading.accounts.rules import TradingRules
from ml_pipeline.trading.market.bar_set import BarSet
from tests.live.alpaca_server.exchange import Exchange, Rejection

SYMBOLS = ("AAPL", "TSLA")
NOON = np.datetime64("2024-03-01T12:00", "ns")
RULES = TradingRules("target_weights", fee_bps=0.0, initial_cash=100_000.0)


AT_ALPACA = QuantityRules(usual_step=SMALLEST_QUANTITY)


class Decision(NamedTuple):
    weights: list[float]
    time: np.datetime64
    closing: bool = False
    may_trade: tuple[bool, ...] = (True, True)


def bars_at(t, prices):
    close, time = np.array(prices, dtype=float), NOON + np.timedelta64(t, "m")
    return BarSet(time, time + np.timedelta64(1, "m"), close, close, close, close, np.ones(2), np.ones(2, dtype=bool))


class AtAlpaca:
    """Books, and the account at the stand-in for Alpaca, with what lies between them except the network."""

    def __init__(self):
        self.exchange = Exchange(lambda message: None)
        self.exchange.fills = "on demand"
        self.books = AccountBook(SYMBOLS, RULES, decimal=True)
        self.asset = AlpacaAsset(tradable=True, fractionable=True, shortable=True)
        self._bar, self._fill = itertools.count(), itertools.count()

    def rebalance(self, weights, prices, part, *, closing=False):
        """One bar: size the orders at these prices, send them, and fill the given part of each."""
        t = next(self._bar)
        self.exchange.prices = dict(zip(SYMBOLS, map(str, prices), strict=True))
        self.books.close_bar(bars_at(t, prices))
        decision = Decision(list(weights), NOON + np.timedelta64(t, "m"), closing)
        self.send(
            size_orders(
                decision,
                books=self.books,
                terms=RULES.terms(252),
                session_id="s",
                sizes_at_fill=False,
                quantities=AT_ALPACA,
            ),
            part,
        )

    def flatten(self):
        time = NOON + np.timedelta64(next(self._bar), "m")
        held = self.books.positions
        orders = closing_orders(held, AT_ALPACA, session_id="s", bar_time=time)
        self.send(orders, 1.0)

    def send(self, orders, part=1.0):
        for order in orders:
            position = self.exchange.positions.get(order.symbol, Decimal(0))
            for name, quantity in plan_order(order, self.asset, position).legs:
                try:
                    sent = self.exchange.submit(order_fields(name, order.symbol, quantity, None))
                except Rejection:  # for lack of buying power
                    assert order.weight, "an exit was rejected"
                    break
                filled = (sent.quantity * exact(part)).quantize(Decimal("1e-9")) or sent.quantity
                self.exchange.fill(name, filled)
                if filled != sent.quantity:
                    self.exchange.end(name, "canceled")
                price = float(self.exchange.price(order.symbol))
                fill_id = str(next(self._fill))
                self.books.apply(Fill(fill_id, name, order.symbol, filled.copy_sign(quantity), price, 0.0, NOON))


weights = st.one_of(st.floats(-0.5, 0.5), st.sampled_from([0.0, 1 / 3, -0.1, 1e-7, 1e-10, 3e-12]))
prices = st.integers(9_500, 10_500).map(lambda cents: cents / 100)
rebalancings = st.lists(
    st.tuples(st.tuples(weights, weights), st.tuples(prices, prices), st.sampled_from([1.0, 1.0, 0.3, 1 / 7])),
    min_size=20,
    max_size=25,
)
A_THOUSAND_IN_ALL = settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.mark.slow
@A_THOUSAND_IN_ALL
@given(rebalancings, st.sampled_from(["decision", "closing decision", "flatten"]))
def test_rebalancings_and_exits_at_alpaca_leave_exactly_nothing(steps, way_out):
    account = AtAlpaca()
    for targets, at, part in steps:
        account.rebalance(targets, at, part)
        assert account.books.positions == account.exchange.positions
    if way_out == "flatten":
        account.flatten()
    else:
        account.rebalance((0.0, 0.0), steps[-1][1], 1.0, closing=way_out == "closing decision")
    assert account.exchange.positions == {}
    assert account.books.positions == {}


@pytest.mark.slow
@A_THOUSAND_IN_ALL
@given(rebalancings)
def test_rebalancings_and_exits_at_the_simulated_broker_leave_nothing_that_could_be_sold(tmp_path_factory, steps):
    store = tmp_path_factory.mktemp("account") / "account.sqlite"
    broker = SimulatedBroker(SYMBOLS, RULES, periods_per_year=252, store=store, durable=False)
    books, cursor = AccountBook(SYMBOLS, RULES), None
    for t, (targets, at, _) in enumerate([*steps, ((0.0, 0.0), steps[-1][1], 1.0), *steps[-1:]]):
        broker.market_closed_bar(bars_at(t, at))
        events, cursor = broker.poll(cursor)
        for event in events:
            books.apply(event)
        books.close_bar(bars_at(t, at))
        assert books.positions == broker.account().positions
        decision = Decision(list(targets), NOON + np.timedelta64(t, "m"))
        broker.submit(size_orders(decision, books=books, terms=RULES.terms(252), session_id="s", sizes_at_fill=True))
    broker.close()
    assert broker.quantities.open_positions(books.positions) == {}


def test_a_float_becomes_its_shortest_decimal_and_keeps_its_bits():
    for number in (0.1, 1 / 3, 0.1 + 0.2, 1e-9, 5e-324, 12345678.123456789, -0.0):
        assert float(exact(number)).hex() == number.hex()
    assert exact("0.10") == Decimal("0.1")
    assert exact(np.float64(0.1)) == Decimal("0.1")


def test_more_digits_than_a_float_has_are_kept():
    account = AtAlpaca()
    account.exchange.cash = Decimal(10**12)
    account.exchange.prices = {"AAPL": "0.01"}
    account.books.close_bar(bars_at(0, (0.01, 1.0)))
    quantity = Decimal("123456789012.123456789")  # 21 digits
    account.exchange.positions = {"AAPL": quantity}
    account.books.apply(Fill("bought", "id", "AAPL", quantity, 0.01, 0.0, NOON))
    assert account.books.positions == {"AAPL": quantity}
    account.flatten()
    assert account.exchange.positions == {}
    assert account.books.positions == {}


@pytest.mark.parametrize(
    ("order", "held", "sent"),
    [
        (-0.3, "0.3", "-0.3"),
        (-0.2999999995, "0.3", "-0.3"),  # would leave less than the smallest order
        (-0.2999, "0.3", "-0.2999"),
        (1e-10, "0", "0"),
        (0.1 + 0.2, "0", "0.3"),
        (12345678.123456789, "-12345678.123456789", "12345678.123456789"),  # the float ends in 79
    ],
)
def test_an_order_of_the_kernel_becomes_a_decimal_that_leaves_no_dust(order, held, sent):
    rules = QuantityRules(usual_step=Decimal("1e-9"))
    assert rules.quantity("A", order, Decimal(held)) == Decimal(sent)


def test_what_is_below_the_smallest_order_is_flat_and_said_to_be():
    rules = QuantityRules(smallest={"BTC/USD": Decimal("0.00001")})
    held = {"BTC/USD": Decimal("0.0000099"), "AAPL": Decimal("0.000000001"), "TSLA": Decimal("0.0000000005")}
    assert rules.open_positions(held) == {"AAPL": Decimal("1e-9")}
    assert rules.left_over(held) == (
        " 0.0000099 BTC/USD, 0.0000000005 TSLA is left over: it is below the smallest order and counts as flat."
    )
    assert rules.left_over({"AAPL": Decimal(5)}) == ""
    assert quantity_text(Decimal("1000.0")) == "1,000"

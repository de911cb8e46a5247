"""Crypto at Alpaca: fractions, fees taken from what was bought, no shorts, and a market that never closes."""

from decimal import Decimal

import numpy as np
import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.live.alpaca import asset_fees
from ml_pipeline.live.brokers.broker import Broker, BrokerUnavailable, Charge, Fill, OrderRequest, OrderUpdate
from ml_pipeline.testing.brokers import BrokerContract
from tests.live.alpaca.conftest import config_for, poll_until
from tests.live.alpaca.test_contract import ContractAtAlpaca

BTC = "BTC/USD"


def opened(server, *, symbols=(BTC,)):
    from ml_pipeline.live.alpaca.broker import open_alpaca

    return open_alpaca(config_for(server), symbols=symbols)


@pytest.fixture
def crypto(server):
    server.trading.exchange.prices = {BTC: "60000"}
    with opened(server) as broker:
        broker.poll(None)
        yield broker


def order(name, quantity, symbol=BTC, **more):
    return OrderRequest(name, symbol, Decimal(quantity), 0.1, **more)


def fills(events):
    found = [each for each in events if isinstance(each, Fill)]
    return [(each.client_order_id, str(each.quantity), each.price, each.costs) for each in found]


def ended(events, name):
    updates = [each for each in events if isinstance(each, OrderUpdate)]
    return any((each.client_order_id, each.status) == (name, "filled") for each in updates)


def test_what_alpaca_keeps_of_a_purchase_is_a_cost_of_its_fill(crypto, server):
    _, start = crypto.poll(None)
    (answer,) = crypto.submit([order("a", "0.1")])
    assert answer.status == "filled"
    events, cursor = poll_until(crypto, start, lambda events: ended(events, "a"))
    assert fills(events) == [("a", "0.09975", 60_000.0, 15.0)]  # 0.25 % of 0.1 is 0.00025, worth 15
    assert crypto.account().positions == {BTC: Decimal("0.09975")}
    assert crypto.account().cash == 94_000
    assert crypto.poll(start)[0] == events
    assert crypto.poll(cursor) == ([], cursor)


def test_an_exit_leaves_nothing_and_the_next_purchase_has_its_own_fee(crypto, server):
    cursor = crypto.poll(None)[1]
    told = Decimal(0)
    for name, quantity in (("a", "0.1"), ("b", "0.033333333"), ("c", None), ("d", "0.2")):
        amount = -crypto.account().positions[BTC] if quantity is None else quantity
        crypto.submit([order(name, amount)])
        events, cursor = poll_until(crypto, cursor, lambda events, name=name: ended(events, name))
        told += sum(each.quantity for each in events if isinstance(each, Fill))
        assert told == server.trading.exchange.positions.get(BTC, 0)
        if quantity is None:
            assert server.trading.exchange.positions == {}
    assert told == Decimal("0.1995")


def test_partial_fills_are_each_told_without_their_fee(crypto, server):
    exchange = server.trading.exchange
    exchange.fills = "on demand"
    cursor = crypto.poll(None)[1]
    crypto.submit([order("a", "0.3")])
    for part in ("0.1", "0.2"):
        exchange.fill("a", part)
        events, cursor = poll_until(crypto, cursor, fills)
        ((_, quantity, _, costs),) = fills(events)
        assert Decimal(quantity) == Decimal(part) * Decimal("0.9975")
        assert costs == pytest.approx(float(part) * 0.0025 * 60_000)


def test_a_process_that_was_killed_before_it_reported_the_fill_loses_no_fee(server):
    first = opened(server)
    _, cursor = first.poll(None)
    first.submit([order("a", "0.1")])
    first.close()
    with opened(server) as second:
        events, cursor = second.poll(cursor)
        assert [quantity for _, quantity, *_ in fills(events)] == ["0.09975"]
        second.submit([order("b", "0.1")])
        events, _ = poll_until(second, cursor, lambda events: ended(events, "b"))
        assert [quantity for _, quantity, *_ in fills(events)] == ["0.09975"]


def test_a_fill_is_told_once_the_position_shows_it(crypto, server):
    cursor = crypto.poll(None)[1]
    crypto.submit([order("a", "0.1")])
    fault = server.faults.answer("GET /v2/positions", 200, raw=b"[]")
    assert crypto.poll(cursor) == ([], cursor)
    assert fault.met == 1
    events, _ = poll_until(crypto, cursor, lambda events: ended(events, "a"))
    assert [quantity for _, quantity, *_ in fills(events)] == ["0.09975"]


def test_a_fill_that_no_position_explains_is_told_as_it_is(crypto, server, monkeypatch):
    monkeypatch.setattr(asset_fees, "_SHOWN_WITHIN_S", -1.0)
    cursor = crypto.poll(None)[1]
    crypto.submit([order("a", "0.1")])
    server.trading.exchange.positions[BTC] -= Decimal("0.05")  # sent to a wallet
    events, cursor = crypto.poll(cursor)
    assert [quantity for _, quantity, *_ in fills(events)] == ["0.1"]
    crypto.submit([order("b", "0.1")])
    events, _ = poll_until(crypto, cursor, lambda events: ended(events, "b"))
    assert [quantity for _, quantity, *_ in fills(events)] == ["0.09975"]


def test_fees_that_alpaca_posts_later_are_charged_once(crypto, server):
    cursor = crypto.poll(None)[1]
    crypto.submit([order("a", "0.1")])
    _, cursor = poll_until(crypto, cursor, lambda events: ended(events, "a"))
    crypto.submit([order("b", "-0.05")])
    _, cursor = poll_until(crypto, cursor, lambda events: ended(events, "b"))
    server.trading.exchange.post_fees()
    for source in ("_charges", "_activities"):
        if hasattr(crypto, source):
            getattr(crypto, source)._asked_at = -np.inf  # as a minute later
    charges = [each for each in crypto.poll(cursor)[0] if isinstance(each, Charge)]
    assert sorted(each.amount for each in charges) == [0.0, 7.5]  # coins were taken before; 0.25 % of 3,000 are dollars
    assert crypto.account().cash == 100_000 - 6_000 + 3_000 - 7.5


def test_crypto_is_not_sold_short_and_an_order_through_zero_closes(crypto, server):
    (short,) = crypto.submit([order("a", "-0.1")])
    assert (short.status, short.reason) == ("rejected", "it cannot be sold short at Alpaca")
    crypto.submit([order("b", "0.1")])
    (through,) = crypto.submit([order("c", "-0.3")])
    assert (through.status, through.filled_quantity) == ("filled", Decimal("-0.09975"))
    assert through.reason == "it cannot be sold short at Alpaca"
    assert server.trading.exchange.positions == {}


def test_what_is_below_the_smallest_order_is_not_sent_and_counts_as_flat(crypto, server):
    (small,) = crypto.submit([order("a", "0.000008")])
    assert (small.status, small.reason) == ("rejected", "0.000008 is below the smallest order at Alpaca")
    server.trading.exchange.positions = {BTC: Decimal("0.0000089")}
    assert crypto.quantities.open_positions(crypto.account().positions) == {}
    (closing,) = crypto.submit([order("b", "-0.0000089", closing=True)])
    assert (closing.status, closing.reason) == ("rejected", "there is no position to close")
    assert server.trading.exchange.orders == {}


def test_limits_lie_on_the_grid_of_the_pair_and_orders_wait_until_they_are_canceled(crypto, server):
    crypto.submit([order("a", "0.1", limit_price=59_999.977)])
    sent = server.trading.exchange.orders["a"].as_json()
    assert (sent["limit_price"], sent["time_in_force"], sent["symbol"]) == ("59999.97", "gtc", BTC)
    crypto.cancel(["a"])
    assert crypto.orders() == []


def test_the_market_never_closes(crypto):
    assert crypto.sessions(np.datetime64("2024-03-01"), np.datetime64("2024-03-04")) == []


def test_a_pair_without_its_slash_is_refused_at_the_start(server):
    server.trading.exchange.assets = {"BTCUSD": {"class": "crypto"}}
    with pytest.raises(UserError, match=r"BTCUSD cannot be traded .* pairs with the dollar as BTC/USD"):
        opened(server, symbols=["BTCUSD"])


@pytest.mark.parametrize(
    ("name", "value"), [("min_order_size", "none"), ("min_trade_increment", "-1"), ("price_increment", "0")]
)
def test_an_asset_that_cannot_be_read_is_named(server, name, value):
    server.trading.exchange.assets = {BTC: {name: value}}
    with pytest.raises(BrokerUnavailable, match=f"Alpaca's asset BTC/USD cannot be read: its {name} is .*{value}"):
        opened(server)


class TestAlpacaCrypto(ContractAtAlpaca, BrokerContract):
    symbol = BTC

    def open_broker(self) -> Broker:
        return opened(self.server)

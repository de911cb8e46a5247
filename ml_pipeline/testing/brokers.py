"""The tests that every broker must pass: derive a test class for a new broker, and give it an account to trade.

The tests do not depend on actual prices, only on the prices that the broker reports.
"""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import closing
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

from ml_pipeline.live.brokers.broker import ENDED, Broker, Charge, Fill, OrderRequest, OrderUpdate, QuantityRules


class BrokerContract(ABC):
    """Tests of a broker whose account begins with cash alone. Each test needs a new account."""

    symbol: str
    """A symbol that can be traded."""

    @abstractmethod
    def open_broker(self) -> Broker:
        """Return the broker; a second call returns another connection to the same account."""

    @abstractmethod
    def let_market_trade(self, broker: Broker) -> None:
        """Let time pass until a market order at the broker would be filled."""

    @pytest.fixture
    def broker(self) -> Iterator[Broker]:
        with closing(self.open_broker()) as broker:
            self.let_market_trade(broker)
            yield broker

    def buy(self, broker: Broker, name: str = "first", weight: float = 0.1) -> OrderRequest:
        """An order for a tenth of the equity or so."""
        return OrderRequest(f"contract-{name}", self.symbol, Decimal(2), weight)

    def all_events(self, broker: Broker) -> list[Any]:
        return broker.poll(None)[0]

    def test_an_account_begins_with_cash_alone(self, broker: Broker) -> None:
        account = broker.account()
        assert account.cash == account.equity > 0
        assert account.buying_power > 0
        assert dict(account.positions) == {}
        assert broker.orders() == []
        assert not any(isinstance(event, Fill) for event in self.all_events(broker))

    def test_submitting_answers_for_each_order_in_turn(self, broker: Broker) -> None:
        orders = [self.buy(broker, "one"), OrderRequest("contract-unknown", "NO-SUCH-SYMBOL", Decimal(1), 0.1)]
        taken, refused = broker.submit(orders)
        assert [taken.client_order_id, refused.client_order_id] == [order.client_order_id for order in orders]
        assert taken.status not in {"rejected", "canceled", "expired"}
        assert refused.status == "rejected"
        assert refused.reason
        assert broker.submit([]) == []

    def test_an_order_is_filled_once_however_often_it_is_sent(self, broker: Broker) -> None:
        order, cash = self.buy(broker), broker.account().cash
        broker.submit([order])
        broker.submit([order])
        self.let_market_trade(broker)
        (update,) = broker.submit([order])
        assert update.status == "filled"
        self.let_market_trade(broker)
        fills = [event for event in self.all_events(broker) if isinstance(event, Fill)]
        account = broker.account()
        bought = float(sum(fill.quantity for fill in fills))
        assert float(account.positions[self.symbol]) == pytest.approx(bought, rel=1e-12)
        assert float(update.filled_quantity) == pytest.approx(bought, rel=0.01)  # a fee may be in what was bought
        assert len({fill.fill_id for fill in fills}) == len(fills)
        assert {fill.client_order_id for fill in fills} == {order.client_order_id}
        paid = sum(float(fill.quantity) * fill.price + fill.costs for fill in fills)
        paid += sum(event.amount for event in self.all_events(broker) if isinstance(event, Charge))
        assert account.cash == pytest.approx(cash - paid)

    def test_a_closing_order_leaves_nothing(self, broker: Broker) -> None:
        broker.submit([self.buy(broker)._replace(quantity=Decimal("2.123456789"))])
        self.let_market_trade(broker)
        rules = broker.quantities or QuantityRules()
        held = rules.open_positions(broker.account().positions)
        broker.submit([OrderRequest("contract-close", self.symbol, -held[self.symbol], 0.0, closing=True)])
        self.let_market_trade(broker)
        assert rules.open_positions(broker.account().positions) == {}

    def test_orders_are_found_by_their_ids(self, broker: Broker) -> None:
        order = self.buy(broker)
        assert broker.orders([order.client_order_id]) == []
        broker.submit([order])
        self.let_market_trade(broker)
        found = broker.orders(["never-sent", order.client_order_id])
        assert [(update.client_order_id, update.symbol) for update in found] == [(order.client_order_id, self.symbol)]
        assert found[0].status in ENDED
        assert broker.orders() == []

    def test_a_canceled_order_is_not_filled(self, broker: Broker) -> None:
        order = self.buy(broker)._replace(limit_price=0.01)
        broker.submit([order])
        broker.cancel([order.client_order_id, "never-sent"])
        self.let_market_trade(broker)
        (update,) = broker.orders([order.client_order_id])
        assert (update.status, update.filled_quantity) == ("canceled", 0)
        broker.cancel([order.client_order_id])
        assert broker.orders([order.client_order_id]) == [update]
        assert dict(broker.account().positions) == {}
        ends = [e for e in self.all_events(broker) if isinstance(e, OrderUpdate) and e.status == "canceled"]
        assert [end.client_order_id for end in ends] == [order.client_order_id]

    def test_the_same_cursor_gives_the_same_events(self, broker: Broker) -> None:
        _, before = broker.poll(None)
        broker.submit([self.buy(broker)])
        self.let_market_trade(broker)
        events, after = broker.poll(before)
        assert any(isinstance(event, Fill) for event in events)
        assert broker.poll(before)[0][: len(events)] == events
        assert broker.poll(after) == ([], after)
        times = [event.time for event in events]
        assert all(isinstance(time, np.datetime64) and not np.isnat(time) for time in times)

    def test_another_connection_finds_the_account_as_it_was(self, broker: Broker) -> None:
        bought, waiting = self.buy(broker), self.buy(broker, "second", 0.2)
        broker.submit([bought])
        self.let_market_trade(broker)
        account, events = broker.account(), self.all_events(broker)
        broker.submit([waiting])
        broker.close()
        with closing(self.open_broker()) as again:
            assert again.account() == account
            assert self.all_events(again)[: len(events)] == events
            known = again.orders([bought.client_order_id, waiting.client_order_id])
            assert [update.client_order_id for update in known] == [bought.client_order_id, waiting.client_order_id]

    def test_its_clock_goes_forward_and_its_sessions_are_in_order(self, broker: Broker) -> None:
        before = broker.now()
        self.let_market_trade(broker)
        assert before <= broker.now()
        day = broker.now().astype("datetime64[D]")
        sessions = broker.sessions(day - np.timedelta64(7, "D"), day)
        assert all(session.opens < session.closes for session in sessions)
        assert all(one.closes <= other.opens for one, other in itertools.pairwise(sessions))

    def test_closing_twice_is_closing_once(self, broker: Broker) -> None:
        broker.close()
        broker.close()

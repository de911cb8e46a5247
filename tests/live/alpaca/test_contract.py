"""Alpaca's account keeps the contract of every broker."""

from contextlib import closing

import pytest

from ml_pipeline.live.brokers.broker import Broker
from ml_pipeline.testing.brokers import BrokerContract
from tests.live.alpaca.conftest import config_for


class ContractAtAlpaca:
    """What is done at the stand-in, and a test that differs there."""

    symbol: str

    @pytest.fixture(autouse=True)
    def at_the_server(self, server):
        self.server = server
        server.trading.exchange.fills = "on demand"
        server.trading.exchange.assets = {"NO-SUCH-SYMBOL": {"missing": True}}

    def let_market_trade(self, broker: Broker) -> None:
        self.server.trading.exchange.close_bar({self.symbol: (100, 101, 99, 100)})

    def test_another_connection_finds_the_account_as_it_was(self, broker: Broker) -> None:
        """As the contract has it, but for what Alpaca adds: orders that wait hold buying power, and what happened
        before a session is not told without its cursor, since other sessions may have traded in the account."""
        _, before = broker.poll(None)
        bought, waiting = self.buy(broker), self.buy(broker, "second", 0.2)
        broker.submit([bought])
        self.let_market_trade(broker)
        account, events = broker.account(), broker.poll(before)[0]
        broker.submit([waiting])
        broker.close()
        with closing(self.open_broker()) as again:
            assert again.account()._replace(buying_power=0) == account._replace(buying_power=0)
            assert again.poll(before)[0][: len(events)] == events
            assert again.poll(None)[0] != []
            known = again.orders([bought.client_order_id, waiting.client_order_id])
            assert [update.client_order_id for update in known] == [bought.client_order_id, waiting.client_order_id]
        with closing(self.open_broker()) as another_session:
            assert another_session.poll(None)[0] == []


class TestAlpacaBroker(ContractAtAlpaca, BrokerContract):
    symbol = "AAPL"

    def open_broker(self) -> Broker:
        from ml_pipeline.live.alpaca.broker import open_alpaca

        return open_alpaca(config_for(self.server))

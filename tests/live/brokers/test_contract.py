from contextlib import closing

import numpy as np
import pytest

from ml_pipeline.live.brokers.faults import SimulatedFaults
from ml_pipeline.live.brokers.simulated import SimulatedBroker
from ml_pipeline.testing.brokers import BrokerContract
from ml_pipeline.trading.accounts.rules import TradingRules
from ml_pipeline.trading.market.bar_set import BarSet

MINUTE = np.timedelta64(1, "m")
START = np.datetime64("2024-03-01T09:30", "ns")


def minute_bar(t, close=100.0, opened=None, *, symbols=1):
    """One bar of each symbol, of the minute with this number."""
    prices = np.full(symbols, close)
    opens = prices if opened is None else np.full(symbols, opened)
    return BarSet(
        time=START + t * MINUTE,
        closed_at=START + (t + 1) * MINUTE,
        open=opens,
        high=np.maximum(opens, prices),
        low=np.minimum(opens, prices),
        close=prices,
        volume=np.ones(symbols),
        fillable=np.ones(symbols, dtype=bool),
    )


class TestSimulatedBroker(BrokerContract):
    symbol = "ABC"
    faults = SimulatedFaults()

    @pytest.fixture(autouse=True)
    def store(self, tmp_path):
        self.path, self.bars = tmp_path / "account.sqlite", 0

    def open_broker(self):
        return SimulatedBroker(
            ("ABC",),
            TradingRules("target_weights", fee_bps=2),
            periods_per_year=252 * 390,
            store=self.path,
            bar_length=MINUTE,
            faults=self.faults,
        )

    def let_market_trade(self, broker):
        broker.market_closed_bar(minute_bar(self.bars, 100.0 + self.bars))
        self.bars += 1


class TestSimulatedBrokerWithLatency(TestSimulatedBroker):
    """Orders arrive within the next bar."""

    faults = SimulatedFaults(sim_latency_s=20, sim_latency_jitter_s=30)


def test_a_bar_that_comes_again_changes_nothing(tmp_path):
    contract = TestSimulatedBroker()
    contract.path, contract.bars = tmp_path / "account.sqlite", 0
    with closing(contract.open_broker()) as broker:
        contract.let_market_trade(broker)
        broker.submit([contract.buy(broker)])
        broker.market_closed_bar(minute_bar(1, 101.0))
        account, events = broker.account(), broker.poll(None)
        for again in (minute_bar(1, 101.0), minute_bar(1, 55.0), minute_bar(0, 55.0)):
            broker.market_closed_bar(again)
        assert broker.account() == account
        assert broker.poll(None) == events

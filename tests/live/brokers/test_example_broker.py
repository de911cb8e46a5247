"""The broker in examples/ passes the tests of a broker."""

from pathlib import Path

import pytest

from ml_pipeline.testing.brokers import BrokerContract
from tests.live.brokers.test_contract import minute_bar

EXAMPLE = Path(__file__).parents[3] / "examples" / "own_broker.py"


class TestTheBrokerOfTheExamples(BrokerContract):
    symbol = "BTC"

    @pytest.fixture(autouse=True)
    def account(self):
        self.names = {}
        exec(compile(EXAMPLE.read_text(), str(EXAMPLE), "exec"), self.names)
        self.book, self.bars = {}, 0

    def open_broker(self):
        return self.names["NextCloseBroker"](["BTC"], None, None, self.book)

    def let_market_trade(self, broker):
        broker.market_closed_bar(minute_bar(self.bars, 100.0 + self.bars))
        self.bars += 1

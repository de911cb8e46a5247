"""The broker that docs/brokers.md shows keeps the contract."""

import re
from pathlib import Path

import pytest

from ml_pipeline.testing.brokers import BrokerContract
from tests.live.brokers.test_contract import minute_bar

PAGE = Path(__file__).parents[3] / "docs" / "brokers.md"


class TestTheBrokerOfTheDocs(BrokerContract):
    symbol = "BTC"

    @pytest.fixture(autouse=True)
    def account(self):
        (source,) = [
            b for b in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S) if "(BrokerContract)" not in b
        ]
        self.names = {}
        exec(compile(source, str(PAGE), "exec"), self.names)
        self.book, self.bars = {}, 0

    def open_broker(self):
        return self.names["NextCloseBroker"](["BTC"], None, None, self.book)

    def let_market_trade(self, broker):
        broker.market_closed_bar(minute_bar(self.bars, 100.0 + self.bars))
        self.bars += 1

"""The orders of a session by bar and asset, and what became of each."""

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ml_pipeline.live.brokers.broker import Fill, OrderUpdate
from ml_pipeline.live.reconciliation.backtest import SessionBacktest
from ml_pipeline.live.reconciliation.recorded_session import RecordedSession, SentOrder


class Place(NamedTuple):
    """The bar of a decision, counted from the session's first, and the asset."""

    bar: int
    asset: int


class OrderFills(NamedTuple):
    """All fills of one order as one: signed quantity, mean price, costs, and the time of the last."""

    quantity: float
    price: float
    costs: float
    time: np.datetime64

    @classmethod
    def of(cls, fills: Sequence[Fill]) -> "OrderFills":
        if len(fills) == 1:
            return cls(fills[0].quantity, fills[0].price, fills[0].costs, fills[0].time)
        quantity = sum(fill.quantity for fill in fills)
        value = sum(fill.quantity * fill.price for fill in fills)
        price = value / quantity if quantity else fills[0].price
        return cls(quantity, price, sum(fill.costs for fill in fills), max(fill.time for fill in fills))


class RecordedOrders:
    """orders: by place; of several at one place, the last. fills: of those. updates: the last one by order."""

    def __init__(self, record: RecordedSession, backtest: SessionBacktest) -> None:
        self._bar_of = {time: k for k, time in enumerate(backtest.times.tolist())}
        self._asset_of = {symbol: a for a, symbol in enumerate(record.market.symbols)}
        fills: dict[str, list[Fill]] = defaultdict(list)
        for fill in record.fills:
            if not fill.exit:
                fills[fill.client_order_id].append(fill)
        self.updates: dict[str, OrderUpdate] = {update.client_order_id: update for update in record.updates}
        self.orders: dict[Place, SentOrder] = {}
        self.fills: dict[Place, OrderFills] = {}
        for order in record.orders:
            if (place := self.place(order.bar, order.symbol)) is None:
                continue
            self.orders[place] = order
            if own := fills.get(order.client_order_id):
                self.fills[place] = OrderFills.of(own)

    def bar(self, time: np.datetime64) -> int | None:
        """The bar of the session with this time; None where it is none of its bars."""
        return self._bar_of.get(time.astype("datetime64[ns]").astype(np.int64).item())

    def place(self, time: np.datetime64, symbol: str) -> Place | None:
        bar, asset = self.bar(time), self._asset_of.get(symbol)
        return None if bar is None or asset is None else Place(bar, asset)

    def asset(self, symbol: str) -> int | None:
        return self._asset_of.get(symbol)

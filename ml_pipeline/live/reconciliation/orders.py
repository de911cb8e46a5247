"""The orders of a session by bar and asset: their outcomes, and the fills that the backtest assumes."""

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ml_pipeline.live.brokers.broker import Fill, OrderUpdate
from ml_pipeline.live.reconciliation.backtest import SessionBacktest
from ml_pipeline.live.reconciliation.recorded import RecordedSession, SentOrder
from ml_pipeline.trading.accounts.ledger import Ledger
from ml_pipeline.trading.accounts.orders import NUMPY_OPS, PLAIN_OPS, fill_cost, order_steps
from ml_pipeline.trading.accounts.within_bar import within_steps
from ml_pipeline.trading.market.data import FloatArray

_STEPS, _ATTEMPTS = order_steps(NUMPY_OPS), within_steps(PLAIN_OPS)


class Place(NamedTuple):
    """The bar of a decision, counted from the session's first, and the asset."""

    bar: int
    asset: int


class OrderFills(NamedTuple):
    """All fills of one order combined: signed quantity, mean price, costs, and the time of the last."""

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
    """orders: by place; the last one if there are several. fills: of these orders. updates: the last one by order."""

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
        """The bar of the session with this time, or None."""
        return self._bar_of.get(time.astype("datetime64[ns]").astype(np.int64).item())

    def place(self, time: np.datetime64, symbol: str) -> Place | None:
        bar, asset = self.bar(time), self._asset_of.get(symbol)
        return None if bar is None or asset is None else Place(bar, asset)

    def asset(self, symbol: str) -> int | None:
        return self._asset_of.get(symbol)


class AssumedFills:
    """The fills that the backtest assumes. Bars are counted from the session's first one."""

    def __init__(self, record: RecordedSession, backtest: SessionBacktest) -> None:
        market, part = record.market, slice(backtest.first, backtest.stop)
        self._rules = record.rules
        self._terms = record.rules.terms(market.periods_per_year)
        self._opens, self._closes = market.open[part], market.close[part]
        self._half_spread = None if market.half_spread is None else market.half_spread[part]
        self._days = record.ledger.get("interest_days")
        self._opened_at = market.timing.opens(backtest.times)
        self._closed_at = self._opened_at + np.timedelta64(market.timing.length, "ns")

    def price(self, bar: int, asset: int, quantity: float) -> float:
        """Price of an order decided at `bar`: the next open, or the limit of a limit order if that is better."""
        if self._rules.fill_at == "close":
            return float(self._closes[bar, asset])
        opened = float(self._opens[bar + 1, asset])
        if self._rules.limit_bps is None:
            return opened
        decided, inf = float(self._closes[bar, asset]), math.inf
        _, price = _ATTEMPTS.limit_order(quantity, 0.0, 0.0, decided, opened, -inf, inf, False, self._terms)
        return float(price)

    def close(self, bar: int, asset: int) -> float:
        return float(self._closes[bar, asset])

    def half_spread(self, bar: int, asset: int) -> float:
        return 0.0 if self._half_spread is None else float(self._half_spread[bar, asset])

    def costs(self, bar: int, asset: int, quantity: float, price: float) -> float:
        terms = self._terms
        rate = terms.buy_rate if quantity > 0 else terms.sell_rate
        return fill_cost(abs(quantity) * price, rate + self.half_spread(bar, asset), terms.fixed_fee)

    def interest(self, rows: Ledger) -> FloatArray:
        """Borrowing and financing costs of each row by the terms, for the session's positions, (n,)."""
        terms, positions = self._terms, [rows[name] for name in rows if name.startswith("position_")]
        values = np.column_stack(positions) * np.nan_to_num(self._closes)
        days = rows.get("interest_days", np.ones(len(values)))
        fee = _STEPS.borrowing_fee(values, terms.borrow_rate).sum(axis=1) * days
        if terms.maintenance > 0:
            # The cash of a row is after its interest: cash before = cash + fee + financing.
            rate = terms.financing_rate * days
            before = rows["cash"] + fee
            fee = fee + np.where(before < 0, -before * rate / (1 + rate), 0.0)
        fee[0] = 0.0
        return np.asarray(fee)

    def delay_s(self, bar: int, time: np.datetime64) -> float:
        """Seconds from the backtest's fill of an order of this bar to the actual fill."""
        at = self._closed_at[bar] if self._rules.fill_at == "close" else self._opened_at[bar + 1]
        return float((time - at) / np.timedelta64(1, "s"))

    def since_decision_s(self, bar: int, time: np.datetime64) -> float:
        """Seconds from the close of the decision's bar to the fill."""
        return float((time - self._closed_at[bar]) / np.timedelta64(1, "s"))

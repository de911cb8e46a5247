"""What the backtest assumes of fills, costs and interest."""

import math

import numpy as np

from ml_pipeline.live.reconciliation.backtest import SessionBacktest
from ml_pipeline.live.reconciliation.recorded_session import RecordedSession
from ml_pipeline.trading.accounts.ledger import Ledger
from ml_pipeline.trading.accounts.orders import NUMPY_OPS, PLAIN_OPS, fill_cost, order_steps
from ml_pipeline.trading.accounts.within_bar import within_steps
from ml_pipeline.trading.market.data import FloatArray

_STEPS, _ATTEMPTS = order_steps(NUMPY_OPS), within_steps(PLAIN_OPS)


class AssumedFills:
    """Bars are counted from the session's first one."""

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
        """Of an order that is decided at `bar`: the next open or, of a limit order, its limit if that is better."""
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
        """Borrowing and financing of each row by the terms, on what the session held, (n,)."""
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
        """From the moment that the backtest fills an order of this bar to the fill."""
        at = self._closed_at[bar] if self._rules.fill_at == "close" else self._opened_at[bar + 1]
        return float((time - at) / np.timedelta64(1, "s"))

    def since_decision_s(self, bar: int, time: np.datetime64) -> float:
        """From the close of the bar that was decided on to the fill."""
        return float((time - self._closed_at[bar]) / np.timedelta64(1, "s"))

"""Limits of orders that open or enlarge a position: impossible numbers, size, position, gross exposure, and rate."""

import math
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np

from ml_pipeline.live.brokers.broker import OrderRequest
from ml_pipeline.live.guards.exposure import ROUNDING, Exposure
from ml_pipeline.live.guards.guard import Guard
from ml_pipeline.live.guards.verdict import Refusal

_MINUTE = np.timedelta64(60, "s")


def impossible_order(order: OrderRequest, account: Exposure, symbols: frozenset[str]) -> Refusal | None:
    """Why an order cannot be meant, even one that closes a position: NaN, infinite, or of a symbol not traded here."""
    name = "impossible_order"
    if order.symbol not in symbols:
        sentence = f'The order of "{order.symbol}" is refused: this session does not trade it.'
        return Refusal(name, order.symbol, math.nan, math.nan, sentence)
    for what, value in (("quantity", order.quantity), ("weight", order.weight), ("limit price", order.limit_price)):
        if value is not None and not math.isfinite(value):
            sentence = f"The order of {order.symbol} is refused: its {what} is {value}."
            return Refusal(name, order.symbol, value, math.nan, sentence)
    if order.limit_price is not None and order.limit_price <= 0.0:
        sentence = f"The order of {order.symbol} is refused: its limit price is {order.limit_price:g}."
        return Refusal(name, order.symbol, order.limit_price, 0.0, sentence)
    # One of quantity 0 is judged by its weight, and the broker that sizes it finds no price either.
    if order.quantity and not account.knows(order.symbol) and not closes_position(order, account):
        sentence = (
            f"The order of {order.symbol} is refused: its last price is {account.price(order.symbol):g}, so that "
            "nobody knows what it is worth."
        )
        return Refusal(name, order.symbol, account.price(order.symbol), math.nan, sentence)
    return None


def closes_position(order: OrderRequest, account: Exposure) -> bool:
    """Whether an order that says that it closes a position does so: no guard then stands in its way."""
    return order.closing and order.weight == 0.0 and (order.quantity == 0.0 or account.reduces(order))


class LargestPosition(Guard):
    """The largest position in one symbol that an order may lead to, in money or as a fraction of equity."""

    name = "guard_position"

    def __init__(self, *, fraction: float | None = None, money: float | None = None) -> None:
        self._fraction = fraction
        self._money = money

    def on_order(self, order: OrderRequest, account: Exposure, now: np.datetime64) -> Refusal | None:
        what = f"The order of {_shown(order)} is refused: the position would be"
        return _beyond(
            self.name, what, order, account.position_after(order), account, fraction=self._fraction, money=self._money
        )


class OrderSize(Guard):
    """The largest order, in money or as a fraction of equity."""

    name = "guard_order"

    def __init__(self, *, fraction: float | None = None, money: float | None = None) -> None:
        self._fraction = fraction
        self._money = money

    def on_order(self, order: OrderRequest, account: Exposure, now: np.datetime64) -> Refusal | None:
        what = f"The order of {_shown(order)} is refused: it is"
        return _beyond(
            self.name, what, order, account.order_value(order), account, fraction=self._fraction, money=self._money
        )


class GrossExposure(Guard):
    """The largest sum of all positions, long and short, that the orders of one decision may lead to together."""

    name = "guard_gross"

    def __init__(self, fraction: float) -> None:
        self._fraction = fraction

    def on_order(self, order: OrderRequest, account: Exposure, now: np.datetime64) -> Refusal | None:
        what = f"The order of {_shown(order)} is refused: all positions together would be"
        return _beyond(self.name, what, order, account.gross_after(order), account, fraction=self._fraction)


class OrderRate(Guard):
    """The largest number of orders within 60 seconds. Orders that reduce positions count, and are never refused."""

    name = "guard_orders_per_minute"

    def __init__(self, most: int) -> None:
        self._most = most
        self._sent: deque[np.datetime64] = deque()

    def on_order(self, order: OrderRequest, account: Exposure, now: np.datetime64) -> Refusal | None:
        self._forget_before(now)
        if len(self._sent) < self._most:
            return None
        sentence = (
            f"The order of {_shown(order)} is refused: it would be number {len(self._sent) + 1:,} within a minute, and "
            f"guard_orders_per_minute allows {self._most:,}."
        )
        return Refusal(self.name, order.symbol, float(len(self._sent) + 1), float(self._most), sentence)

    def note_sent(self, order: OrderRequest, now: np.datetime64) -> None:
        self._forget_before(now)
        self._sent.append(now)

    def _forget_before(self, now: np.datetime64) -> None:
        # A clock that was set back leaves times that have not come yet: they count until they are a minute old.
        while self._sent and self._sent[0] <= now - _MINUTE:
            self._sent.popleft()

    def state(self) -> dict[str, Any]:
        return {"sent": [str(time.astype("datetime64[ns]")) for time in self._sent]}

    def set_state(self, state: Mapping[str, Any]) -> None:
        self._sent = deque(np.datetime64(time, "ns") for time in state["sent"])


def _shown(order: OrderRequest) -> str:
    return f"{order.quantity:+,.10g} {order.symbol}" if order.quantity else f"{order.weight:.4g} in {order.symbol}"


def _beyond(
    name: str,
    what: str,
    order: OrderRequest,
    value: float,
    account: Exposure,
    *,
    fraction: float | None = None,
    money: float | None = None,
) -> Refusal | None:
    """A refusal where `value`, in money, is not within a limit; NaN never is."""
    equity = account.equity
    if fraction is not None and not value <= fraction * equity * (1 + ROUNDING):
        part = value / equity if equity > 0.0 else math.inf
        sentence = f"{what} {value:,.2f}, {part:.6g} of the equity of {equity:,.2f}, and {name} allows {fraction:g}."
        return Refusal(name, order.symbol, part, fraction, sentence)
    if money is not None and not value <= money * (1 + ROUNDING):
        sentence = f"{what} {value:,.2f} in money, and {name}_money allows {money:,.2f}."
        return Refusal(f"{name}_money", order.symbol, value, money, sentence)
    return None

"""The arithmetic of one order: from a target weight to what is filled, and what that costs. Pure, no clock, no I/O.

N accounts. Every quantity of an asset is a float (one account), or an array or tensor (N,) of that quantity in N
accounts. What differs between those, choosing and bounding, is handed in as `Ops`.

A function here sees a single asset; `execution` puts the assets of an account together, in the order that it states.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

# A smaller part of equity than this is rounding, not an order.
SMALLEST_ORDER = 1e-9
# A whole number of lots may fall short of it by rounding: 0.3 is three lots of 0.1.
_LOT_ROUNDING = 1e-9
_TINY = 1e-300

Number = Any  # a float, or an array or tensor (N,)
Compiled = Callable[[Any], Any]
"""Passes a function through a compiler, or returns it as it is."""


class Ops(NamedTuple):
    """What floats, arrays and tensors write differently; the first operand is never the plain number among others."""

    where: Callable[[Any, Any, Any], Any]
    least: Callable[[Any, Any], Any]
    greatest: Callable[[Any, Any], Any]
    floor: Callable[[Any], Any]
    log: Callable[[Any], Any]
    sqrt: Callable[[Any], Any]


class Terms(NamedTuple):
    """Costs and limits of an account; the rates may be arrays (N,), one for each account, the rest are floats.

    buy_rate, sell_rate: costs as a part of traded value (5 bps are 0.0005), beside the half-spread of the bar.
    fixed_fee: money for each filled order. borrow_rate: part of a short holding's value, for each bar.
    lowest, highest: target weights of one asset. max_gross: their absolute sum. max_trade: largest order, as a part of
    equity, or inf. reserve: part of equity that buying leaves in cash. smallest_order: money. lot: quantity, or 0.
    relative: 1 where weights are changes of weight in units of max_trade, else 0.
    """

    buy_rate: Number
    sell_rate: Number
    fixed_fee: float = 0.0
    borrow_rate: float = 0.0
    lowest: float = -1.0
    highest: float = 1.0
    max_gross: float = 1.0
    max_trade: float = math.inf
    reserve: float = 0.0
    smallest_order: float = 0.0
    lot: float = 0.0
    relative: float = 0.0


class OrderSteps(NamedTuple):
    """The steps of one order, for one kind of number; see the functions of these names below."""

    target: Callable[..., Number]
    size: Callable[..., Number]
    sell: Callable[..., tuple[Number, Number, Number]]
    need: Callable[..., tuple[Number, Number]]
    share: Callable[..., Number]
    buy: Callable[..., tuple[Number, Number, Number]]


def order_steps(ops: Ops, compiled: Compiled) -> OrderSteps:
    """The steps for the kind of number that `ops` is of, each passed through `compiled`.

    price: 0 before an asset is listed. half_spread: part of the price, beside the rates of `terms`. equity: of the
    account at the prices that orders are filled at. smallest: money, below which an order is none.
    """
    where, least, greatest, floor = ops.where, ops.least, ops.greatest, ops.floor

    @compiled
    def target(weight: Number, holding: Number, price: Number, equity: Number, terms: Terms) -> Number:
        """The weight that the position is to have, within its limits."""
        if terms.relative:
            weight = holding * price / greatest(equity, _TINY) + weight * terms.max_trade
        return greatest(least(weight, terms.highest), terms.lowest)

    @compiled
    def size(  # noqa: PLR0917  # positional, in the hot path
        value: Number, may_trade: Any, holding: Number, price: Number, equity: Number, smallest: Number, terms: Terms
    ) -> Number:
        """The signed quantity to order for a position worth `value`; 0 where it may not trade."""
        price = where(price > 0.0, price, 1.0)
        order = value / price - holding
        if terms.max_trade < math.inf:
            largest = terms.max_trade * equity / price
            order = greatest(least(order, largest), -largest)
        if terms.lot > 0.0:
            lots = floor(abs(order) / terms.lot + _LOT_ROUNDING) * terms.lot
            order = where(order < 0.0, -lots, lots)
        return where(may_trade & (abs(order) * price > smallest), order, 0.0)

    @compiled
    def sell(order: Number, price: Number, half_spread: Number, terms: Terms) -> tuple[Number, Number, Number]:
        """(quantity filled, cash it brings, costs out of that): none of a buy, nor of what does not pay its costs."""
        value = order * price
        cost = terms.fixed_fee - value * (terms.sell_rate + half_spread)
        sold = (value < 0.0) & (-value > cost)
        return where(sold, order, 0.0), where(sold, -value - cost, 0.0), where(sold, cost, 0.0)

    @compiled
    def need(order: Number, price: Number, half_spread: Number, terms: Terms) -> tuple[Number, Number]:
        """(cash that the whole order takes with its rates, the fixed fee it takes besides): nothing for a sale."""
        value = greatest(order * price, 0.0)
        fee = value * 0.0
        if terms.fixed_fee > 0.0:
            fee = where(value > 0.0, fee + terms.fixed_fee, 0.0)
        return value * (1.0 + terms.buy_rate + half_spread), fee

    @compiled
    def share(cash: Number, needed: Number, fees: Number, equity: Number, terms: Terms) -> Number:
        """The part of all buys that the cash pays for, fixed fees and reserve set aside."""
        available = greatest(cash - terms.reserve * equity - fees, 0.0)
        return available / greatest(greatest(needed, available), _TINY)

    @compiled
    def buy(  # noqa: PLR0917  # positional, in the hot path
        order: Number, part: Number, price: Number, half_spread: Number, smallest: Number, terms: Terms
    ) -> tuple[Number, Number, Number]:
        """(quantity filled of `part` of the order, its value and costs, the costs): nothing of a sale."""
        bought = greatest(order, 0.0) * part
        if terms.lot > 0.0:
            bought = floor(bought / terms.lot + _LOT_ROUNDING) * terms.lot
        value = bought * price
        is_order = value > smallest
        value = where(is_order, value, 0.0)
        cost = where(is_order, value * (terms.buy_rate + half_spread) + terms.fixed_fee, 0.0)
        return where(is_order, bought, 0.0), value + cost, cost

    return OrderSteps(target, size, sell, need, share, buy)

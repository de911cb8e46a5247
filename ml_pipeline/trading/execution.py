"""The accounting kernel: target weights -> orders -> fills -> equity. Pure arithmetic in float64, no clock, no I/O.

A assets. Written as loops over sequences of numbers so that one description serves plain floats (fastest for a few
assets without a compiler), rows of arrays, and a compiler. Scratch rows that a function fills are its last argument.

Rules: an order is sized at the price it is filled at. Sells are filled first; then all buys are scaled by
min(1, cash / needed). A sale may open a short; its proceeds are cash. So cash never goes below zero: no money is
borrowed, and a short is covered by its own proceeds and the equity behind it, gross exposure being at most 1 when it is
ordered (prices may carry it beyond; nothing is sold off until ruin).
"""

import math
from collections.abc import MutableSequence, Sequence

# A smaller part of equity than this is rounding, not an order.
SMALLEST_ORDER = 1e-9
# An account that has lost all but this part of its starting equity is ruined: shorts can lose more than there is.
RUIN_FRACTION = 0.01
# What counts as equity in a logarithm when a ruined account owes money.
_SMALLEST_EQUITY_FRACTION = 1e-6


def equity_of(cash: float, holdings: Sequence[float], prices: Sequence[float]) -> float:
    """Cash and the value of what is held, short holdings being negative.

    >>> equity_of(150.0, [1.0, -2.0], [100.0, 50.0])
    150.0
    """
    equity = cash
    for i in range(len(holdings)):
        equity += holdings[i] * prices[i]
    return equity


def size_orders(  # noqa: PLR0917  # positional, in the hot path
    weights: Sequence[float],
    may_trade: Sequence[bool],
    cash: float,
    holdings: Sequence[float],
    prices: Sequence[float],
    orders: MutableSequence[float],
) -> None:
    """Write into `orders` the signed quantities that bring each asset to its weight of the equity at `prices`.

    weights: fractions of equity, negative for short; their absolute sum beyond 1 is scaled down to 1.
    may_trade: where False, the order is zero and what is held is kept.
    """
    gross = 0.0
    for i in range(len(weights)):
        gross += abs(weights[i])
    equity = max(equity_of(cash, holdings, prices), 0.0)  # an account that owes money only closes what it has
    to_invest = equity / gross if gross > 1.0 else equity
    smallest = SMALLEST_ORDER * equity
    for i in range(len(weights)):
        orders[i] = 0.0
        if may_trade[i]:
            order = weights[i] * to_invest / prices[i] - holdings[i]
            if abs(order) * prices[i] > smallest:
                orders[i] = order


def fill_orders(
    orders: Sequence[float],
    cash: float,
    prices: Sequence[float],
    cost_rate: float,
    filled: MutableSequence[float],
) -> tuple[float, float]:
    """Fill the orders, signed quantities, at `prices`; write what was filled into `filled`.

    cost_rate: costs as a part of traded value (5 bps are 0.0005), less than 1.
    Returns (cash afterwards, costs paid), costs being out of the cash already.

    >>> filled = [0.0, 0.0]
    >>> fill_orders([-1.0, 4.0], 10.0, [90.0, 50.0], 0.0, filled)  # 100 of cash buys 2 of the 4
    (0.0, 0.0)
    >>> filled
    [-1.0, 2.0]
    """
    costs = 0.0
    to_buy = 0.0
    for i in range(len(orders)):
        value = orders[i] * prices[i]
        if value < 0.0:
            cash -= value * (1.0 - cost_rate)
            costs -= value * cost_rate
            filled[i] = orders[i]
        else:
            to_buy += value
    needed = to_buy * (1.0 + cost_rate)
    scale = 1.0 if needed <= cash else cash / needed
    for i in range(len(orders)):
        if orders[i] >= 0.0:
            filled[i] = orders[i] * scale
    costs += to_buy * scale * cost_rate
    cash = cash - needed if scale == 1.0 else 0.0
    return cash, costs


def log_return(equity_before: float, equity_after: float, start_equity: float) -> float:
    """ln(equity_after / equity_before): summed over an episode, the logarithm of what it made of its equity.

    An account that owes money (a short that lost more than there was) counts as one millionth of its start.
    """
    smallest = _SMALLEST_EQUITY_FRACTION * start_equity
    return math.log(max(equity_after, smallest) / equity_before)


def is_ruined(equity: float, start_equity: float) -> bool:
    return equity <= RUIN_FRACTION * start_equity

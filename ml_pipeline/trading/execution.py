"""The accounting kernel: target weights -> orders -> fills -> equity. Pure arithmetic, no clock, no I/O.

A assets, N accounts. One description serves every environment: it loops over assets, and each quantity of an asset is a
float (one account), or an array or tensor (N,) of that quantity in N accounts. What differs between those, choosing and
bounding, is handed in as `Ops`; `PLAIN` is the kernel of floats, `array_ops` those of arrays, `compiled` a compiler's.

What happens to an order, in this order:
1. A target weight is bounded to what a position may be; where the absolute weights sum to more than `max_gross`, all
   are scaled down to it. The order is what brings the holding to its weight, at the price it is filled at.
2. An order larger than `max_trade` is cut to it, then rounded down to whole lots; below `smallest_order` it is none.
3. Sells are filled first; one that would not bring its own costs is left.
4. Then all buys are scaled by min(1, cash / needed), `reserve` being kept, and rounded and dropped as in 2.
5. Short holdings pay for being borrowed, at the bar's close.

So buying never takes cash below zero: no money is borrowed, and a short is covered by its own proceeds and the equity
behind it (prices may carry gross exposure beyond its limit; nothing is sold off until ruin). A borrowing fee that finds
no cash is owed: cash is below zero by it, and nothing is bought before a sale has paid it.
"""

import math
from collections.abc import Callable, MutableSequence, Sequence
from typing import Any, NamedTuple

# A smaller part of equity than this is rounding, not an order.
SMALLEST_ORDER = 1e-9
# An account that has lost all but this part of its starting equity is ruined: shorts can lose more than there is.
RUIN_FRACTION = 0.01
# A whole number of lots may fall short of it by rounding: 0.3 is three lots of 0.1.
_LOT_ROUNDING = 1e-9
_TINY = 1e-300

Number = Any  # a float, or an array or tensor (N,)


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


class Kernel(NamedTuple):
    """The arithmetic for one kind of number: `step` is a whole bar, the other two are its parts."""

    size_orders: Callable[..., Number]
    fill_orders: Callable[..., tuple[Number, Number]]
    step: Callable[..., tuple[Number, Number, Number]]


def make_kernel(  # noqa: PLR0915  # three functions, which a compiler must see together
    ops: Ops, compiled: Callable[[Any], Any] = lambda function: function
) -> Kernel:
    """The kernel for the kind of number that `ops` is of, each function passed through `compiled`."""
    where, least, greatest, floor = ops.where, ops.least, ops.greatest, ops.floor

    @compiled
    def size_orders(  # noqa: PLR0917  # positional, in the hot path
        weights: Sequence[Number],
        may_trade: Sequence[Any],
        cash: Number,
        holdings: Sequence[Number],
        prices: Sequence[Number],
        terms: Terms,
        orders: MutableSequence[Number],
    ) -> Number:
        """Write into `orders` the signed quantities that are to be filled; return the equity at `prices`.

        may_trade: where False, the order is zero. prices: 0 before an asset is listed.
        """
        n_assets = len(holdings)
        lowest, highest, lot = terms.lowest, terms.highest, terms.lot
        equity = cash
        for i in range(n_assets):
            equity = equity + holdings[i] * prices[i]
        equity = greatest(equity, 0.0)  # an account that owes money only closes what it has
        gross = equity * 0.0
        for i in range(n_assets):
            weight = weights[i]
            if terms.relative:
                weight = holdings[i] * prices[i] / greatest(equity, _TINY) + weight * terms.max_trade
            orders[i] = greatest(least(weight, highest), lowest)
            gross = gross + abs(orders[i])
        to_invest = equity * (terms.max_gross / greatest(gross, terms.max_gross))
        smallest = greatest(equity * SMALLEST_ORDER, terms.smallest_order)
        for i in range(n_assets):
            price = where(prices[i] > 0.0, prices[i], 1.0)
            order = orders[i] * to_invest / price - holdings[i]
            if terms.max_trade < math.inf:
                largest = terms.max_trade * equity / price
                order = greatest(least(order, largest), -largest)
            if lot > 0.0:
                lots = floor(abs(order) / lot + _LOT_ROUNDING) * lot
                order = where(order < 0.0, -lots, lots)
            orders[i] = where(may_trade[i] & (abs(order) * price > smallest), order, 0.0)
        return equity

    @compiled
    def fill_orders(  # noqa: PLR0917  # positional, in the hot path
        orders: Sequence[Number],
        cash: Number,
        equity: Number,
        prices: Sequence[Number],
        half_spreads: Sequence[Number],
        terms: Terms,
        filled: MutableSequence[Number],
    ) -> tuple[Number, Number]:
        """Fill the orders, signed quantities, at `prices`; write what was filled into `filled`.

        equity: before the orders. half_spreads: parts of the price, beside the rates of `terms`.
        Returns (cash afterwards, costs paid), costs being out of the cash already.

        >>> filled = [0.0, 0.0]  # 100 of cash buys 2 of the 4
        >>> PLAIN.fill_orders([-1.0, 4.0], 10.0, 100.0, [90.0, 50.0], [0.0, 0.0], Terms(0.0, 0.0), filled)
        (0.0, 0.0)
        >>> filled
        [-1.0, 2.0]
        """
        buy_rate, sell_rate, fixed_fee, lot = terms.buy_rate, terms.sell_rate, terms.fixed_fee, terms.lot
        zero = cash * 0.0
        costs, needed, fixed_fees = zero, zero, zero
        for i in range(len(orders)):
            value = orders[i] * prices[i]
            cost = fixed_fee - value * (sell_rate + half_spreads[i])
            sold = (value < 0.0) & (-value > cost)
            cash = cash + where(sold, -value - cost, 0.0)
            costs = costs + where(sold, cost, 0.0)
            filled[i] = where(sold, orders[i], 0.0)
            needed = needed + greatest(value, 0.0) * (1.0 + buy_rate + half_spreads[i])
            if fixed_fee > 0.0:
                fixed_fees = fixed_fees + where(value > 0.0, zero + fixed_fee, 0.0)
        available = greatest(cash - terms.reserve * equity - fixed_fees, 0.0)
        part = available / greatest(greatest(needed, available), _TINY)
        smallest = greatest(equity * SMALLEST_ORDER, terms.smallest_order)
        spent = zero
        for i in range(len(orders)):
            bought = greatest(orders[i], 0.0) * part
            if lot > 0.0:
                bought = floor(bought / lot + _LOT_ROUNDING) * lot
            value = bought * prices[i]
            is_order = value > smallest
            value = where(is_order, value, 0.0)
            cost = where(is_order, value * (buy_rate + half_spreads[i]) + fixed_fee, 0.0)
            costs = costs + cost
            spent = spent + value + cost
            filled[i] = filled[i] + where(is_order, bought, 0.0)
        return cash - least(spent, greatest(cash, 0.0)), costs  # the last digit of `spent` buys nothing on credit

    @compiled
    def step(  # noqa: PLR0917  # positional, in the hot path
        weights: Sequence[Number],
        may_trade: Sequence[Any],
        cash: Number,
        holdings: MutableSequence[Number],
        prices: Sequence[Number],
        half_spreads: Sequence[Number],
        closes: Sequence[Number],
        terms: Terms,
        orders: MutableSequence[Number],
        filled: MutableSequence[Number],
    ) -> tuple[Number, Number, Number]:
        """Size and fill the orders of one bar, add them to `holdings` in place, charge for what is borrowed.

        Returns (cash, costs paid in this bar, equity at `closes`).
        """
        equity = size_orders(weights, may_trade, cash, holdings, prices, terms, orders)
        cash, costs = fill_orders(orders, cash, equity, prices, half_spreads, terms, filled)
        equity = cash * 0.0
        for i in range(len(holdings)):
            holdings[i] = holdings[i] + filled[i]
            value = holdings[i] * closes[i]
            equity = equity + value
            if terms.borrow_rate > 0.0:
                cost = greatest(value * -terms.borrow_rate, 0.0)
                cash = cash - cost
                costs = costs + cost
        return cash, costs, cash + equity

    return Kernel(size_orders, fill_orders, step)


PLAIN_OPS = Ops(
    where=lambda condition, yes, no: yes if condition else no,
    least=lambda a, b: a if a < b else b,
    greatest=lambda a, b: a if a > b else b,
    floor=math.floor,
    log=math.log,
    sqrt=math.sqrt,
)
PLAIN = make_kernel(PLAIN_OPS)
"""Of floats."""

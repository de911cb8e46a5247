"""The accounting kernel: target weights -> orders -> fills -> equity. Pure arithmetic, no clock, no I/O.

A assets, N accounts. One description serves every environment: it loops over assets, and each quantity of an asset is a
float (one account), or an array or tensor (N,) of that quantity in N accounts. `PLAIN` is the kernel of floats,
`array_ops` has those of arrays, `compiled` a compiler's.

What happens to an order, in this order; `orders` has the arithmetic of each step:
1. A target weight is bounded to what a position may be; where the absolute weights sum to more than `max_gross`, all
   are scaled down to it. The order is what brings the holding to its weight, at the price it is filled at.
2. An order larger than `max_trade` is cut to it, then rounded down to whole lots; below `smallest_order` it is none.
3. Sells are filled first; one that would not bring its own costs is left.
4. Then all buys are scaled by min(1, cash / needed), `reserve` being kept, and rounded and dropped as in 2.
5. Short holdings pay for being borrowed, at the bar's close.

So cash never goes below zero: no money is borrowed, and a short is covered by its own proceeds and the equity behind it
(prices may carry gross exposure beyond its limit; nothing is sold off). If cash cannot cover the borrowing fee of the
shorts, the account pays what it has and is `margin_called`: the episode ends, as at ruin.
"""

import math
from collections.abc import Callable, MutableSequence, Sequence
from typing import Any, NamedTuple

from ml_pipeline.trading.accounts.orders import SMALLEST_ORDER, Compiled, Number, Ops, Terms, order_steps

# An account that has lost all but this part of its starting equity is ruined: shorts can lose more than there is.
RUIN_FRACTION = 0.01


class Kernel(NamedTuple):
    """The arithmetic for one kind of number: `step` is a whole bar, `step_one` the same of a single asset."""

    size_orders: Callable[..., Number]
    fill_orders: Callable[..., tuple[Number, Number]]
    step: Callable[..., tuple[Number, Number, Number, Any]]
    step_one: Callable[..., tuple[Number, ...]]


def make_kernel(ops: Ops, compiled: Compiled = lambda function: function) -> Kernel:
    """The kernel for the kind of number that `ops` is of, each function passed through `compiled`."""
    size_orders = _sizing(ops, compiled)
    fill_orders = _filling(ops, compiled)
    step = _stepping(ops, compiled, size_orders, fill_orders)
    return Kernel(size_orders, fill_orders, step, _stepping_one(ops, compiled))


def _sizing(ops: Ops, compiled: Compiled) -> Any:
    greatest = ops.greatest
    steps = order_steps(ops, compiled)
    target, size = steps.target, steps.size

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
        equity = cash
        for i in range(n_assets):
            equity = equity + holdings[i] * prices[i]
        equity = greatest(equity, 0.0)  # an account that owes money only closes what it has
        gross = equity * 0.0
        for i in range(n_assets):
            orders[i] = target(weights[i], holdings[i], prices[i], equity, terms)
            gross = gross + abs(orders[i])
        to_invest = equity * (terms.max_gross / greatest(gross, terms.max_gross))
        smallest = greatest(equity * SMALLEST_ORDER, terms.smallest_order)
        for i in range(n_assets):
            orders[i] = size(orders[i] * to_invest, may_trade[i], holdings[i], prices[i], equity, smallest, terms)
        return equity

    return size_orders


def _filling(ops: Ops, compiled: Compiled) -> Any:
    least, greatest = ops.least, ops.greatest
    steps = order_steps(ops, compiled)
    sell, need, share, buy = steps.sell, steps.need, steps.share, steps.buy

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
        n_assets = len(orders)
        zero = cash * 0.0
        costs, needed, fees, spent = zero, zero, zero, zero
        for i in range(n_assets):
            filled[i], proceeds, cost = sell(orders[i], prices[i], half_spreads[i], terms)
            cash = cash + proceeds
            costs = costs + cost
            takes, fee = need(orders[i], prices[i], half_spreads[i], terms)
            needed = needed + takes
            fees = fees + fee
        part = share(cash, needed, fees, equity, terms)
        smallest = greatest(equity * SMALLEST_ORDER, terms.smallest_order)
        for i in range(n_assets):
            bought, paid, cost = buy(orders[i], part, prices[i], half_spreads[i], smallest, terms)
            filled[i] = filled[i] + bought
            spent = spent + paid
            costs = costs + cost
        return cash - least(spent, greatest(cash, 0.0)), costs  # the last digit of `spent` buys nothing on credit

    return fill_orders


def _stepping(ops: Ops, compiled: Compiled, size_orders: Any, fill_orders: Any) -> Any:
    least, greatest = ops.least, ops.greatest

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
    ) -> tuple[Number, Number, Number, Any]:
        """Size and fill the orders of one bar, add them to `holdings` in place, charge for what is borrowed.

        Returns (cash, costs paid in this bar, equity at `closes`, margin_called).
        """
        equity = size_orders(weights, may_trade, cash, holdings, prices, terms, orders)
        cash, costs = fill_orders(orders, cash, equity, prices, half_spreads, terms, filled)
        worth = cash * 0.0
        fee = worth
        for i in range(len(holdings)):
            holdings[i] = holdings[i] + filled[i]
            value = holdings[i] * closes[i]
            worth = worth + value
            fee = fee + greatest(value * -terms.borrow_rate, 0.0)
        paid = least(fee, cash)
        return cash - paid, costs + paid, cash - paid + worth, fee > cash

    return step


def _stepping_one(ops: Ops, compiled: Compiled) -> Any:
    least, greatest = ops.least, ops.greatest
    target, size, sell, need, share, buy = order_steps(ops, compiled)

    @compiled
    def step_one(  # noqa: PLR0917  # positional, in the hot path
        weight: Number,
        may_trade: Any,
        cash: Number,
        holding: Number,
        price: Number,
        half_spread: Number,
        close: Number,
        terms: Terms,
    ) -> tuple[Number, Number, Number, Any, Number, Number, Number]:
        """`step` of a single asset, without its loops: numbers in place of sequences.

        Returns (cash, costs, equity, margin_called, holding, order, filled).
        """
        equity = greatest(cash + holding * price, 0.0)
        wanted = target(weight, holding, price, equity, terms)
        to_invest = equity * (terms.max_gross / greatest(abs(wanted), terms.max_gross))
        smallest = greatest(equity * SMALLEST_ORDER, terms.smallest_order)
        order = size(wanted * to_invest, may_trade, holding, price, equity, smallest, terms)
        sold, proceeds, costs = sell(order, price, half_spread, terms)
        cash = cash + proceeds
        needed, fees = need(order, price, half_spread, terms)
        part = share(cash, needed, fees, equity, terms)
        bought, spent, cost = buy(order, part, price, half_spread, smallest, terms)
        cash = cash - least(spent, greatest(cash, 0.0))
        filled = sold + bought
        holding = holding + filled
        worth = holding * close
        fee = greatest(worth * -terms.borrow_rate, 0.0)
        paid = least(fee, cash)
        return cash - paid, costs + cost + paid, cash - paid + worth, fee > cash, holding, order, filled

    return step_one


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

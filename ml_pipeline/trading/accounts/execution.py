"""The accounting kernel: target weights -> orders -> fills -> equity. Pure arithmetic, no clock, no I/O.

A assets, N accounts. Every environment uses the same code: it loops over assets, and each number of an asset is a float
(one account), or an array or tensor (N,) with one number per account. `PLAIN` is the kernel for floats, `array_ops` and
`tensor_ops` make those for arrays and tensors, `compiled_kernel` compiles it.

An order passes these steps; `orders` has their arithmetic:
1. Each target weight is clipped to the limits of a position. If the absolute weights sum to more than `max_gross`, all
   are scaled down to it. The order brings the holding to its weight, at the price of the fill.
2. An order above `max_trade` is cut to it and rounded down to whole lots. An order below `smallest_order` is dropped.
3. Sales are filled first. A sale that would not earn its own costs is dropped.
4. All buys are then scaled by min(1, cash / needed), which leaves `reserve` in cash, and rounded and dropped as in 2.
5. Short holdings pay their borrowing fee at the close of the bar.

So cash never goes below zero without leverage: no money is borrowed, and a short is covered by its own proceeds and the
equity behind it (prices may carry gross exposure beyond its limit; nothing is sold off). If cash cannot cover the
borrowing fee of the shorts, the account pays what it has and is `margin_called`: the episode ends, as at ruin. Accounts
that may borrow, and positions that are closed within a bar, take the step of `within_bar`.
"""

from collections.abc import Callable, MutableSequence, Sequence
from typing import Any, NamedTuple

from ml_pipeline.trading.accounts.orders import (
    PLAIN_OPS,
    SMALLEST_ORDER,
    Compiled,
    Number,
    Ops,
    Overrides,
    Terms,
    interest_with_debt,
    order_steps,
    override_fills,
)
from ml_pipeline.trading.accounts.within_bar import stepping_within

# An account whose equity falls to this part of its start is ruined. Shorts can lose more than the account has.
RUIN_FRACTION = 0.01


class Kernel(NamedTuple):
    """The arithmetic for one kind of number.

    `step` is a whole bar, `step_one` the same for a single asset; `step_within` is for rules that close positions
    within a bar, see `within_bar`.
    """

    size_orders: Callable[..., Number]
    fill_orders: Callable[..., tuple[Number, Number]]
    step: Callable[..., tuple[Number, Number, Number, Any]]
    step_one: Callable[..., tuple[Number, ...]]
    step_within: Callable[..., tuple[Number, Number, Number, Any]]


def weight_in_equity(worth: float, equity: float, clip: float) -> float:
    """A holding's worth as a fraction of the equity, within -clip..clip; 0 if the equity is not positive.

    The one rule for single accounts, plain and compiled; `Arrays.weights_in_equity` is its form for arrays.
    """
    weight = worth / equity if equity > 0.0 else 0.0
    return -clip if weight < -clip else clip if weight > clip else weight


def make_kernel(ops: Ops, compiled: Compiled = lambda function: function) -> Kernel:
    """The kernel for the kind of number that `ops` works on, each function passed through `compiled`."""
    size_orders = _sizing(ops, compiled)
    fill_orders = _filling(ops, compiled)
    step = stepping(ops, compiled, size_orders, fill_orders)
    within = stepping_within(ops, compiled, size_orders, fill_orders)
    return Kernel(size_orders, fill_orders, step, _stepping_one(ops, compiled), within)


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
        """Write the signed quantities to fill into `orders`; return the equity at `prices`.

        may_trade: False makes an order zero. prices: 0 before an asset is listed.
        """
        n_assets = len(holdings)
        equity = cash
        for i in range(n_assets):
            equity = equity + holdings[i] * prices[i]
        equity = greatest(equity, 0.0)  # below zero, an account only closes its positions
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
        """Fill the orders, signed quantities, at `prices`; write the quantities filled into `filled`.

        equity: before the orders. half_spreads: fractions of the price, on top of the rates of `terms`.
        Returns (cash afterwards, costs paid); the cash is after costs.

        >>> filled = [0.0, 0.0]  # 100 of cash buys 2 of the 4
        >>> PLAIN.fill_orders([-1.0, 4.0], 10.0, 100.0, [90.0, 50.0], [0.0, 0.0], Terms(0.0, 0.0), filled)
        (0.0, 0.0)
        >>> filled
        [-1.0, 2.0]
        """
        n_assets = len(orders)
        before = cash
        zero = cash * 0.0
        costs, needed, fees, spent = zero, zero, zero, zero
        for i in range(n_assets):
            filled[i], proceeds, cost = sell(orders[i], prices[i], half_spreads[i], terms)
            cash = cash + proceeds
            costs = costs + cost
            takes, fee = need(orders[i], prices[i], half_spreads[i], terms)
            needed = needed + takes
            fees = fees + fee
        # The order of fills within a bar is unknown, so limit buys have only the cash from before the bar.
        part = share(before if terms.limit >= 0.0 else cash, needed, fees, equity, terms)
        smallest = greatest(equity * SMALLEST_ORDER, terms.smallest_order)
        for i in range(n_assets):
            bought, paid, cost = buy(orders[i], part, prices[i], half_spreads[i], smallest, terms)
            filled[i] = filled[i] + bought
            spent = spent + paid
            costs = costs + cost
        if terms.maintenance > 0.0:  # an account that may borrow
            return cash - spent, costs
        return cash - least(spent, greatest(cash, 0.0)), costs  # rounding of `spent` never makes cash negative

    return fill_orders


def stepping(ops: Ops, compiled: Compiled, size_orders: Any, fill_orders: Any) -> Any:
    """`step` for the kind of number that `ops` works on, with these functions to size and to fill orders."""
    steps = order_steps(ops, compiled)
    borrowing_fee, interest = steps.borrowing_fee, steps.interest

    @compiled
    def step(  # noqa: PLR0917  # positional, in the hot path
        weights: Sequence[Number],
        may_trade: Sequence[Any],
        cash: Number,
        holdings: MutableSequence[Number],
        prices: MutableSequence[Number],
        half_spreads: Sequence[Number],
        closes: Sequence[Number],
        terms: Terms,
        orders: MutableSequence[Number],
        filled: MutableSequence[Number],
        overrides: Overrides | None = None,
    ) -> tuple[Number, Number, Number, Any]:
        """Size and fill the orders of one bar, change `holdings` in place, and charge borrowing fees.

        overrides: not supported in machine code.
        Returns (cash, costs paid in this bar, equity at `closes`, margin_called).
        """
        equity = size_orders(weights, may_trade, cash, holdings, prices, terms, orders)
        cash, costs = fill_orders(orders, cash, equity, prices, half_spreads, terms, filled)
        if overrides is not None:
            cash, costs = override_fills(overrides, cash, costs, prices, half_spreads, terms, filled)
        worth = cash * 0.0
        fee = worth
        for i in range(len(holdings)):
            holdings[i] = holdings[i] + filled[i]
            value = holdings[i] * closes[i]
            worth = worth + value
            fee = fee + borrowing_fee(value, terms.borrow_rate)
        paid, margin_called = interest(cash, fee, 1.0, terms)
        if overrides is not None:
            paid, margin_called = interest_with_debt(cash, fee, terms, (paid, margin_called))
        return cash - paid, costs + paid, cash - paid + worth, margin_called

    return step


def _stepping_one(ops: Ops, compiled: Compiled) -> Any:
    least, greatest = ops.least, ops.greatest
    target, size, sell, need, share, buy, borrowing_fee, interest = order_steps(ops, compiled)

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
        """`step` for a single asset, without loops: it takes numbers instead of sequences.

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
        paid, margin_called = interest(cash, borrowing_fee(worth, terms.borrow_rate), 1.0, terms)
        return cash - paid, costs + cost + paid, cash - paid + worth, margin_called, holding, order, filled

    return step_one


PLAIN = make_kernel(PLAIN_OPS)
"""The kernel for floats."""

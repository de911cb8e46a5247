"""The arithmetic of one order, from a target weight to the fill and its costs, and of interest. No clock, no I/O.

N accounts. Each number is a float (one account), or an array or tensor (N,) with one number per account. `Ops` holds
the operations that floats, arrays and tensors spell differently.

Each function handles one asset; `execution` combines all assets. The cost of a fill (`fill_cost`), the fee
of a short position (`borrowing_fee`) and the payment of an account at the close (`interest`) are defined only here, for
kernels, live accounts, cost reports and reconciliation. `evaluation.certify` implements them again on purpose.
"""

import math
from collections.abc import Callable, MutableSequence, Sequence
from typing import Any, NamedTuple

import numpy as np

# An order below this fraction of equity is a rounding error and is dropped.
SMALLEST_ORDER = 1e-9
# Rounding may leave a whole number of lots slightly short: 0.3 is three lots of 0.1.
_LOT_ROUNDING = 1e-9
_TINY = 1e-300

Number = Any  # a float, or an array or tensor (N,)
Compiled = Callable[[Any], Any]
"""Passes a function through a compiler, or returns it as it is."""


class Ops(NamedTuple):
    """Operations that floats, arrays and tensors spell differently.

    In an operation with an array or tensor, a plain number is never the first operand.
    """

    where: Callable[[Any, Any, Any], Any]
    least: Callable[[Any, Any], Any]
    greatest: Callable[[Any, Any], Any]
    floor: Callable[[Any], Any]
    log: Callable[[Any], Any]
    sqrt: Callable[[Any], Any]
    tanh: Callable[[Any], Any]


PLAIN_OPS = Ops(
    where=lambda condition, yes, no: yes if condition else no,
    least=lambda a, b: a if a < b else b,
    greatest=lambda a, b: a if a > b else b,
    floor=math.floor,
    log=math.log,
    sqrt=math.sqrt,
    tanh=math.tanh,
)
NUMPY_OPS = Ops(
    where=np.where,
    least=np.minimum,
    greatest=np.maximum,
    floor=np.floor,
    log=np.log,
    sqrt=np.sqrt,
    tanh=np.tanh,
)


class Terms(NamedTuple):
    """Costs and limits of an account. The two rates may be arrays (N,) with one rate per account; the rest are floats.

    buy_rate, sell_rate: fraction of traded value (5 bps are 0.0005); the half-spread of the bar comes on top.
    fixed_fee: money per filled order. borrow_rate: fraction of a short position's value, per bar.
    lowest, highest: bounds of one asset's target weight. max_gross: bound of the sum of absolute weights.
    max_trade: largest order as a fraction of equity, or inf. reserve: fraction of equity that buys leave in cash.
    reserve is below 0 for an account that may borrow: buys may then take the cash down to it.
    smallest_order: in money. lot: quantity, or 0 for any.
    relative: 1 if weights are changes of weight in units of max_trade, else 0.
    limit: distance of limit orders from the close they were decided on, as a fraction of it; below 0: market orders.
    sized_at_decision: 1 if market orders are sized at the close they were decided on, else 0: at the price of the fill.
    stop_loss, take_profit: fractions of the entry price, or 0 for none; see `within_bar`.
    maintenance: equity as a fraction of the value of all positions below which they are closed; above 0 only for an
    account that may borrow. financing_rate: fraction of negative cash per day; borrow_rate is then per day as well.
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
    stop_loss: float = 0.0
    take_profit: float = 0.0
    maintenance: float = 0.0
    financing_rate: float = 0.0
    limit: float = -1.0
    sized_at_decision: float = 0.0

    def closing(self) -> "Terms":
        """Terms under which weights of 0 close every position completely: the same costs, and no limits."""
        reserve = -math.inf if self.maintenance > 0.0 else 0.0  # an account that may borrow pays any price
        whole = {"relative": 0.0, "max_trade": math.inf, "smallest_order": 0.0, "lot": 0.0, "reserve": reserve}
        return self._replace(limit=-1.0, sized_at_decision=0.0, **whole)


class OrderSteps(NamedTuple):
    """The steps of one order for one kind of number. `order_steps` defines them."""

    target: Callable[..., Number]
    size: Callable[..., Number]
    sell: Callable[..., tuple[Number, Number, Number]]
    need: Callable[..., tuple[Number, Number]]
    share: Callable[..., Number]
    buy: Callable[..., tuple[Number, Number, Number]]
    borrowing_fee: Callable[..., Number]
    interest: Callable[..., tuple[Number, Any]]


class Overrides(NamedTuple):
    """Fills of the orders of one bar at a broker, one number per asset; NaN: as the kernel assumes. Only for floats.

    quantities: signed quantities filled. cost_rates: all costs as a fraction of the value traded. prices: of the fills;
    orders are sized before they apply. exits: the same of exits within the bar, which close at most what is held. To
    override whether orders were filled, pass other ones to the step. shares: the part of the kernel's own fill that is
    added to `quantities`; None: nothing.
    """

    quantities: Sequence[float]
    cost_rates: Sequence[float]
    prices: Sequence[float]
    exits: "Overrides | None" = None
    shares: Sequence[float] | None = None


def override_fills(  # noqa: PLR0917  # as `fill_orders`
    overrides: Overrides | None,
    cash: float,
    costs: float,
    prices: MutableSequence[float],
    half_spreads: Sequence[float],
    terms: Terms,
    filled: MutableSequence[float],
    held: Sequence[float] | None = None,
) -> tuple[float, float]:
    """Replace the kernel's fills with the broker's, `filled` and `prices` in place; returns (cash, costs).

    The fixed fee is paid once per order that is filled, whatever its quantity. held: positions that fills only close;
    None: any fill.

    >>> filled = [2.0]  # the kernel bought two at 50; the broker filled one, at a cost of 1 % instead of none
    >>> override_fills(Overrides([1.0], [0.01], [math.nan]), 0.0, 0.0, [50.0], [0.0], Terms(0.0, 0.0), filled), filled
    ((49.5, 0.5), [1.0])
    """
    if overrides is None:
        return cash, costs
    for i, (quantity, cost_rate, price) in enumerate(zip(*overrides[:3], strict=True)):
        if not (math.isnan(quantity) and math.isnan(price)):
            value, paid = filled[i] * prices[i], _whole_cost_of(filled[i], prices[i], half_spreads[i], terms)
            if not math.isnan(quantity):
                filled[i] = quantity if overrides.shares is None else quantity + overrides.shares[i] * filled[i]
                if held is not None:
                    filled[i] = min(max(filled[i], min(-held[i], 0.0)), max(-held[i], 0.0))
            prices[i] = prices[i] if math.isnan(price) else price
            saved = paid - _whole_cost_of(filled[i], prices[i], half_spreads[i], terms)
            cash, costs = cash + value - filled[i] * prices[i] + saved, costs - saved
        if filled[i] and not math.isnan(cost_rate):
            more = abs(filled[i]) * prices[i] * cost_rate
            more -= _whole_cost_of(filled[i], prices[i], half_spreads[i], terms)
            cash, costs = cash - more, costs + more
    return cash, costs


def _whole_cost_of(quantity: float, price: float, half_spread: float, terms: Terms) -> float:
    """Costs of an order, the fixed fee included; 0 if nothing was filled."""
    return fill_cost_of(quantity, price, half_spread, terms) + terms.fixed_fee if quantity else 0.0


def interest_with_debt(cash: float, fee: float, terms: Terms, otherwise: tuple[float, Any]) -> tuple[float, Any]:
    """`interest` of an account with overrides: a negative cash balance after them stays a debt, without a margin call.

    The kernel would clear it, because accounts that may not borrow never owe money.
    """
    return (fee, False) if cash < 0.0 and terms.maintenance <= 0.0 else otherwise


def fill_cost_of(quantity: float, price: float, half_spread: float, terms: Terms) -> float:
    """Costs of a fill of a signed quantity, without the fixed fee."""
    rate = terms.buy_rate if quantity > 0.0 else terms.sell_rate
    return float(fill_cost(abs(quantity) * price, rate + half_spread, 0.0))


def fill_cost(value: Number, rate: Number, fixed_fee: Number) -> Number:
    """Costs of a fill. value: in money, at least 0. rate: the buy_rate or sell_rate and the half-spread."""
    return value * rate + fixed_fee


def order_steps(ops: Ops, compiled: Compiled = lambda function: function) -> OrderSteps:
    """The steps for the kind of number that `ops` works on, each passed through `compiled`.

    price: 0 before an asset is listed. half_spread: fraction of the price, on top of the rates of `terms`.
    equity: of the account, at the prices of the fills. smallest: orders of less money are dropped.
    """
    where, least, greatest, floor = ops.where, ops.least, ops.greatest, ops.floor
    cost_of = compiled(fill_cost)

    @compiled
    def target(weight: Number, holding: Number, price: Number, equity: Number, terms: Terms) -> Number:
        """The target weight of the position, within its limits."""
        if terms.relative:
            weight = holding * price / greatest(equity, _TINY) + weight * terms.max_trade
        return greatest(least(weight, terms.highest), terms.lowest)

    @compiled
    def size(  # noqa: PLR0917  # positional, in the hot path
        value: Number, may_trade: Any, holding: Number, price: Number, equity: Number, smallest: Number, terms: Terms
    ) -> Number:
        """The signed quantity to order for a position worth `value`; 0 if it may not trade."""
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
        """(quantity filled, proceeds after costs, costs); zeros for a buy, and for a sale below its own costs."""
        value = -(order * price)
        cost = cost_of(value, terms.sell_rate + half_spread, terms.fixed_fee)
        sold = (value > 0.0) & (value > cost)
        return where(sold, order, 0.0), where(sold, value - cost, 0.0), where(sold, cost, 0.0)

    @compiled
    def need(order: Number, price: Number, half_spread: Number, terms: Terms) -> tuple[Number, Number]:
        """(cash that the whole order needs, rates included, its fixed fee); zeros for a sale.

        Value and `fill_cost` are one product, and results depend on its rounding; it only scales buys to the cash.
        """
        value = greatest(order * price, 0.0)
        fee = value * 0.0
        if terms.fixed_fee > 0.0:
            fee = where(value > 0.0, fee + terms.fixed_fee, 0.0)
        return value * (1.0 + terms.buy_rate + half_spread), fee

    @compiled
    def share(cash: Number, needed: Number, fees: Number, equity: Number, terms: Terms) -> Number:
        """The fraction of all buys that the cash covers after fixed fees and the reserve; 1 for a reserve of -inf."""
        if terms.reserve == -math.inf:
            return cash * 0.0 + 1.0
        available = greatest(cash - terms.reserve * equity - fees, 0.0)
        return available / greatest(greatest(needed, available), _TINY)

    @compiled
    def buy(  # noqa: PLR0917  # positional, in the hot path
        order: Number, part: Number, price: Number, half_spread: Number, smallest: Number, terms: Terms
    ) -> tuple[Number, Number, Number]:
        """(quantity filled if `part` of the order is bought, its value and costs, its costs); zeros for a sale."""
        bought = greatest(order, 0.0) * part
        if terms.lot > 0.0:
            bought = floor(bought / terms.lot + _LOT_ROUNDING) * terms.lot
        value = bought * price
        is_order = value > smallest
        value = where(is_order, value, 0.0)
        cost = where(is_order, cost_of(value, terms.buy_rate + half_spread, terms.fixed_fee), 0.0)
        return where(is_order, bought, 0.0), value + cost, cost

    @compiled
    def borrowing_fee(value: Number, rate: Number) -> Number:
        """Borrowing fee of a position of this value: `rate` times the value of a short, else 0."""
        return greatest(value * -rate, 0.0)

    @compiled
    def interest(cash: Number, fee: Number, days: Number, terms: Terms) -> tuple[Number, Any]:
        """(money paid at the close, margin_called: the cash does not cover it). fee: of all shorts, for `days`.

        An account that may borrow also pays for its negative cash; it pays with borrowed money, without a margin call.
        """
        if terms.maintenance > 0.0:
            return fee + greatest(-cash, 0.0) * (terms.financing_rate * days), fee < 0.0
        return least(fee, cash), fee > cash

    return OrderSteps(target, size, sell, need, share, buy, borrowing_fee, interest)

"""Adds an account up again from what was filled and charged, in the kernel's order of sums, so with the kernel's bits.

`execution` and `within_bar` decide what is filled; nothing here does.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ml_pipeline.trading.accounts.orders import PLAIN_OPS, Terms, order_steps

_STEPS = order_steps(PLAIN_OPS)
# The part of what buys cost by which rounding, lots included, may take it above the cash, see `execution.fill_orders`.
_ROUNDING = 1e-8


class Filled(NamedTuple):
    """A fill: signed quantity, price, and the money paid besides quantity * price."""

    quantity: float
    price: float
    costs: float


def cash_after(cash: float, fills: Iterable[Filled], *, may_borrow: bool) -> tuple[float, float]:
    """(cash, costs) after fills that belong together, in the order of their symbols: sales, then the sum of all buys.

    may_borrow: for an account that does not, buys that are above the cash by rounding alone leave 0, as in the kernel.

    >>> cash_after(10.0, [Filled(-1.0, 90.0, 0.5), Filled(1.0, 50.0, 0.5)], may_borrow=False)
    (49.0, 1.0)
    """
    costs, spent, buys = 0.0, 0.0, []
    for fill in fills:
        if fill.quantity > 0.0:
            buys.append(fill)
            continue
        cash = cash + (-(fill.quantity * fill.price) - fill.costs)
        costs = costs + fill.costs
    for quantity, price, cost in buys:
        spent = spent + (quantity * price + cost)
        costs = costs + cost
    has_cash = max(cash, 0.0)
    if not may_borrow and has_cash < spent <= has_cash + spent * _ROUNDING:
        spent = has_cash
    return cash - spent, costs


def worth_of(holdings: Sequence[float], closes: Sequence[float]) -> float:
    """The value of all positions, negative if they are short."""
    worth = 0.0
    for quantity, close in zip(holdings, closes, strict=True):
        worth = worth + quantity * close
    return worth


def interest_due(
    cash: float, holdings: Sequence[float], closes: Sequence[float], terms: Terms, *, days: float
) -> tuple[float, bool]:
    """(money paid at the close for what is borrowed, whether the account could not pay all of it).

    days: for which it is charged; 1 where rates are per bar. cash: after the fills of the bar.
    """
    fee = 0.0
    for quantity, close in zip(holdings, closes, strict=True):
        fee = fee + _STEPS.borrowing_fee(quantity * close, terms.borrow_rate)
    return _STEPS.interest(cash, fee * days, days, terms)

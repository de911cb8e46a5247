"""What Alpaca lets an account open, asked before orders are sent: its buying power, and pattern day trading.

Alpaca refuses the same orders, but one after the other, when others of the same decision are already filled.
Source: https://docs.alpaca.markets/docs/orders-at-alpaca and https://docs.alpaca.markets/docs/user-protection.
"""

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from ml_pipeline.live.alpaca.client import read_number
from ml_pipeline.live.brokers.broker import OrderRequest, exact

_SHORTS_COUNT = Decimal("1.03")
"""Alpaca values an order that opens a short position at 3 % above the price."""
_SMALL_ACCOUNT, _DAY_TRADES = Decimal(25_000), 3
"""An account on margin below this equity may not make more day trades than these in five days."""


def opened_by(order: OrderRequest, position: Decimal) -> Decimal:
    """The part of an order that opens or enlarges a position, signed."""
    quantity = exact(order.quantity)
    if order.closing or not quantity:
        return Decimal(0)
    if quantity * position >= 0:
        return quantity
    return quantity + position if abs(quantity) > abs(position) else Decimal(0)


def refusals(
    orders: Sequence[OrderRequest], positions: Mapping[str, Decimal], account: Mapping[str, Any]
) -> dict[str, str]:
    """The orders that the account does not allow, by ID, each with the reason in words.

    account: Alpaca's answer; a rule whose figures it lacks is not applied. Sales come first, and free buying power.
    Orders without a price, and those that close positions, are always allowed. Raises ValueError if a figure cannot be
    read.
    """
    found = {}
    why_none = _why_nothing_opens(account)
    has_power = account.get("buying_power") is not None
    left = read_number(account, "buying_power") + _freed(orders, positions) if has_power else None
    for order in sorted(orders, key=lambda order: order.quantity > 0):
        opened = opened_by(order, positions.get(order.symbol, Decimal(0)))
        if not opened:
            continue
        if why_none:
            found[order.client_order_id] = why_none
        elif left is not None and order.price:
            needed = abs(opened) * exact(order.price) * (_SHORTS_COUNT if opened < 0 else 1)
            if needed > left:
                found[order.client_order_id] = (
                    f"it needs about {needed:,.2f} of buying power, but the account has {max(left, Decimal(0)):,.2f}"
                )
            else:
                left -= needed
    return found


def _freed(orders: Sequence[OrderRequest], positions: Mapping[str, Decimal]) -> Decimal:
    """The buying power that the reducing part of these orders frees."""
    freed = Decimal(0)
    for order in orders:
        position = positions.get(order.symbol, Decimal(0))
        quantity = abs(position) if order.closing else abs(exact(order.quantity))
        if order.price and (order.closing or exact(order.quantity) * position < 0):
            freed += min(quantity, abs(position)) * exact(order.price)
    return freed


def _why_nothing_opens(account: Mapping[str, Any]) -> str:
    if any(account.get(name) is None for name in ("daytrade_count", "equity", "multiplier")):
        return ""
    trades, equity, multiplier = (read_number(account, name) for name in ("daytrade_count", "equity", "multiplier"))
    if multiplier <= 1 or equity >= _SMALL_ACCOUNT:
        return ""
    if trades < _DAY_TRADES and not account.get("pattern_day_trader"):
        return ""
    return (
        f"the account has made {trades} day trades in five days and has less than 25,000 dollars, so Alpaca might "
        "not let this position be closed today (pattern day trading)"
    )

"""From the loop's order to what Alpaca takes: which quantity, in how many orders, under which ids."""

from collections.abc import Mapping
from decimal import ROUND_DOWN, ROUND_HALF_UP, ROUND_UP, Decimal
from typing import Any, NamedTuple

from ml_pipeline.live.brokers.broker import OrderRequest

FIRST_LEG = ".0"
"""What follows the id of an order that goes through zero in the id of the order that closes the position first."""
_SHARES = "us_equity"
"""Alpaca's word for US shares and ETFs. Crypto has no orders for the day, no shorts, and fees in the coin itself."""
_FRACTION, _WHOLE = Decimal("1e-9"), Decimal(1)
_CENT, _HUNDREDTH_OF_A_CENT = Decimal("0.01"), Decimal("0.0001")


class Asset(NamedTuple):
    """What may be done with a symbol at Alpaca."""

    tradable: bool
    fractionable: bool
    shortable: bool


class Terms(NamedTuple):
    """The orders to send, one after the other: signed quantities, by client order id.

    note: what is not as it was asked for, in words. Without legs, it says why nothing is sent.
    """

    legs: tuple[tuple[str, Decimal], ...]
    note: str = ""

    @property
    def quantity(self) -> Decimal:
        return sum((quantity for _, quantity in self.legs), Decimal(0))


def terms_of(order: OrderRequest, asset: Asset, position: Decimal) -> Terms:
    """What Alpaca takes of an order, where the account holds `position` of the symbol.

    Fractions of shares are bought and sold where the asset has them, and otherwise rounded down; shorts are whole
    shares. Alpaca takes no order that sells more than is held and shorts the rest, or the reverse: the position is
    closed by an order with `FIRST_LEG` after the id, and the rest follows under the id itself.
    """
    if not asset.tradable:
        return Terms((), f"{order.symbol} cannot be traded at Alpaca")
    wanted = -position if order.closing else _exact(order.quantity)
    if order.closing and not position:
        return Terms((), "there is no position to close")
    if wanted * position < 0 and abs(wanted) > abs(position):
        rest, note = _opening(wanted + position, asset)
        if rest:
            return Terms(((order.client_order_id + FIRST_LEG, -position), (order.client_order_id, rest)), note)
        return Terms(((order.client_order_id, -position),), note)
    quantity, note = _reducing(wanted, asset) if wanted * position < 0 else _opening(wanted, asset)
    if position and quantity == -position:
        note = ""
    return Terms(((order.client_order_id, quantity),) if quantity else (), note)


def _exact(quantity: float) -> Decimal:
    """A quantity as it is written, to nine decimals, which is what Alpaca takes."""
    return Decimal(repr(float(quantity))).quantize(_FRACTION, ROUND_DOWN)


def _opening(quantity: Decimal, asset: Asset) -> tuple[Decimal, str]:
    """A quantity that makes a position larger, and what was changed of it."""
    if quantity < 0 and not asset.shortable:
        return Decimal(0), "it cannot be sold short at Alpaca"
    whole = quantity < 0 or not asset.fractionable
    if not whole:
        return quantity, ""
    reason = "shorts are whole shares" if quantity < 0 else "Alpaca has no fractions of it"
    return _rounded(quantity, reason)


def _reducing(quantity: Decimal, asset: Asset) -> tuple[Decimal, str]:
    """A quantity that makes a position smaller: of a short, whole shares are bought back."""
    if asset.fractionable and quantity < 0:
        return quantity, ""
    return _rounded(quantity, "shorts are whole shares" if asset.fractionable else "Alpaca has no fractions of it")


def _rounded(quantity: Decimal, reason: str) -> tuple[Decimal, str]:
    rounded = quantity.quantize(_WHOLE, ROUND_DOWN)
    note = f"{abs(quantity).normalize():f} shares are rounded down to {abs(rounded):f}: {reason}"
    return rounded, "" if rounded == quantity else note


def order_fields(client_order_id: str, symbol: str, quantity: Decimal, limit_price: float | None) -> dict[str, Any]:
    """An order as Alpaca's server takes it: for the day, at the market or at a limit. Numbers are texts, exactly."""
    side = "buy" if quantity > 0 else "sell"
    fields = {
        "symbol": symbol,
        "qty": f"{abs(quantity).normalize():f}",
        "side": side,
        "type": "market",
        "time_in_force": "day",
        "client_order_id": client_order_id,
    }
    if limit_price is None:
        return fields
    return {**fields, "type": "limit", "limit_price": f"{_tick(limit_price, quantity):f}"}


def _tick(price: float, quantity: Decimal) -> Decimal:
    """A limit on Alpaca's grid: a cent, below one dollar a hundredth of one; never worse than what was asked for."""
    exact = Decimal(repr(float(price)))
    tick = _CENT if exact >= 1 else _HUNDREDTH_OF_A_CENT
    near = exact.quantize(tick, ROUND_HALF_UP)
    if abs(near - exact) < _FRACTION:  # 1.10 that was computed as 1.1000000000000003
        return near
    return exact.quantize(tick, ROUND_DOWN if quantity > 0 else ROUND_UP)


def asset_of(answer: Mapping[str, Any]) -> Asset:
    """An asset as Alpaca's server describes it; only shares and ETFs take the orders that are sent."""
    is_share = answer.get("class", _SHARES) == _SHARES
    tradable = is_share and bool(answer.get("tradable")) and answer.get("status", "active") == "active"
    return Asset(tradable, bool(answer.get("fractionable")), bool(answer.get("shortable")))

"""Send the session's orders to Alpaca, so that none is accepted twice and none is lost."""

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from decimal import ROUND_DOWN, ROUND_HALF_UP, ROUND_UP, Decimal
from typing import Any, NamedTuple

import numpy as np

from ml_pipeline.live.alpaca.client import Refused, RestClient, read_number, read_text
from ml_pipeline.live.alpaca.orders import EXIT, FIRST_LEG, BrokerOrder, OrderBook, Tracked, TrackedOrders, path_of
from ml_pipeline.live.brokers.broker import (
    SMALLEST_QUANTITY,
    BrokerUnavailable,
    OrderRequest,
    OrderUpdate,
    Protection,
    QuantityRules,
    exact,
    quantity_text,
)

_SHARES, _CRYPTO = "us_equity", "crypto"
_STATUSES = ("active", "inactive")
_WHOLE = Decimal(1)
_CENT, _HUNDREDTH_OF_A_CENT = Decimal("0.01"), Decimal("0.0001")
_LONGEST_WAIT_S = 2.0
"""Longest wait for a position to close before it is reversed, and for a cancellation."""
_ASK_EVERY_S = 0.2
_NOT_FOUND, _UNPROCESSABLE = 404, 422
_DUPLICATE = 40010001


class AlpacaAsset(NamedTuple):
    """What the account may do with a symbol.

    step, smallest: of quantities. tick: of limit prices; None: cents, or below one dollar, hundredths of a cent.
    protected: its positions have a stop or target at Alpaca.
    """

    tradable: bool
    fractionable: bool
    shortable: bool
    is_crypto: bool = False
    step: Decimal = SMALLEST_QUANTITY
    smallest: Decimal = SMALLEST_QUANTITY
    tick: Decimal | None = None
    protected: bool = False


_STOCK = AlpacaAsset(tradable=True, fractionable=True, shortable=True)


class OrderPlan(NamedTuple):
    """The orders to send, in sequence: (client order ID, signed quantity).

    note: how they differ from the session's order, in words; without legs, why nothing is sent.
    """

    legs: tuple[tuple[str, Decimal], ...]
    note: str = ""

    @property
    def quantity(self) -> Decimal:
        return sum((quantity for _, quantity in self.legs), Decimal(0))


def plan_order(order: OrderRequest, asset: AlpacaAsset, position: Decimal) -> OrderPlan:
    """The orders that Alpaca accepts for an order, if the account holds `position` of the symbol.

    Quantities are rounded down to whole shares, except for unprotected long positions in fractionable assets. Alpaca
    accepts no order that goes through zero, that is, sells more than is held and shorts the rest, or the reverse. The
    position is then closed by an order with the suffix `FIRST_LEG`, and the rest follows under the ID itself.
    """
    if not asset.tradable:
        return OrderPlan((), f"{order.symbol} cannot be traded at Alpaca")
    # What Alpaca reports decides what closes the position, not the books.
    rules = QuantityRules(usual_step=asset.step, smallest={order.symbol: asset.smallest})
    wanted = -position if order.closing else rules.quantity(order.symbol, order.quantity, position)
    if order.closing and rules.is_flat(order.symbol, position):
        wanted = Decimal(0)
    if not wanted:
        small = f"{quantity_text(abs(order.quantity))} is below the smallest order at Alpaca"
        return OrderPlan((), "there is no position to close" if order.closing else small)
    if wanted * position < 0 and abs(wanted) > abs(position):
        rest, note = _opening(wanted + position, asset)
        if rest:
            return OrderPlan(((order.client_order_id + FIRST_LEG, -position), (order.client_order_id, rest)), note)
        return OrderPlan(((order.client_order_id, -position),), note)
    if position and wanted == -position:
        return OrderPlan(((order.client_order_id, wanted),))
    quantity, note = _reducing(wanted, asset) if wanted * position < 0 else _opening(wanted, asset)
    return OrderPlan(((order.client_order_id, quantity),) if quantity else (), note)


def _opening(quantity: Decimal, asset: AlpacaAsset) -> tuple[Decimal, str]:
    """A quantity that enlarges a position, and how it was changed."""
    if quantity < 0 and not asset.shortable:
        return Decimal(0), "it cannot be sold short at Alpaca"
    if quantity > 0 and asset.fractionable and not asset.protected:
        return quantity, ""
    return _rounded(quantity, _why_whole(asset, is_short=quantity < 0))


def _reducing(quantity: Decimal, asset: AlpacaAsset) -> tuple[Decimal, str]:
    """A quantity that reduces a position, and how it was changed; shorts are bought back in whole shares."""
    if quantity < 0 and asset.fractionable and not asset.protected:
        return quantity, ""
    return _rounded(quantity, _why_whole(asset, is_short=asset.fractionable and quantity > 0))


def _why_whole(asset: AlpacaAsset, *, is_short: bool) -> str:
    if is_short:
        return "shorts are whole shares"
    return "stops and targets are for whole shares" if asset.fractionable else "Alpaca has no fractions of it"


def _rounded(quantity: Decimal, reason: str) -> tuple[Decimal, str]:
    rounded = quantity.quantize(_WHOLE, ROUND_DOWN)
    note = f"{quantity_text(abs(quantity))} shares are rounded down to {quantity_text(abs(rounded))}: {reason}"
    return rounded, "" if rounded == quantity else note


def order_fields(
    client_order_id: str,
    symbol: str,
    quantity: Decimal,
    limit_price: float | None,
    *,
    asset: AlpacaAsset = _STOCK,
    exits: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The fields of an order for Alpaca's server, market or limit. Numbers are exact, as text.

    Orders of shares are valid for the day. Alpaca has no such orders of crypto: they are good until canceled, which the
    session does at its next decision.
    exits: from `exit_fields`, of the position that it opens. They are active when the order is filled, and are valid as
    long as the order: good until canceled for a market order, which waits for no price.
    """
    side = "buy" if quantity > 0 else "sell"
    fields = {
        "symbol": symbol,
        "qty": f"{abs(quantity).normalize():f}",
        "side": side,
        "type": "market",
        "time_in_force": "gtc" if asset.is_crypto else "day",
        "client_order_id": client_order_id,
    }
    if exits:
        group = {"order_class": "bracket" if len(exits) == 2 else "oto", **exits}
        fields |= group if limit_price is not None else {**group, "time_in_force": "gtc"}
    if limit_price is None:
        return fields
    return {**fields, "type": "limit", "limit_price": f"{_tick(limit_price, quantity, asset.tick):f}"}


def exit_fields(position: Decimal, stop_price: float | None, target_price: float | None) -> dict[str, Any]:
    """The fields of the stop and the target of a position; empty without prices.

    Prices are on Alpaca's grid such that a trade on the grid reaches them exactly if it reaches the given prices.
    """
    fields: dict[str, Any] = {}
    if target_price is not None:
        fields["take_profit"] = {"limit_price": f"{_tick(target_price, -position, None):f}"}
    if stop_price is not None:
        fields["stop_loss"] = {"stop_price": f"{_tick(stop_price, position, None):f}"}
    return fields


def protection_fields(client_order_id: str, symbol: str, position: Decimal, exits: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of an order that protects a position, good until canceled. exits: from `exit_fields`."""
    fields = {**order_fields(client_order_id, symbol, -position, None), "time_in_force": "gtc"}
    if len(exits) == 2:
        return {**fields, "type": "limit", "order_class": "oco", **exits}
    if "stop_loss" in exits:
        return {**fields, "type": "stop", **exits["stop_loss"]}
    return {**fields, "type": "limit", **exits["take_profit"]}


def _tick(price: float, quantity: Decimal, tick: Decimal | None) -> Decimal:
    """A limit on Alpaca's grid, see `AlpacaAsset.tick`; never worse than `price`."""
    wanted = exact(price)
    tick = tick or (_CENT if wanted >= 1 else _HUNDREDTH_OF_A_CENT)
    near = (wanted / tick).quantize(_WHOLE, ROUND_HALF_UP) * tick
    if abs(near - wanted) < SMALLEST_QUANTITY:  # 1.10 that was computed as 1.1000000000000003
        return near
    return (wanted / tick).quantize(_WHOLE, ROUND_DOWN if quantity > 0 else ROUND_UP) * tick


def asset_of(answer: Mapping[str, Any]) -> AlpacaAsset:
    """Parse an asset from Alpaca's server; only stocks, ETFs and crypto count as tradable. Raises ValueError
    or KeyError."""
    kind, status = (
        read_text({"class": _SHARES, "status": "active"} | {**answer}, name) for name in ("class", "status")
    )
    if status not in _STATUSES:
        raise ValueError(f'its status "{status}" is unknown')
    tradable, fractionable, shortable = (_flag(answer, name) for name in ("tradable", "fractionable", "shortable"))
    asset = AlpacaAsset(tradable and kind in (_SHARES, _CRYPTO) and status == "active", fractionable, shortable)
    if kind != _CRYPTO:
        return asset
    step = _positive(answer, "min_trade_increment") or SMALLEST_QUANTITY
    smallest, tick = _positive(answer, "min_order_size") or step, _positive(answer, "price_increment")
    return asset._replace(is_crypto=True, shortable=False, step=step, smallest=max(step, smallest), tick=tick)


def _flag(answer: Mapping[str, Any], name: str) -> bool:
    """Whether an asset has a property. Raises ValueError or KeyError."""
    if not isinstance(flag := answer[name], bool):
        raise ValueError(f'its {name} is "{flag}", but must be true or false')
    return flag


def _positive(answer: Mapping[str, Any], name: str) -> Decimal | None:
    """A positive number of an asset; None if Alpaca names none. Raises ValueError."""
    if answer.get(name) is None:
        return None
    if (value := read_number(answer, name)) > 0:
        return value
    raise ValueError(f"its {name} is {value}, but must be above 0")


class OrderEntry:
    """Sends and cancels orders. asset: returns what the account may do with a symbol."""

    def __init__(
        self, rest: RestClient, book: OrderBook, tracked: TrackedOrders, asset: Callable[[str], AlpacaAsset]
    ) -> None:
        self._rest = rest
        self._book = book
        self._tracked = tracked
        self._asset = asset
        self._knows_earlier_orders = False

    def learn_earlier_orders(self) -> None:
        """Request the account's latest orders, which include those of an earlier process."""
        self._book.ask_recent()
        self._knows_earlier_orders = True

    def submit(self, orders: Sequence[OrderRequest], positions: Mapping[str, Decimal]) -> list[OrderUpdate]:
        """Send the orders of one decision: sales first, because purchases may need their proceeds."""
        if not self._knows_earlier_orders:
            self.learn_earlier_orders()
        answers: dict[str, OrderUpdate] = {}
        for order in sorted(orders, key=lambda order: order.quantity > 0):
            answers[order.client_order_id] = self._send(order, positions.get(order.symbol, Decimal(0)))
        waiting = [leg for name in answers if (leg := self._awaited_leg(name))]
        self._wait_for(waiting)
        self.send_second_legs(answers)
        latest = {
            name: self._tracked.update(tracked)
            for name, answer in answers.items()
            if answer.status != "rejected" and (tracked := self._tracked.get(name)) is not None
        }
        return [(answers | latest)[order.client_order_id] for order in orders]

    def cancel(self, client_order_ids: Sequence[str]) -> None:
        """Cancel the open ones of these orders, and wait a moment, so that their buying power is free again."""
        legs = []
        for name in client_order_ids:
            if (tracked := self._tracked.get(name)) is not None:
                tracked.rest = Decimal(0)
            for leg in self._tracked.legs(name) or self._tracked.legs(name + EXIT) or [name, name + FIRST_LEG]:
                order = self._book.get(leg) or self._book.ask(leg)
                if order is not None:
                    self._tracked.track_found(self._tracked.owner(leg))
                    if not order.ended:
                        self._cancel(order)
                        legs.append(leg)
        self._wait_for(legs)

    def protect(self, protection: Protection) -> OrderUpdate:
        """Send a protective order unless Alpaca has it. It covers whole shares."""
        name, symbol = protection.client_order_id + EXIT, protection.symbol
        if (known := self._book.get(name) or self._book.ask(name)) is not None:
            if not known.ended:
                self._book.ask(name)
            return self._tracked.update(self._tracked.track_found(name))
        position = protection.quantity.quantize(_WHOLE, ROUND_DOWN)
        reason: str | None = "Alpaca protects whole shares only, and there is no whole one"
        if position:
            exits = exit_fields(position, protection.stop_price, protection.target_price)
            tracked = self._tracked.track(name, symbol=symbol)
            reason = self._post_fields(tracked, name, protection_fields(name, symbol, position, exits))
        if reason is None:
            return self._tracked.update(self._tracked.track_found(name))
        self._tracked.untrack(name)
        now = np.datetime64(time.time_ns(), "ns")
        return OrderUpdate(
            protection.client_order_id, symbol, "rejected", -protection.quantity, Decimal(0), now, reason
        )

    def unprotect(self, symbols: Collection[str]) -> None:
        """Cancel what protects the positions in these symbols, and wait until it has ended."""
        for order in self._book.ask_open():
            if order.client_order_id.endswith(EXIT):
                self._tracked.track_found(order.client_order_id)
        self._tracked.track_groups()
        self._book.refresh(self._open_exits(symbols))
        legs = self._open_exits(symbols)
        for leg in legs:
            if (found := self._book.get(leg)) is not None and not found.ended:
                self._cancel(found)
        self._wait_for(legs)
        if left := self._open_exits(symbols):
            raise BrokerUnavailable(f"Alpaca is still canceling the stop or target {left[0]}.")

    def _open_exits(self, symbols: Collection[str]) -> list[str]:
        """The orders at Alpaca that protect these symbols and have not ended."""
        exits = [order for each in self._tracked if each.is_exit for order in self._tracked.found(each)]
        return [order.client_order_id for order in exits if order.symbol in symbols and not order.ended]

    def send_second_legs(self, names: Iterable[str]) -> None:
        """Send the second parts of orders through zero whose first parts have closed the position."""
        for tracked in filter(None, map(self._tracked.get, names)):
            first = self._book.get(tracked.client_order_id + FIRST_LEG)
            if not tracked.rest or first is None or not first.ended:
                continue
            rest, tracked.rest = tracked.rest, Decimal(0)
            if first.status != "filled":
                tracked.note = "the position was not closed, so the rest of the order was not sent"
                continue
            try:
                refusal = self._post(tracked, tracked.client_order_id, rest, opens=True)
            except BrokerUnavailable:
                tracked.rest = rest
                raise
            if refusal is not None:
                tracked.note = f"the position was closed, and the rest of the order refused: {refusal}"

    def _send(self, order: OrderRequest, position: Decimal) -> OrderUpdate:
        name = order.client_order_id
        if (known := self._book.get(name)) is not None:
            if not known.ended:
                self._book.ask(name)
            return self._tracked.update(self._tracked.track_found(name))
        tracked = self._tracked.track(name, symbol=order.symbol)
        tracked.limit_price = None if order.closing else order.limit_price
        tracked.stop_price, tracked.target_price = order.stop_price, order.target_price
        if (first := self._book.get(name + FIRST_LEG)) is not None:
            return self._go_on(tracked, order, first)
        terms = plan_order(order, self._asset(order.symbol), position)
        if not terms.legs:
            if order.closing and self._book.ask(name) is not None:  # it has closed the position
                return self._tracked.update(self._tracked.track_found(name))
            return self.rejected(order, terms.note)
        (leg, quantity), *second = terms.legs
        tracked.quantity, tracked.note = terms.quantity, terms.note
        refusal = self._post(tracked, leg, quantity, opens=not position)
        if refusal is not None:
            return self.rejected(order, refusal)
        tracked.rest = second[0][1] if second else Decimal(0)
        return self._tracked.update(tracked)

    def _go_on(self, tracked: Tracked, order: OrderRequest, first: BrokerOrder) -> OrderUpdate:
        """Continue an order through zero whose first part was sent before; the second follows when it is filled."""
        if tracked.rest:
            return self._tracked.update(tracked)
        closed = first.sign * first.quantity
        left = exact(order.quantity) - closed
        rest = plan_order(order._replace(quantity=left, closing=False), self._asset(order.symbol), Decimal(0))
        self._tracked.track_found(tracked.client_order_id)
        tracked.rest, tracked.note, tracked.quantity = rest.quantity, rest.note, closed + rest.quantity
        return self._tracked.update(tracked)

    def _post(self, tracked: Tracked, leg: str, quantity: Decimal, *, opens: bool) -> str | None:
        """Send one order, as `_post_fields`. opens: it opens a position."""
        exits = exit_fields(quantity, tracked.stop_price, tracked.target_price) if opens else {}
        asset = self._asset(tracked.symbol)
        fields = order_fields(leg, tracked.symbol, quantity, tracked.limit_price, asset=asset, exits=exits)
        return self._post_fields(tracked, leg, fields)

    def _post_fields(self, tracked: Tracked, leg: str, fields: Mapping[str, Any]) -> str | None:
        """Send one order. Returns Alpaca's reason if it is refused.

        Raises BrokerUnavailable if it is unknown whether it was accepted: `orders` shows that later, and the ID
        prevents a second order.
        """
        if leg not in tracked.legs:
            tracked.legs.append(leg)
        tracked.tried_at = time.monotonic()
        try:
            self._book.note_group(self._rest.post("/orders", fields))
        except Refused as refused:
            if not _is_duplicate(refused):
                tracked.legs.remove(leg)
                return refused.message
            if self._book.ask(leg) is None:
                raise BrokerUnavailable(f"Alpaca has an order {leg}, but does not show it.") from None
        except BrokerUnavailable as unavailable:
            if self._book.ask(leg) is None:
                raise BrokerUnavailable(f"{unavailable} It is unknown whether it accepted order {leg}.") from None
        return None

    def rejected(self, order: OrderRequest, reason: str) -> OrderUpdate:
        self._tracked.untrack(order.client_order_id)
        now = np.datetime64(time.time_ns(), "ns")
        return OrderUpdate(order.client_order_id, order.symbol, "rejected", order.quantity, Decimal(0), now, reason)

    def _cancel(self, order: BrokerOrder) -> None:
        try:
            self._rest.delete(path_of(order))
        except Refused as refused:
            if refused.status not in (_NOT_FOUND, _UNPROCESSABLE):  # the order has ended
                raise

    def _awaited_leg(self, name: str) -> str:
        tracked = self._tracked.get(name)
        return name + FIRST_LEG if tracked is not None and tracked.rest else ""

    def _wait_for(self, legs: Sequence[str]) -> None:
        """Wait a moment for these orders to end."""

        def have_ended() -> bool:
            return all(map(self._tracked.leg_has_ended, legs))

        end = time.monotonic() + _LONGEST_WAIT_S
        while not have_ended() and time.monotonic() < end:
            if not self._book.wait_until(have_ended, _ASK_EVERY_S):
                self._book.refresh(leg for leg in legs if not self._tracked.leg_has_ended(leg))


def _is_duplicate(refused: Refused) -> bool:
    """Whether an order with this ID exists already; other invalid orders have the same code."""
    return (
        refused.status == _UNPROCESSABLE
        and refused.code == _DUPLICATE
        and "client_order_id must be unique" in refused.message.replace("client order id", "client_order_id")
    )

"""Stop loss and take profit as orders at the broker, which protect positions also while no session runs.

The broker holds one protective order per position, at the prices at which the kernel of the backtest closes it. The
state of the session names the order before it is sent, so a restarted session finds it by its ID and sends no second.
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from decimal import Decimal
from typing import Any, NamedTuple

from ml_pipeline.live.brokers.broker import (
    ENDED,
    Broker,
    OrderRequest,
    OrderUpdate,
    Protection,
    ProtectsPositions,
    exact,
)
from ml_pipeline.live.record.session_record import SessionRecord
from ml_pipeline.trading.accounts.orders import PLAIN_OPS, Terms
from ml_pipeline.trading.accounts.within_bar import within_steps

_STEPS = within_steps(PLAIN_OPS)
_ATTEMPTS = 2
_Values = list[Any]
"""[quantity as text, stop or None, target or None] of a protective order, as JSON has it."""


class Position(NamedTuple):
    """A position in the books. quantity: signed, 0 if there is none. entry: its average entry price."""

    symbol: str
    quantity: Decimal
    entry: float


class Unprotected(NamedTuple):
    """A position whose protective order the broker refuses, and the reason."""

    position: Position
    reason: str


def exit_prices(quantity: float, entry: float, terms: Terms) -> tuple[float | None, float | None]:
    """(stop, target) at which the kernel closes a position with this average entry price; None: no such rule.

    >>> exit_prices(-10.0, 100.0, Terms(0.0, 0.0, stop_loss=0.25, take_profit=0.5))
    (125.0, 50.0)
    """

    def reached(rule: Terms) -> float | None:
        # A bar that opens at the entry price and then has every price is left at exactly the stop or the target.
        left, price = _STEPS.exit_order(0.0, 0.0, quantity, entry, entry, -math.inf, math.inf, entry, True, rule)
        return float(price) if left else None

    return reached(terms._replace(take_profit=0.0)), reached(terms._replace(stop_loss=0.0))


class Protector:
    """The protective orders of a session.

    It does nothing if the rules have no stop and no target, or if the broker does not take protective orders, as the
    simulated one, which closes positions itself. name: (symbol, number) -> ID of the protective order.
    """

    def __init__(self, broker: Broker, record: SessionRecord, terms: Terms, *, name: Callable[[str, int], str]) -> None:
        has_rule = terms.stop_loss > 0.0 or terms.take_profit > 0.0
        self._broker = broker if has_rule and isinstance(broker, ProtectsPositions) else None
        self._record, self._terms, self._name = record, terms, name
        self._confirmed: set[str] = set()  # IDs of orders that the broker holds, as far as this process knows
        self._refused_at: dict[str, int] = {}  # the bar at which the broker last refused to protect a symbol

    @property
    def active(self) -> bool:
        """Whether the broker gets protective orders."""
        return self._broker is not None

    def knows(self, client_order_id: str) -> bool:
        """Whether this is the protective order of a position."""
        return self._symbol_of(client_order_id) is not None

    def with_exits(self, order: OrderRequest, close: float) -> OrderRequest:
        """The order with stop and target of the position that it may open. close: of its decision."""
        if self._broker is None or order.closing:
            return order
        stop, target = exit_prices(float(order.quantity), order.limit_price or close, self._terms)
        return order._replace(stop_price=stop, target_price=target)

    def lift(self, symbols: Collection[str]) -> None:
        """Cancel the protective orders of these symbols: brokers take no second order for the same shares.

        `keep_rest` and `keep` replace them. Raises BrokerUnavailable if one is still open.
        """
        if self._broker is not None:
            self._confirmed -= {self._of(symbol).get("id") for symbol in symbols}
            self._broker.unprotect(symbols)

    def keep_rest(self, changes: Mapping[str, Decimal]) -> None:
        """After `lift` and before orders are sent, protect what they leave of the positions that they reduce.

        changes: signed quantity of the order of each symbol. An order that enlarges a position leaves nothing: brokers
        take no purchase while a stop to sell is open. `keep` renews what is refused here. Raises BrokerUnavailable.
        """
        rests = []
        with self._record.transaction():
            for symbol, change in changes.items():
                if "id" not in (own := self._of(symbol)):
                    continue
                quantity, *prices = own["values"]
                whole = exact(own.get("whole", quantity)) + exact(own["filled"])
                if exact(quantity) * whole > 0 and whole * change < 0 < whole * (whole + change):
                    self._renew(symbol, [str(whole + change), *prices])
                    # For another call, if the process ends before the order is sent; `keep` removes it.
                    self._set(symbol, {**self._of(symbol), "whole": str(whole)})
                    rests.append(symbol)
        for symbol in rests:
            self._send(symbol)

    def note(self, update: OrderUpdate) -> bool:
        """Record the broker's update of a protective order, within a transaction. Returns False for other orders."""
        if (symbol := self._symbol_of(update.client_order_id)) is None:
            return False
        if update.status in ENDED:
            self._confirmed.discard(update.client_order_id)
        self._set(symbol, {**self._of(symbol), "filled": str(exact(update.filled_quantity))})
        return True

    def note_end(self, symbol: str, filled: Decimal) -> None:
        """Record, within a transaction, that an order of the session has ended, and what of it was filled, signed.

        `keep_rest` counts from it if the next order comes before `keep`.
        """
        own = self._of(symbol)
        if filled and "id" in own:
            self._set(symbol, {**own, "whole": str(exact(own.get("whole", own["values"][0])) + filled)})

    def keep(
        self, positions: Iterable[Position], bar: int, *, any_closed: Callable[[], bool]
    ) -> list[Unprotected] | None:
        """Make the protective orders fit these positions, whose symbols have no other open orders.

        bar: number of the next bar. any_closed: receives events, and returns whether a protective order has closed a
        position. Then returns None, because that must be booked first; otherwise the positions that the broker refuses
        to protect, once per bar. Raises BrokerUnavailable.
        """
        if self._broker is None:
            return []
        positions = [each for each in positions if self._refused_at.get(each.symbol) != bar]
        wanted = {each.symbol: self._wanted(each) for each in positions}
        changed = [symbol for symbol, values in wanted.items() if not self._fits(symbol, values)]
        if changed:
            self.lift(changed)
            if any_closed():
                return None
            with self._record.transaction():
                for symbol in changed:
                    self._renew(symbol, wanted[symbol])
        for symbol in wanted:
            if "whole" in (own := self._of(symbol)):
                with self._record.transaction():
                    self._set(symbol, {name: value for name, value in own.items() if name != "whole"})
        refused = []
        for position in positions:
            if (reason := self._send(position.symbol)) is not None:
                self._refused_at[position.symbol] = bar
                refused.append(Unprotected(position, reason))
        return refused

    def _wanted(self, position: Position) -> _Values | None:
        """Quantity, stop and target of a protective order; None if there is nothing to protect."""
        if not position.quantity or not position.entry:
            return None
        return [str(position.quantity), *exit_prices(float(position.quantity), position.entry, self._terms)]

    def _fits(self, symbol: str, wanted: _Values | None) -> bool:
        own = self._of(symbol)
        if wanted is None or "id" not in own:
            return wanted is None and "id" not in own
        (quantity, *prices), (left, *wanted_prices) = own["values"], wanted
        return prices == wanted_prices and exact(quantity) + exact(own["filled"]) == exact(left)

    def _send(self, symbol: str) -> str | None:
        """Send the symbol's protective order unless the broker holds it. Returns the reason if it is refused."""
        assert self._broker is not None
        for _ in range(_ATTEMPTS):
            own = self._of(symbol)
            if "id" not in own or own["id"] in self._confirmed:
                return None
            quantity, *prices = own["values"]
            protection = Protection(own["id"], symbol, exact(quantity), *prices)
            (update,) = self._broker.protect([protection])
            with self._record.transaction():
                values = protection._asdict() | {"status": update.status, "reason": update.reason}
                self._record.log("protection", self._record.state.time, **values)
                if update.status == "rejected":
                    self._renew(symbol, None)
                    return update.reason or "no reason given"
                left = protection.quantity + exact(update.filled_quantity)
                if update.status not in ENDED or not left:
                    self._confirmed.add(own["id"])  # fills, if any, arrive as events
                    return None
                self._renew(symbol, [str(left), *prices])  # it was canceled, or covered only a part
        return None

    def _renew(self, symbol: str, values: _Values | None) -> None:
        """Record that the symbol's next protective order has these values, within a transaction; None: it has none."""
        number = int(self._of(symbol).get("number", 0)) + 1
        own: dict[str, Any] = {"number": number}
        if values is not None:
            own |= {"id": self._name(symbol, number), "values": values, "filled": "0"}
        self._set(symbol, own)

    def _of(self, symbol: str) -> Mapping[str, Any]:
        return self._record.state.protections.get(symbol, {})

    def _set(self, symbol: str, own: dict[str, Any]) -> None:
        self._record.state.protections = {**self._record.state.protections, symbol: own}

    def _symbol_of(self, client_order_id: str) -> str | None:
        own = self._record.state.protections
        return next((symbol for symbol, each in own.items() if each.get("id") == client_order_id), None)

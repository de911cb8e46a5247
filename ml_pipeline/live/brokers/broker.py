"""The interface of a broker. A new broker is one module with a class that has these methods.

Quantities are signed: positive buys, negative sells. Times are UTC.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol, get_args

import numpy as np

from ml_pipeline.trading.market.bar_set import BarSet

# A whole number of steps that rounding has left slightly short is that number.
_STEP_ROUNDING = 1e-9

OrderStatus = Literal["accepted", "partly_filled", "filled", "canceled", "expired", "rejected"]
ENDED: tuple[OrderStatus, ...] = get_args(OrderStatus)[2:]
"""Final states of an order."""


class BrokerUnavailable(Exception):
    """The broker cannot be reached, or did not answer in time. It may or may not have accepted the order."""


class OrderRequest(NamedTuple):
    """An order for one symbol, decided at one bar.

    client_order_id: unique in the account, and known before the order is sent. quantity: sized at the close of the
    decision; 0 if it depends on the fill's price. weight: the target as a fraction of equity, from which a broker with
    `sizes_at_fill` computes the quantity. limit_price: None for a market order. closing: it closes the whole position,
    and no limit applies.
    targets: weights of all symbols of the decision, in their order; set on one of its orders if symbols without an
    order count in the sum that `max_gross` limits. Only for a broker with `sizes_at_fill`.
    """

    client_order_id: str
    symbol: str
    quantity: float
    weight: float
    limit_price: float | None = None
    closing: bool = False
    targets: tuple[float, ...] | None = None


class OrderUpdate(NamedTuple):
    """The state of an order at the broker. quantity: None if it is sized at the fill. reason: of a rejection, in words.

    price: of the attempt in the last bar, filled or not; None if unknown.
    """

    client_order_id: str
    symbol: str
    status: OrderStatus
    quantity: float | None
    filled_quantity: float
    time: np.datetime64
    reason: str = ""
    price: float | None = None


class Fill(NamedTuple):
    """A fill of an order, or of a part of it. costs: money paid in addition to quantity * price.

    fill_id: the broker's; it identifies a fill that is reported twice. exit: the broker closed the position itself, at
    a stop or target; margin_called: for lack of margin.
    """

    fill_id: str
    client_order_id: str
    symbol: str
    quantity: float
    price: float
    costs: float
    time: np.datetime64
    exit: bool = False
    margin_called: bool = False


class Charge(NamedTuple):
    """Money that the broker charged in addition to the costs of orders, such as borrowing fees; positive: paid.

    days: of interest, if it is charged by calendar day. margin_called: the charge could not be paid.
    """

    charge_id: str
    amount: float
    what: str
    time: np.datetime64
    days: float | None = None
    margin_called: bool = False


BrokerEvent = OrderUpdate | Fill | Charge


class AccountState(NamedTuple):
    """The account at the broker. positions: signed quantity by symbol."""

    cash: float
    equity: float
    buying_power: float
    positions: Mapping[str, float]


class TradingSession(NamedTuple):
    """One market session. Half days end early, and holidays have none."""

    opens: np.datetime64
    closes: np.datetime64


@dataclass(frozen=True)
class QuantityRules:
    """The quantities that a broker accepts.

    steps: step of each symbol, such as 1 for whole shares; 0: any quantity. usual_step: step of other symbols.
    smallest_order: in money. whole_shorts: short positions are whole shares, regardless of the step.
    """

    steps: Mapping[str, float] = field(default_factory=dict)
    usual_step: float = 0.0
    smallest_order: float = 0.0
    whole_shorts: bool = False

    def quantity(self, symbol: str, order: float, held: float) -> float:
        """The order, rounded down to a quantity that the broker accepts; one that closes the position is unchanged."""
        if order == -held:
            return order
        step = self.steps.get(symbol, self.usual_step)
        if self.whole_shorts and held + order < 0.0:
            step = max(step, 1.0)
            short = math.floor(-(held + order) / step + _STEP_ROUNDING) * step
            return -short - held if order < 0.0 or short < -held else 0.0
        return math.copysign(math.floor(abs(order) / step + _STEP_ROUNDING) * step, order) if step else order


class Broker(Protocol):
    """An account that accepts orders. Every method except `close` may raise BrokerUnavailable.

    A broker may also have `account_id`, a text: two sessions of a user on one machine then cannot trade one account.
    And `has_clock = True`: `now` is a clock even before the first bar.
    """

    name: str
    sizes_at_fill: bool
    """True: it sizes orders by their weight, at the fill's price. False: it uses their quantity."""
    real_money: bool
    quantities: QuantityRules | None
    """The quantities that it accepts, if `sizes_at_fill` is False; None: any."""

    def account(self) -> AccountState:
        """Cash, equity and positions now."""

    def orders(self, client_order_ids: Sequence[str] | None = None) -> list[OrderUpdate]:
        """The known orders among these IDs, in any state; None: all open orders."""

    def submit(self, orders: Sequence[OrderRequest]) -> list[OrderUpdate]:
        """Send the orders of one decision. Returns the first state of each, which may be a rejection.

        An order with a known ID is not accepted again; its current state is returned.
        """

    def cancel(self, client_order_ids: Sequence[str]) -> None:
        """Cancel the open ones of these orders; others are unchanged."""

    def market_closed_bar(self, bars: BarSet) -> None:
        """The market's next bars, in order. A broker that simulates fills uses them; others ignore them.

        Repeated bars change nothing.
        """

    def poll(self, cursor: str | None) -> tuple[list[BrokerEvent], str | None]:
        """The events after `cursor`, oldest first, and the next cursor; None: from the beginning.

        The same cursor returns the same events, so a caller that was killed before it stored them can ask again.
        """

    def now(self) -> np.datetime64:
        """The time by the broker's clock; the close of the last bar if it fills orders with bars and has no clock."""

    def sessions(self, first: np.datetime64, last: np.datetime64) -> list[TradingSession]:
        """The market's sessions between two days; empty if it never closes."""

    def close(self) -> None:
        """Close connections and end threads. Orders and positions are unchanged."""

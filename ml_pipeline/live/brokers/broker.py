"""What the trading loop needs of a broker. A new broker is one module with a class that has these methods.

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
"""Nothing more will happen to an order of these."""


class BrokerUnavailable(Exception):
    """The broker cannot be reached now, or does not answer in time. Whether it took the order is not known."""


class OrderRequest(NamedTuple):
    """An order for one symbol, decided at one bar.

    client_order_id: the only one of this account, known before it is sent. quantity: as sized at the close that it was
    decided on; 0 where only the fill's price tells. weight: the target as a fraction of equity, by which a broker that
    `sizes_at_fill` finds the quantity. limit_price: None for a market order. closing: it closes a position whole, and
    no limit applies.
    targets: of all symbols of the decision, in their order, on one of its orders, where symbols that get no order count
    in the sum that `max_gross` bounds; only for a broker that `sizes_at_fill`.
    """

    client_order_id: str
    symbol: str
    quantity: float
    weight: float
    limit_price: float | None = None
    closing: bool = False
    targets: tuple[float, ...] | None = None


class OrderUpdate(NamedTuple):
    """An order as the broker has it. quantity: None where it is sized at the fill. reason: of a rejection, in words.

    price: at which it was tried in the last bar, filled or not; None where that is not known.
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
    """A part of an order that was filled. costs: money paid for it besides quantity * price.

    fill_id: the broker's, by which a fill that is told twice is known. exit: the broker closed a position itself, at a
    stop or at a target; margin_called: for lack of margin.
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
    """Money that the broker took besides costs of orders, such as borrowing fees: positive where it was paid.

    days: for which interest was charged, where it is charged by calendar day. margin_called: it could not be paid.
    """

    charge_id: str
    amount: float
    what: str
    time: np.datetime64
    days: float | None = None
    margin_called: bool = False


BrokerEvent = OrderUpdate | Fill | Charge


class AccountState(NamedTuple):
    """The account as the broker has it. positions: signed quantities, of symbols that are held."""

    cash: float
    equity: float
    buying_power: float
    positions: Mapping[str, float]


class TradingSession(NamedTuple):
    """When a market is open: half days end early, and holidays have none."""

    opens: np.datetime64
    closes: np.datetime64


@dataclass(frozen=True)
class QuantityRules:
    """Which quantities a broker takes.

    steps: of each symbol, such as 1 for whole shares; 0: any. usual_step: of the other symbols. smallest_order: in
    money. whole_shorts: short positions are of whole shares, whatever the step.
    """

    steps: Mapping[str, float] = field(default_factory=dict)
    usual_step: float = 0.0
    smallest_order: float = 0.0
    whole_shorts: bool = False

    def quantity(self, symbol: str, order: float, held: float) -> float:
        """The order, rounded down to what the broker takes; one that closes the position stays whole."""
        if order == -held:
            return order
        step = self.steps.get(symbol, self.usual_step)
        if self.whole_shorts and held + order < 0.0:
            step = max(step, 1.0)
            short = math.floor(-(held + order) / step + _STEP_ROUNDING) * step
            return -short - held if order < 0.0 or short < -held else 0.0
        return math.copysign(math.floor(abs(order) / step + _STEP_ROUNDING) * step, order) if step else order


class Broker(Protocol):
    """An account that orders are sent to. Every method but `close` may raise BrokerUnavailable."""

    name: str
    sizes_at_fill: bool
    """Whether it sizes orders by their weight at the fill's price; otherwise by their quantity."""
    real_money: bool
    quantities: QuantityRules | None
    """Which quantities it takes, if `sizes_at_fill` is False; None: any."""

    def account(self) -> AccountState:
        """Cash, equity and positions now."""

    def orders(self, client_order_ids: Sequence[str] | None = None) -> list[OrderUpdate]:
        """The named orders that it knows, whatever became of them; None: all that are open."""

    def submit(self, orders: Sequence[OrderRequest]) -> list[OrderUpdate]:
        """Send the orders of one decision; the first state of each, a rejection included.

        One with an id that it has already is not taken again: its state as it is.
        """

    def cancel(self, client_order_ids: Sequence[str]) -> None:
        """Cancel what is open of these; one that has ended stays as it is."""

    def market_closed_bar(self, bars: BarSet) -> None:
        """The market's next bars, in order. A broker that simulates fills learns from them; any other ignores them.

        The same bars again change nothing.
        """

    def poll(self, cursor: str | None) -> tuple[list[BrokerEvent], str | None]:
        """What happened after `cursor`, oldest first, and the cursor after it; None: from the beginning.

        The same cursor gives the same events again, so that whoever was killed before it wrote them down asks again.
        """

    def now(self) -> np.datetime64:
        """The time by the broker's clock."""

    def sessions(self, first: np.datetime64, last: np.datetime64) -> list[TradingSession]:
        """The market's sessions between two days; empty where it never closes."""

    def close(self) -> None:
        """Let go of connections and threads. Orders and positions stay as they are."""

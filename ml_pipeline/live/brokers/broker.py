"""The interface of a broker. A new broker is one module with a class that has these methods.

Quantities are signed: positive buys, negative sells. They are decimals; money and prices are floats. Times are UTC.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import ROUND_FLOOR, Decimal
from typing import Literal, NamedTuple, Protocol, get_args, runtime_checkable

import numpy as np

from ml_pipeline.trading.market.bar_set import BarSet

SMALLEST_QUANTITY = Decimal("1e-9")
"""The smallest quantity of an order, where a broker names no other: nine decimals."""
# A whole number of steps that rounding has left slightly short is that number.
_STEP_ROUNDING = Decimal("1e-9")

OrderStatus = Literal["accepted", "partly_filled", "filled", "canceled", "expired", "rejected"]
ENDED: tuple[OrderStatus, ...] = get_args(OrderStatus)[2:]
"""Final states of an order."""


def exact(quantity: Decimal | float | str) -> Decimal:
    """A quantity as a decimal. A float becomes its shortest text, so `float` of the result has the same bits.

    >>> exact(0.1) + exact(0.2), exact("5")
    (Decimal('0.3'), Decimal('5'))
    """
    return quantity if isinstance(quantity, Decimal) else Decimal(str(quantity))


def quantity_text(quantity: Decimal | float) -> str:
    """A quantity for messages, with all of its digits.

    >>> quantity_text(Decimal("1234.50")), quantity_text(1e-9)
    ('1,234.5', '0.000000001')
    """
    return f"{exact(quantity).normalize():,f}"


class BrokerUnavailable(Exception):
    """The broker cannot be reached, or did not answer in time. It may or may not have accepted the order."""


class UnreadableAnswer(BrokerUnavailable):
    """The broker answered, but the answer cannot be used. The message names what is wrong with it."""


class OrderRequest(NamedTuple):
    """An order for one symbol, decided at one bar.

    client_order_id: unique in the account, and known before the order is sent. quantity: sized at the close of the
    decision; 0 if it depends on the fill's price. weight: the target as a fraction of equity, from which a broker with
    `sizes_at_fill` computes the quantity. limit_price: None for a market order. closing: it closes the whole position,
    and no limit applies.
    targets: weights of all symbols of the decision, in their order; set on one of its orders if symbols without an
    order count in the sum that `max_gross` limits. Only for a broker with `sizes_at_fill`.
    price: the close of the decision, if known, to estimate its value.
    stop_price, target_price: of a position that this order opens; only for a broker that `ProtectsPositions`, which
    then protects the position from its first fill on.
    """

    client_order_id: str
    symbol: str
    quantity: Decimal
    weight: float
    limit_price: float | None = None
    closing: bool = False
    targets: tuple[float, ...] | None = None
    price: float | None = None
    stop_price: float | None = None
    target_price: float | None = None


class Protection(NamedTuple):
    """The stop loss and the take profit of one position, as an order at the broker, good until canceled.

    client_order_id: as of an order. quantity: signed, of the position. stop_price, target_price: None: no such rule.
    """

    client_order_id: str
    symbol: str
    quantity: Decimal
    stop_price: float | None
    target_price: float | None


class OrderUpdate(NamedTuple):
    """The state of an order at the broker. quantity: None if it is sized at the fill. reason: of a rejection, in words.

    price: of the attempt in the last bar, filled or not; None if unknown.
    """

    client_order_id: str
    symbol: str
    status: OrderStatus
    quantity: Decimal | None
    filled_quantity: Decimal
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
    quantity: Decimal
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


AdjustmentKind = Literal[
    "split", "symbol change", "merger", "spin-off", "reorganization", "deposit", "withdrawal", "transfer", "difference"
]
FLOWS: tuple[AdjustmentKind, ...] = ("deposit", "withdrawal", "transfer", "difference", "symbol change")
"""Kinds that bring or take value, so that they are neither profit nor loss."""


class Adjustment(NamedTuple):
    """A change of the account that is neither a fill nor a cost.

    kind: its name; "difference": unknown to the broker, and taken over from its account. symbol: "" if only cash
    changes. quantity, cash: what came (positive) or went. what: the broker's description.
    """

    adjustment_id: str
    kind: AdjustmentKind
    symbol: str
    quantity: Decimal
    cash: float
    what: str
    time: np.datetime64

    def in_words(self) -> str:
        """
        >>> time = np.datetime64("2024-03-01")
        >>> Adjustment("1", "split", "AAPL", Decimal("431.6"), 0.0, "2 for 1", time).in_words()
        'split, +431.6 AAPL (2 for 1)'
        >>> Adjustment("2", "withdrawal", "", Decimal(0), -2500.0, "", time).in_words()
        'withdrawal, -2,500.00 in cash'
        """
        sign = "+" if self.quantity > 0 else ""
        changes = [f"{sign}{quantity_text(self.quantity)} {self.symbol}"] if self.quantity else []
        changes += [f"{self.cash:+,.2f} in cash"] if self.cash else []
        return ", ".join([self.kind, *changes]) + (f" ({self.what})" if self.what else "")


class Notice(NamedTuple):
    """A report of the broker that cannot be booked. sentence: with the ID at the broker."""

    notice_id: str
    sentence: str
    time: np.datetime64


BrokerEvent = OrderUpdate | Fill | Charge | Adjustment | Notice


class AccountState(NamedTuple):
    """The account at the broker. positions: signed quantity by symbol."""

    cash: float
    equity: float
    buying_power: float
    positions: Mapping[str, Decimal]


class TradingSession(NamedTuple):
    """One market session. Half days end early, and holidays have none."""

    opens: np.datetime64
    closes: np.datetime64


@dataclass(frozen=True)
class QuantityRules:
    """The quantities that a broker accepts.

    steps: step of each symbol, such as 1 for whole shares; 0: any quantity. usual_step: step of other symbols.
    smallest_order: in money, of orders that do not close a position. whole_shorts: short positions are whole shares,
    regardless of the step. smallest: the smallest quantity of an order by symbol; of other symbols SMALLEST_QUANTITY.
    """

    steps: Mapping[str, Decimal | float] = field(default_factory=dict)
    usual_step: Decimal | float = 0.0
    smallest_order: float = 0.0
    whole_shorts: bool = False
    smallest: Mapping[str, Decimal | float] = field(default_factory=dict)

    def is_flat(self, symbol: str, quantity: Decimal) -> bool:
        """Whether a position is flat, or two positions are equal: no order is as small as `quantity`.

        This is the only tolerance for quantities.
        """
        return not quantity or abs(exact(quantity)) < exact(self.smallest.get(symbol, SMALLEST_QUANTITY))

    def open_positions(self, held: Mapping[str, Decimal]) -> dict[str, Decimal]:
        """The positions that are not flat."""
        return {symbol: exact(n) for symbol, n in held.items() if not self.is_flat(symbol, n)}

    def left_over(self, held: Mapping[str, Decimal]) -> str:
        """A sentence on what is held but counts as flat; empty if there is nothing."""
        rest = [f"{quantity_text(n)} {symbol}" for symbol, n in held.items() if n and self.is_flat(symbol, n)]
        return f" {', '.join(rest)} is left over: it is below the smallest order and counts as flat." if rest else ""

    def quantity(self, symbol: str, order: Decimal | float, held: Decimal) -> Decimal:
        """The order, rounded down to a quantity that the broker accepts; 0 if it is below the smallest.

        Here a float of the kernel becomes a decimal. An order that would leave less than the smallest order closes the
        position instead, to its last digit.
        """
        wanted, held = exact(order), exact(held)
        if not wanted.is_finite():
            return wanted  # a guard refuses it
        if float(order) == -float(held) or self.is_flat(symbol, held + wanted):
            return -held
        step = exact(self.steps.get(symbol, self.usual_step))
        if self.whole_shorts and held + wanted < 0:
            step = max(step, Decimal(1))
            short = _whole_steps(-(held + wanted), step)
            rounded = -short - held if wanted < 0 or short < -held else Decimal(0)
        else:
            rounded = _whole_steps(abs(wanted), step).copy_sign(wanted) if step else wanted
        return Decimal(0) if self.is_flat(symbol, rounded) else rounded


def _whole_steps(quantity: Decimal, step: Decimal) -> Decimal:
    return (quantity / step + _STEP_ROUNDING).to_integral_value(ROUND_FLOOR) * step


class Broker(Protocol):
    """An account that accepts orders. Every method except `close` may raise BrokerUnavailable.

    A broker may also have `account_id`, a text: two sessions of a user on one machine then cannot trade one account.
    And `has_clock = True`: `now` is a clock even before the first bar.
    """

    name: str
    sizes_at_fill: bool
    """True: it sizes orders by their weight, at the fill's price. False: it uses their quantity."""
    real_money: bool

    @property
    def quantities(self) -> QuantityRules | None:
        """The quantities that it accepts; None: any. It may be a constant of the class."""

    def account(self) -> AccountState:
        """Cash, equity and positions now."""

    def orders(self, client_order_ids: Sequence[str] | None = None) -> list[OrderUpdate]:
        """The known orders among these IDs, in any state; None: all open orders.

        The latter may include filled orders of other sources, which a session reports as differences.
        """

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


@runtime_checkable
class ProtectsPositions(Protocol):
    """A broker that closes positions at a stop or a target by itself, also while this program does not run.

    It reports fills with `exit`, under the ID of the protection, or of the order that opened the position.
    """

    def protect(self, protections: Sequence[Protection]) -> list[OrderUpdate]:
        """Send protective orders. Returns the first state of each, which may be a rejection.

        A protection with a known ID is not accepted again; its current state is returned.
        """

    def unprotect(self, symbols: Collection[str]) -> None:
        """Cancel the protective orders of these symbols, and wait until they have ended.

        Raises BrokerUnavailable if one is still open.
        """

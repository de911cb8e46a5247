"""The interface of a guard, its verdicts, and the exposure of the account after orders."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike

from ml_pipeline.live.brokers.broker import OrderRequest, TradingSession
from ml_pipeline.trading.market.bar_set import BarSet

Action = Literal["trade", "hold", "flatten"]
_STRENGTH: dict[Action, int] = {"trade": 0, "hold": 1, "flatten": 2}


class Refusal(NamedTuple):
    """A refusal or warning of a guard.

    symbol: None for the whole account. value, limit: the actual and the allowed value, in the unit of the sentence;
    NaN if there is no such number. warning: it is only reported, nothing is refused.
    """

    guard: str
    symbol: str | None
    value: float
    limit: float
    sentence: str
    warning: bool = False


class Verdict(NamedTuple):
    """The verdict of one or all guards about a bar.

    action: order as decided, hold all positions, or close them. blocked: refusals of symbols that must not be traded on
    this bar. ends: why the session ends after the action; None: it continues.
    """

    refusals: tuple[Refusal, ...] = ()
    action: Action = "trade"
    blocked: tuple[Refusal, ...] = ()
    ends: str | None = None


TRADE = Verdict()
"""Nothing to refuse."""


def strongest(actions: Iterable[Action]) -> Action:
    """The action that takes the least risk: flatten before hold before trade.

    >>> strongest(["trade", "flatten", "hold"]), strongest([])
    ('flatten', 'trade')
    """
    return max(actions, key=_STRENGTH.__getitem__, default="trade")


def together(verdicts: Iterable[Verdict]) -> Verdict:
    """The verdict of several guards: every refusal, the strongest action, and the first end."""
    each = list(verdicts)
    return Verdict(
        refusals=tuple(refusal for verdict in each for refusal in verdict.refusals),
        action=strongest(verdict.action for verdict in each),
        blocked=tuple(refusal for verdict in each for refusal in verdict.blocked),
        ends=next((verdict.ends for verdict in each if verdict.ends is not None), None),
    )


def blocking(refusals: Iterable[Refusal]) -> Verdict:
    """A verdict that blocks the symbols of these refusals on this bar."""
    found = tuple(refusals)
    return Verdict(found, "trade", found)


# Weights and values are computed in floats: their last bits must not break a limit that is met exactly.
ROUNDING = 1e-9


class Exposure:
    """Positions at the last closes, and after orders.

    A symbol may have several orders. Their effect is estimated at the close of the decision; the fill may have another
    price.
    """

    def __init__(self, equity: float, holdings: Mapping[str, float], closes: Mapping[str, float]) -> None:
        """equity: in money. holdings: signed quantities. closes: the last price of each symbol, NaN or missing if there
        is none.
        """
        self.equity = equity
        self._holdings = dict(holdings)
        self._closes = dict(closes)
        self._worth = {symbol: self._value(symbol, quantity) for symbol, quantity in holdings.items()}
        self._gross = math.fsum(map(abs, self._worth.values()))

    def knows(self, symbol: str) -> bool:
        """Whether the symbol has a price with which to judge an order."""
        price = self._closes.get(symbol, math.nan)
        return math.isfinite(price) and price > 0.0

    def price(self, symbol: str) -> float:
        """The last close; NaN if there is none."""
        return self._closes.get(symbol, math.nan)

    def holding(self, symbol: str) -> float:
        """The signed quantity, including the orders counted by `take`."""
        return self._holdings.get(symbol, 0.0)

    def reduces(self, order: OrderRequest) -> bool:
        """Whether the order only makes a position smaller: never larger, and never one on the other side."""
        before, quantity = self.holding(order.symbol), float(order.quantity)
        if not quantity:
            return order.weight * before >= 0.0 and self.position_after(order) <= self.worth(order.symbol)
        return before * quantity < 0.0 and abs(quantity) <= abs(before) * (1 + ROUNDING)

    def order_value(self, order: OrderRequest) -> float:
        """The absolute value of the order in money; from its weight if its quantity depends on the fill."""
        if order.quantity == 0.0:
            signed = self._value(order.symbol, self.holding(order.symbol))
            return abs(order.weight * self.equity - signed)
        return abs(self._value(order.symbol, float(order.quantity)))

    def worth(self, symbol: str) -> float:
        """The absolute value of a position."""
        return abs(self._worth.get(symbol, 0.0))

    def position_after(self, order: OrderRequest) -> float:
        """The absolute value of the position after the order. If the quantity depends on the fill, it is at least the
        current value, because the order may do nothing."""
        if order.quantity == 0.0:
            target = 0.0 if order.closing else abs(order.weight * self.equity)
            return max(self.worth(order.symbol), target)
        return abs(self._value(order.symbol, self.holding(order.symbol) + float(order.quantity)))

    def gross_after(self, order: OrderRequest) -> float:
        """The sum of absolute values of all positions after the order."""
        return self._gross - self.worth(order.symbol) + self.position_after(order)

    def take(self, order: OrderRequest) -> None:
        """Count an order as if it were filled."""
        after = self.position_after(order)
        self._gross += after - self.worth(order.symbol)
        self._holdings[order.symbol] = self.holding(order.symbol) + float(order.quantity)
        self._worth[order.symbol] = after

    def _value(self, symbol: str, quantity: float) -> float:
        return quantity * self.price(symbol) if quantity else 0.0


def by_symbol(symbols: Sequence[str], values: object) -> dict[str, float]:
    """Numbers by symbol, from a mapping or a sequence in the order of the symbols."""
    if isinstance(values, Mapping):
        return {symbol: float(value) for symbol, value in values.items()}
    return {symbol: float(value) for symbol, value in zip(symbols, values, strict=True)}  # type: ignore[call-overload]


class Moment(NamedTuple):
    """The time at which guards judge bars.

    now: by the broker's clock, which in a replay follows the bars. session: the market session of the bars, or the
    nearest one; None if the market never closes. clock_ahead_s: how far the clock that closes the bars is ahead of the
    broker's, in seconds.
    """

    now: np.datetime64
    session: TradingSession | None
    clock_ahead_s: float = 0.0


class AccountNow(NamedTuple):
    """The account at the close of a bar. day: of the market, as text that sorts by time."""

    equity: float
    bar_time: np.datetime64
    day: str


class DecisionMade(Protocol):
    """The part of a decision that guards read. weights: (A,). out_of_range: (column, value, low, high) of each feature
    outside its range in training."""

    @property
    def action(self) -> ArrayLike: ...

    @property
    def weights(self) -> ArrayLike: ...

    @property
    def out_of_range(self) -> Sequence[tuple[str, float, float, float]]: ...


class Guard:
    """Base class that refuses nothing; each guard overrides the methods that it needs."""

    name: ClassVar[str]

    def note_history(self, bars: BarSet) -> None:
        """Learn from a bar without a decision."""

    def on_bars(self, bars: BarSet, moment: Moment) -> Verdict:
        """Judge the bars."""
        return TRADE

    def on_account(self, account: AccountNow) -> Verdict:
        """Judge the account."""
        return TRADE

    def note_flow(self, amount: float) -> None:
        """Note that money came into the account (positive) or left it, which is neither profit nor loss."""

    def note_split(self, symbol: str, factor: float) -> None:
        """Note that the prices of a symbol are multiplied by this factor from the next bar on."""

    def on_decision(self, decision: DecisionMade) -> Verdict:
        """Judge the decision."""
        return TRADE

    def before_orders(self) -> Verdict:
        """A last check before the orders of a decision are sent."""
        return TRADE

    def on_order(self, order: OrderRequest, account: Exposure, now: np.datetime64) -> Refusal | None:
        """Why an order that opens or enlarges a position is refused; None if it is allowed.

        account: including the orders of the same decision that were allowed so far.
        """
        return None

    def note_sent(self, order: OrderRequest, now: np.datetime64) -> None:
        """Note that an order was allowed."""

    def state(self) -> dict[str, Any]:
        """The state that must survive a restart, as JSON data."""
        return {}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a `state()`."""

"""What a guard is, what it answers, and the account as orders would leave it."""

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
    """Something that a guard refused, or only told.

    symbol: None where it concerns the whole account. value: what was met, and limit: what is allowed, in the unit that
    the sentence names; NaN where there is no such number. warning: it was told, and nothing was refused.
    """

    guard: str
    symbol: str | None
    value: float
    limit: float
    sentence: str
    warning: bool = False


class Verdict(NamedTuple):
    """What a guard, or all of them, say about a bar.

    action: order as decided, hold all positions as they are, or close them. blocked: symbols that are not to be traded
    on this bar, with the refusal. ends: why the session ends once that is done; None: it goes on.
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
    """A verdict by which the symbols of these refusals are not traded on this bar."""
    found = tuple(refusals)
    return Verdict(found, "trade", found)


# Weights and values are quotients and sums of floats: a limit that is met exactly is not broken by their last bits.
ROUNDING = 1e-9


class Exposure:
    """Positions at the last closes, and what orders would make of them.

    A symbol may have several orders. What an order leads to is estimated at the close that it was decided on; the fill
    may come at another price.
    """

    def __init__(self, equity: float, holdings: Mapping[str, float], closes: Mapping[str, float]) -> None:
        """equity: in money. holdings: signed quantities. closes: the last price of each symbol, NaN or missing where
        there is none.
        """
        self.equity = equity
        self._holdings = dict(holdings)
        self._closes = dict(closes)
        self._worth = {symbol: self._value(symbol, quantity) for symbol, quantity in holdings.items()}
        self._gross = math.fsum(map(abs, self._worth.values()))

    def knows(self, symbol: str) -> bool:
        """Whether the symbol has a price by which an order can be judged."""
        price = self._closes.get(symbol, math.nan)
        return math.isfinite(price) and price > 0.0

    def price(self, symbol: str) -> float:
        """The last close; NaN where there is none."""
        return self._closes.get(symbol, math.nan)

    def holding(self, symbol: str) -> float:
        """The signed quantity, the orders that were taken included."""
        return self._holdings.get(symbol, 0.0)

    def reduces(self, order: OrderRequest) -> bool:
        """Whether the order only makes a position smaller: never larger, and never one on the other side."""
        before = self.holding(order.symbol)
        if order.quantity == 0.0:
            return order.weight * before >= 0.0 and self.position_after(order) <= self.worth(order.symbol)
        return before * order.quantity < 0.0 and abs(order.quantity) <= abs(before) * (1 + ROUNDING)

    def order_value(self, order: OrderRequest) -> float:
        """What the order trades, in money; by its weight where its quantity is known at the fill only."""
        if order.quantity == 0.0:
            signed = self._value(order.symbol, self.holding(order.symbol))
            return abs(order.weight * self.equity - signed)
        return abs(self._value(order.symbol, order.quantity))

    def worth(self, symbol: str) -> float:
        """The absolute value of a position."""
        return abs(self._worth.get(symbol, 0.0))

    def position_after(self, order: OrderRequest) -> float:
        """The absolute value of the position that the order leads to; never below what is there if its quantity is
        known at the fill only, since it may come to nothing."""
        if order.quantity == 0.0:
            target = 0.0 if order.closing else abs(order.weight * self.equity)
            return max(self.worth(order.symbol), target)
        return abs(self._value(order.symbol, self.holding(order.symbol) + order.quantity))

    def gross_after(self, order: OrderRequest) -> float:
        """The sum of absolute values of all positions that the order leads to."""
        return self._gross - self.worth(order.symbol) + self.position_after(order)

    def take(self, order: OrderRequest) -> None:
        """Count an order as if it were filled."""
        after = self.position_after(order)
        self._gross += after - self.worth(order.symbol)
        self._holdings[order.symbol] = self.holding(order.symbol) + order.quantity
        self._worth[order.symbol] = after

    def _value(self, symbol: str, quantity: float) -> float:
        return quantity * self.price(symbol) if quantity else 0.0


def by_symbol(symbols: Sequence[str], values: object) -> dict[str, float]:
    """Numbers by symbol, of a mapping or of a sequence in the order of the symbols."""
    if isinstance(values, Mapping):
        return {symbol: float(value) for symbol, value in values.items()}
    return {symbol: float(value) for symbol, value in zip(symbols, values, strict=True)}  # type: ignore[call-overload]


class Moment(NamedTuple):
    """When guards are asked about bars.

    now: by the broker's clock; in a replay, that of the bars. session: the market's session that the bars lie in, else
    the nearest one; None where the market never closes.
    """

    now: np.datetime64
    session: TradingSession | None


class AccountNow(NamedTuple):
    """The account at the close of a bar. day: of the market, as text that orders in time."""

    equity: float
    bar_time: np.datetime64
    day: str


class DecisionMade(Protocol):
    """What guards read of a decision. weights: (A,). out_of_range: (column, value, low, high) of each feature outside
    the range seen in training."""

    @property
    def action(self) -> ArrayLike: ...

    @property
    def weights(self) -> ArrayLike: ...

    @property
    def out_of_range(self) -> Sequence[tuple[str, float, float, float]]: ...


class Guard:
    """Refuses nothing; each guard answers what it has something to say about."""

    name: ClassVar[str]

    def note_history(self, bars: BarSet) -> None:
        """Learn from a bar that nothing is decided on."""

    def on_bars(self, bars: BarSet, moment: Moment) -> Verdict:
        """What the bars allow."""
        return TRADE

    def on_account(self, account: AccountNow) -> Verdict:
        """What the account allows."""
        return TRADE

    def on_decision(self, decision: DecisionMade) -> Verdict:
        """What the decision allows."""
        return TRADE

    def before_orders(self) -> Verdict:
        """A last look before the orders of a decision leave."""
        return TRADE

    def on_order(self, order: OrderRequest, account: Exposure, now: np.datetime64) -> Refusal | None:
        """Why an order that opens or enlarges a position is refused; None where it is allowed.

        account: with the orders of the same decision that were allowed so far.
        """
        return None

    def note_sent(self, order: OrderRequest, now: np.datetime64) -> None:
        """Learn that an order was allowed."""

    def state(self) -> dict[str, Any]:
        """What must survive a restart, as JSON data."""
        return {}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state()`."""

"""What a guard is: a class with one idea, asked about the bars, the account, the decision or each order."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike

from ml_pipeline.live.brokers.broker import OrderRequest, TradingSession
from ml_pipeline.live.guards.exposure import Exposure
from ml_pipeline.live.guards.verdict import TRADE, Refusal, Verdict
from ml_pipeline.trading.market.bar_set import BarSet


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

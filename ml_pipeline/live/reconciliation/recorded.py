"""What a session left behind, as plain values: bars, ledger, orders, and what became of each.

n bars of the session, A symbols. Nothing here reads a file; `read_session` does.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ml_pipeline.live.brokers.broker import Fill, OrderUpdate
from ml_pipeline.trading.accounts.ledger import Ledger
from ml_pipeline.trading.accounts.rules import TradingRules
from ml_pipeline.trading.evaluation.baselines import Act
from ml_pipeline.trading.features.scaling import FeatureScaler
from ml_pipeline.trading.market.data import MarketData

EventKind = Literal["missed", "late", "broker_away", "gap", "flatten"]
"""missed, late: nothing was decided. gap, flatten: all positions were closed, for missing bars or by a person."""


class SentOrder(NamedTuple):
    """An order, decided at the close of `bar`, with the quantity that it was sized to there."""

    client_order_id: str
    bar: np.datetime64
    symbol: str
    quantity: float
    weight: float
    closing: bool = False


class RefusedOrder(NamedTuple):
    """What a guard refused at `bar`. symbol: None refuses all orders. flattens: it closed all positions instead."""

    bar: np.datetime64
    symbol: str | None
    guard: str
    sentence: str = ""
    flattens: bool = False


class PaidCharge(NamedTuple):
    """Money that the broker took besides the costs of orders, paid in the ledger's row of `bar`."""

    bar: np.datetime64
    amount: float
    what: str = ""


class SessionEvent(NamedTuple):
    """What happened at `bar` that is no order: a decision that was not made, or a request of a person."""

    bar: np.datetime64
    kind: EventKind
    sentence: str = ""


@dataclass(frozen=True, eq=False)
class ModelInTurn:
    """A model that decided from the close of bar `first_bar` on.

    act: observation -> action. features, scaler, window: what it observes. rules: what its actions mean, and the
    session's costs and limits. name: in words.
    """

    first_bar: np.datetime64
    act: Act
    features: tuple[str, ...]
    scaler: FeatureScaler
    window: int
    rules: TradingRules
    name: str = "the model"


@dataclass(frozen=True, eq=False)
class RecordedSession:
    """A session: what the backtest needs to run it again, and what was met.

    market: every bar as it was decided on, those that only warmed features up included. ledger: the account, whose
    first row is the bar at which the session began. corrected: the market as it was told afterwards; None where no bar
    was corrected. corrections: the bars that it changes.
    sizes_at_fill: whether the broker sized orders at the price of their fill. slippage_in_costs: whether the broker
    charges slippage and half the spread as costs, at the assumed price, as the simulated one does; any other puts them
    into the price.
    closes_at_end: whether the last order was decided for the last fill of a session (flat_at_close); None: as the bars
    tell.
    """

    market: MarketData
    ledger: Ledger
    models: Sequence[ModelInTurn]
    orders: Sequence[SentOrder] = ()
    updates: Sequence[OrderUpdate] = ()
    fills: Sequence[Fill] = ()
    charges: Sequence[PaidCharge] = ()
    refusals: Sequence[RefusedOrder] = ()
    events: Sequence[SessionEvent] = ()
    corrected: MarketData | None = None
    corrections: Sequence[np.datetime64] = ()
    sizes_at_fill: bool = True
    slippage_in_costs: bool = True
    closes_at_end: bool | None = None
    name: str = "the session"
    real_money: bool = False
    notes: tuple[str, ...] = field(default=())

    @property
    def rules(self) -> TradingRules:
        """The costs and limits of the session, which all of its models share."""
        return self.models[0].rules

    @property
    def times(self) -> NDArray[np.datetime64]:
        """The bars of the session, (n,)."""
        return self.ledger["time"]

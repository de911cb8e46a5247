"""The records of a session as plain values: bars, ledger, orders, and the outcome of each order.

n bars of the session, A symbols. `read_session` reads them from files; this module reads none.
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
from ml_pipeline.trading.market.data import FloatArray, MarketData

EventKind = Literal["missed", "late", "broker_away", "gap", "flatten"]
"""missed, late: nothing was decided. gap, flatten: all positions were closed, for missing bars or by a user."""


class SentOrder(NamedTuple):
    """An order that was decided at the close of `bar`, with its quantity as sized there."""

    client_order_id: str
    bar: np.datetime64
    symbol: str
    quantity: float
    weight: float
    closing: bool = False


class RefusedOrder(NamedTuple):
    """A refusal of a guard at `bar`. symbol: None: all orders. flattens: it closed all positions instead."""

    bar: np.datetime64
    symbol: str | None
    guard: str
    sentence: str = ""
    flattens: bool = False


class PaidCharge(NamedTuple):
    """Money charged in addition to the costs of orders, paid in the ledger's row of `bar`."""

    bar: np.datetime64
    amount: float
    what: str = ""


class AdjustedAccount(NamedTuple):
    """An account that changed without an order, in the ledger's row of `bar`.

    symbol: "" if only cash changes. quantity, cash: what came (positive) or went. kind: as in `Adjustment`.
    in_proportion: the quantity is a part of the position, as in a split.
    """

    bar: np.datetime64
    symbol: str
    quantity: float
    what: str = ""
    cash: float = 0.0
    kind: str = ""
    in_proportion: bool = False


class SessionEvent(NamedTuple):
    """An event at `bar` other than an order: a missing decision, or a user's request."""

    bar: np.datetime64
    kind: EventKind
    sentence: str = ""


@dataclass(frozen=True, eq=False)
class ModelInTurn:
    """A model that decided from the close of bar `first_bar` on.

    act: observation -> action. features, scaler, window: of its observations. rules: the meaning of its actions, and
    the session's costs and limits. name: in messages.
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
    """A session: the input for its backtest, and what actually happened.

    market: every bar as it was when decided on, warm-up bars included. ledger: the account; its first row is the bar at
    which the session began. corrected: the market with later corrections; None if there are none. corrections: times of
    the corrected bars.
    fill_bars: the bar of the row of each fill in the ledger; empty: the one after the decision of its order.
    Quantities and prices are those after all splits of the session.
    observed: the market of the features, if it is another. units: shares after all splits for one share at each bar of
    the market, (T, A); None: no splits.
    sizes_at_fill: whether the broker sized orders at the price of their fill. slippage_in_costs: whether the broker
    charges slippage and half the spread as costs, at the assumed price, as the simulated one does; with others they are
    in the price.
    flows: money that came into the account or left it, which the backtest has as well; a deposit is a negative amount.
    closes_at_end: whether the last order was for the last fill of a market session (flat_at_close); None: infer it from
    the bars.
    """

    market: MarketData
    ledger: Ledger
    models: Sequence[ModelInTurn]
    orders: Sequence[SentOrder] = ()
    updates: Sequence[OrderUpdate] = ()
    fills: Sequence[Fill] = ()
    fill_bars: Sequence[np.datetime64] = ()
    charges: Sequence[PaidCharge] = ()
    flows: Sequence[PaidCharge] = ()
    adjustments: Sequence[AdjustedAccount] = ()
    refusals: Sequence[RefusedOrder] = ()
    events: Sequence[SessionEvent] = ()
    corrected: MarketData | None = None
    observed: MarketData | None = None
    units: FloatArray | None = None
    corrections: Sequence[np.datetime64] = ()
    sizes_at_fill: bool = True
    slippage_in_costs: bool = True
    closes_at_end: bool | None = None
    name: str = "the session"
    real_money: bool = False
    notes: tuple[str, ...] = field(default=())

    @property
    def rules(self) -> TradingRules:
        """The session's costs and limits, which all of its models share."""
        return self.models[0].rules

    def flows_at(self, times: NDArray[np.datetime64]) -> FloatArray:
        """What came into the account (positive) or left it in the rows of these bars, (n,)."""
        moved = np.zeros(len(times))
        for flow in self.flows:
            moved[times == flow.bar] -= flow.amount
        return moved

    def adjusted_cash_at(self, times: NDArray[np.datetime64]) -> FloatArray:
        """The cash of adjustments in the rows of these bars, without `flows`, (n,)."""
        moved = np.zeros(len(times))
        for each in self.adjustments:
            moved[times == each.bar] += each.cash
        return moved

    @property
    def times(self) -> NDArray[np.datetime64]:
        """The bars of the session, (n,)."""
        return self.ledger["time"]

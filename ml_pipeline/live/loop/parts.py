"""What a trading loop is made of: the parts that it asks, and how it goes on where something is wrong."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from ml_pipeline.live.brokers.broker import Broker, OrderRequest, TradingSession
from ml_pipeline.live.decisions.policy_runner import PolicyRunner
from ml_pipeline.live.feeds.feed import Feed
from ml_pipeline.live.portfolio import AccountBook
from ml_pipeline.live.retraining.model_watch import ReadyModel
from ml_pipeline.live.risk.guards import Guards
from ml_pipeline.live.supervision.requests import Requests
from ml_pipeline.trading.accounts.rules import TradingRules


class Ending(NamedTuple):
    """How a session ended. flat: whether the account holds nothing; None where that is not known.

    asked: whether a person, or the end of the bars, ended it; otherwise a guard, the account or a difference did.
    """

    status: Literal["finished", "stopped", "failed"]
    reason: str
    flat: bool | None
    asked: bool = True


class LoopSettings(NamedTuple):
    """How the loop goes on where something is wrong.

    real_time: bars come as they close, and not from a record. idle_s: how long it waits for bars at a time.
    """

    session_id: str
    on_gap: Literal["wait", "flatten"] = "wait"
    on_difference: Literal["hold", "flatten"] = "hold"
    on_error: Literal["hold", "flatten"] = "hold"
    real_time: bool = False
    idle_s: float = 1.0


@dataclass
class Parts:
    """The parts of a session. size: the orders of a decision, by the session and its time.

    clip: of the weights that the policy observes. rules: of the account. window: bars in an observation. model: what
    it is called. session_of: the market's session that a time lies in. new_model: asked before each bar for a model to
    switch to. retraining, about: what live.json says besides. undelivered: alerts that could not be delivered, asked
    for again and again. failure: why the bars so far cannot be decided on, as where a feature fails.
    """

    broker: Broker
    feed: Feed
    decider: PolicyRunner
    books: AccountBook
    guards: Guards
    size: Callable[..., list[OrderRequest]]
    clip: float
    rules: TradingRules
    window: int
    model: str
    version: str | None = None
    session_of: Callable[[np.datetime64], TradingSession | None] = lambda time: None
    requests: Requests | None = None
    new_model: Callable[[], ReadyModel[PolicyRunner] | None] = lambda: None
    retraining: Callable[[], Mapping[str, Any] | None] = lambda: None
    undelivered: Callable[[], Sequence[str]] = lambda: ()
    failure: str | None = None
    about: Mapping[str, Any] | None = None

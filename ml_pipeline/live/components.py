"""The objects of a running session, which its engine, its bars and its recovery work with."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Literal, NamedTuple

import numpy as np

from ml_pipeline.live.brokers.broker import Broker, QuantityRules, TradingSession, exact
from ml_pipeline.live.clocks import Clocks
from ml_pipeline.live.connections import BrokerConnection
from ml_pipeline.live.decisions.deployed_policy import DeployedPolicy
from ml_pipeline.live.decisions.policy_runner import PolicyRunner
from ml_pipeline.live.feeds.feed import Feed
from ml_pipeline.live.orders import OrderManager
from ml_pipeline.live.portfolio import AccountBook
from ml_pipeline.live.record.journal import Journal
from ml_pipeline.live.record.session_record import SessionRecord
from ml_pipeline.live.retraining.model_updates import ModelUpdates
from ml_pipeline.live.risk.guards import Guards
from ml_pipeline.live.shutdown import Shutdown
from ml_pipeline.live.state import SessionState
from ml_pipeline.live.supervision.requests import Requests
from ml_pipeline.trading.accounts.orders import Terms
from ml_pipeline.trading.accounts.rules import TradingRules


class EngineSettings(NamedTuple):
    """How a session responds to problems.

    real_time: bars arrive as they close, not from a recording. idle_s: longest wait for bars at a time.
    """

    session_id: str
    on_gap: Literal["wait", "flatten"] = "wait"
    on_difference: Literal["stop", "flatten", "take-over"] = "stop"
    on_error: Literal["hold", "flatten"] = "hold"
    on_unreachable: Literal["hold", "flatten"] = "hold"
    unreachable_for_s: float = 600.0
    real_time: bool = False
    idle_s: float = 1.0


@dataclass
class SessionComponents:
    """The objects of one session.

    runner: decides with the current model; a switch replaces it. models: looks for another model; None: the model
    stays. rules, terms: of the account. session_of: the market session of a time. undelivered: sentences about alerts
    and heartbeats that were not delivered since the last call. about: fields of live.json about the session itself.
    failure: why the session can no longer decide, such as a failed feature.
    """

    broker: Broker
    connection: BrokerConnection
    clocks: Clocks
    feed: Feed
    runner: PolicyRunner
    account: AccountBook
    guards: Guards
    orders: OrderManager
    record: SessionRecord
    settings: EngineSettings
    rules: TradingRules
    terms: Terms
    requests: Requests
    session_of: Callable[[np.datetime64], TradingSession | None]
    undelivered: Callable[[], Sequence[str]]
    about: Mapping[str, Any]
    models: ModelUpdates | None = None
    shutdown: Shutdown = field(default_factory=Shutdown)
    failure: str | None = None

    @property
    def state(self) -> SessionState:
        """The state that survives a kill; changed within transactions of the record."""
        return self.record.state

    @property
    def journal(self) -> Journal:
        return self.record.journal

    @property
    def symbols(self) -> tuple[str, ...]:
        return self.feed.symbols

    @property
    def policy(self) -> DeployedPolicy:
        """The current model."""
        return self.runner.policy

    @property
    def model(self) -> str:
        """Path of the current checkpoint, which identifies the model in the journal and in files."""
        return str(self.policy.checkpoint)

    @property
    def quantities(self) -> QuantityRules:
        """The quantities that the broker accepts; they decide whether a position is flat."""
        return self.broker.quantities or QuantityRules()

    @property
    def positions(self) -> dict[str, Decimal]:
        """Signed quantities, by symbol, of all that the session closes when it closes positions.

        With on_difference "flatten" that includes symbols that it does not trade; otherwise those are left alone.
        """
        others = self.state.other_positions if self.settings.on_difference == "flatten" else {}
        return self.account.positions | {symbol: exact(quantity) for symbol, quantity in others.items()}

    @property
    def is_flat(self) -> bool:
        """Whether the books have no position that an order could close."""
        return not self.quantities.open_positions(self.positions)

    def attempt(self, work: Callable[[], object]) -> bool:
        """Call `work`, which uses the broker; False if the broker is unreachable."""
        return self.connection.attempt(work, self.state.time)

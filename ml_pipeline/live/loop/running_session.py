"""A session that trades: what every part of its loop works with."""

from collections.abc import Callable
from dataclasses import dataclass, field

from ml_pipeline.live.loop.broker_line import BrokerLine
from ml_pipeline.live.loop.parts import LoopSettings, Parts
from ml_pipeline.live.orders import OrderManager
from ml_pipeline.live.record.journal import Journal
from ml_pipeline.live.record.session_record import SessionRecord
from ml_pipeline.live.state import SessionState


@dataclass
class DemandedEnd:
    """What is to end the session, as soon as it can; each a sentence.

    closing_down: after all positions are closed. asked: whether a person asked for that. ended_by: with the positions
    as they are. unexplained: trades in the account that are not of this session.
    """

    closing_down: str | None = None
    asked: bool = False
    ended_by: str | None = None
    unexplained: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class RunningSession:
    """Its parts, its records and its orders. line: to its broker."""

    parts: Parts
    record: SessionRecord
    desk: OrderManager
    settings: LoopSettings
    line: BrokerLine
    demanded: DemandedEnd = field(default_factory=DemandedEnd)

    @property
    def state(self) -> SessionState:
        """Where it stands."""
        return self.record.state

    @property
    def journal(self) -> Journal:
        return self.record.journal

    @property
    def symbols(self) -> tuple[str, ...]:
        return self.parts.feed.symbols

    @property
    def is_flat(self) -> bool:
        """Whether the books hold no position."""
        return not any(self.parts.books.holdings)

    def attempt(self, work: Callable[[], object]) -> bool:
        """Do something with the broker; False where it is away."""
        return self.line.attempt(work, self.state.time)

"""A worker as its pool sees it: what it does now, and for whom."""

import contextlib
import math
import select
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from multiprocessing.process import BaseProcess

from ml_pipeline.models.rl.core.workers.warm.lease_book import Lease


class State(Enum):
    """WARMING -> IDLE <-> LENT; any of them -> ENDING."""

    WARMING = auto()  # it was forked, and has not said yet that it is ready
    IDLE = auto()
    LENT = auto()  # until it says that it was wiped
    ENDING = auto()  # it was told to end, or cannot be wiped


@dataclass(eq=False, slots=True)
class Lessee:
    """Somebody who is connected. left_at: when they had closed the connection."""

    connection: socket.socket
    lease: Lease | None = None
    left_at: float | None = None


@dataclass(eq=False, slots=True)
class WarmWorker:
    """A warm worker. since: when it became idle, or was to end. kind: for whom it worked last. modules: of the user."""

    number: int
    process: BaseProcess
    pidfd: int
    control: socket.socket
    state: State = State.WARMING
    since: float = 0.0
    kind: str = ""
    lessee: Lessee | None = None
    modules: Sequence[str] = ()

    @property
    def left_at(self) -> float:
        """When the lessee of this worker let go of it; infinity while it has not."""
        assert self.lessee is not None
        return math.inf if self.lessee.left_at is None else self.lessee.left_at

    def dismiss(self) -> None:
        """Has it end as soon as it has nothing to do."""
        with contextlib.suppress(OSError):
            self.control.shutdown(socket.SHUT_WR)

    def has_ended(self) -> bool:
        """Whether it was killed in this moment, though it is idle."""
        poller = select.poll()
        poller.register(self.pidfd, select.POLLIN)
        return bool(poller.poll(0))

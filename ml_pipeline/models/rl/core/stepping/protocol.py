"""A crew is whoever steps environments for the trainer: what it is asked, what it replies, and how it is talked to."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple, Protocol

from ml_pipeline.models.rl.core.stepping.batch import Batch
from ml_pipeline.models.rl.core.stepping.errors import FailureReport


class Command(IntEnum):
    """What a block can be asked for. Per environment: what travels with it, one item an environment."""

    STEP = 1  # per environment: actions, only where the action space is not of fixed size
    RESET = 2  # common: options; per environment: ResetOrder
    CALL = 3  # common: (name, args, kwargs)
    SET_ATTR = 4  # common: name; per environment: values
    GET_STATES = 5
    SET_STATES = 6  # per environment: bytes; replies which environments wait for a reset
    APPLY = 7  # common: (function, args); per environment: whether it takes part, the others replying None
    CLOSE = 8


STEP = Command.STEP  # looking a member up in its class takes 0.2 µs, which a step would pay several times


@dataclass(frozen=True, slots=True)
class SpaceMismatch:
    """A space that differs from the batch's. has_equal_rows: its observations fit the batch's arrays all the same."""

    index: int
    name: str
    expected: str
    received: str
    has_equal_rows: bool


class ResetOrder(NamedTuple):
    """How one environment takes part in a RESET. expired: its new episode is over at once, and waits for a reset."""

    seed: int | None
    wanted: bool
    expired: bool = False


@dataclass(slots=True)
class Reply:
    """What a block has to say besides the arrays.

    finished: whether an episode ended. infos: (index, info) where there is something to say. finals: (index, final
    observation, final info) of what SAME_STEP reset; the observation only where the space is not of fixed size. values:
    one per environment: observations not of fixed size, results of calls, states. failure: what stopped the command.
    """

    finished: bool = False
    infos: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    finals: list[tuple[int, Any, dict[str, Any]]] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)
    failure: FailureReport | None = None

    def is_plain(self) -> bool:
        """Whether `finished` says it all."""
        return not (self.infos or self.finals or self.values or self.failure)

    def followed_by(self, other: "Reply") -> "Reply":
        """The reply of two blocks, `other` having the higher indices."""
        return Reply(
            self.finished or other.finished,
            self.infos + other.infos,
            self.finals + other.finals,
            self.values + other.values,
            self.failure or other.failure,
        )


class Crew(Protocol):
    """Who steps the environments: this process, or workers."""

    batch: Batch
    space_mismatches: list[SpaceMismatch]

    @property
    def closed(self) -> bool:
        """Also after a failure that leaves nothing to go on with."""

    def drain_replies(self) -> None:
        """Waits for replies that nobody waited for, and drops them; then the batch may be written."""

    def post(self, command: Command, common: Any = None, per_env: Sequence[Any] | None = None) -> None:
        """Begins a command; `per_env` has one item an environment."""

    def collect(self, timeout_s: float | None = None) -> Reply:
        """Waits for the last command's reply, `values` and infos in the order of the environments."""

    def close(self, *, timeout_s: float | None = None, terminate: bool = False) -> None:
        """Ends all; may be called twice."""

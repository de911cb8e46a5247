"""What a worker is asked to do, and what it replies."""

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple

from ml_pipeline.models.rl.core.stepping.errors import FailureReport


class Command(IntEnum):
    """What a worker can be asked for. Common: its argument for all; per environment: one item each."""

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
    """What a worker has to say besides the arrays.

    finished: whether an episode ended. infos: (index, info) where there is something to say. finals: (index, final
    observation, final info) of what SAME_STEP reset; the observation only where the space is not of fixed size. values:
    one per environment: observations not of fixed size, results of calls, states. failure: what stopped the command.
    """

    finished: bool = False
    infos: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    finals: list[tuple[int, Any, dict[str, Any]]] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)
    failure: FailureReport | None = None

    def followed_by(self, other: "Reply") -> "Reply":
        """The reply of two workers, `other` having the higher indices."""
        return Reply(
            self.finished or other.finished,
            self.infos + other.infos,
            self.finals + other.finals,
            self.values + other.values,
            self.failure or other.failure,
        )


NOTHING, FINISHED = Reply(), Reply(finished=True)  # the replies that say no more; nobody changes them

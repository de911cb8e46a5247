"""The commands to a worker and its replies."""

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple

from ml_pipeline.models.rl.core.stepping.errors import FailureReport


class Command(IntEnum):
    """The commands to a worker. Common: one argument for all environments; per environment: one item each."""

    STEP = 1  # per environment: actions, only if the action space is not of fixed size
    RESET = 2  # common: options; per environment: ResetOrder
    CALL = 3  # common: (name, args, kwargs)
    SET_ATTR = 4  # common: name; per environment: values
    GET_STATES = 5
    SET_STATES = 6  # per environment: bytes; the reply says which environments need a reset
    APPLY = 7  # common: (function, args); per environment: whether to run it; None in the reply if not
    CLOSE = 8


STEP = Command.STEP  # a lookup in the class takes 0.2 µs, and a step would make several


@dataclass(frozen=True, slots=True)
class SpaceMismatch:
    """A space that differs from the batch's. has_equal_rows: its observations still fit the batch's arrays."""

    index: int
    name: str
    expected: str
    received: str
    has_equal_rows: bool


class ResetOrder(NamedTuple):
    """The part of a RESET for one environment. expired: its new episode counts as over, and needs another reset."""

    seed: int | None
    wanted: bool
    expired: bool = False


@dataclass(slots=True)
class Reply:
    """A worker's reply, besides the arrays.

    finished: whether an episode ended. infos: (index, info) if the info is not empty. finals: (index, final
    observation, final info) of episodes that SAME_STEP reset; the observation only if the space is not of fixed size.
    values: one per environment: observations not of fixed size, results of calls, states. failure: the error.
    """

    finished: bool = False
    infos: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    finals: list[tuple[int, Any, dict[str, Any]]] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)
    failure: FailureReport | None = None

    def followed_by(self, other: "Reply") -> "Reply":
        """The joined reply of two workers; `other` has the higher indices."""
        return Reply(
            self.finished or other.finished,
            self.infos + other.infos,
            self.finals + other.finals,
            self.values + other.values,
            self.failure or other.failure,
        )


NOTHING, FINISHED = Reply(), Reply(finished=True)  # the replies without content; treat them as constants

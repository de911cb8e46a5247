"""The phases of a session: trading, closing down, ended. One table lists all transitions."""

from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

Cause = Literal[
    "stop",
    "flatten",
    "end_of_bars",
    "ruin",
    "failed_feature",
    "guard",
    "difference",
    "gap",
    "unreachable",
    "all_closed",
]
"""stop, flatten: requested by a user. difference: the account at the broker differs from the books.
unreachable: the broker could not be reached for too long. all_closed: after `ClosingDown`, no position or order is
left."""
Status = Literal["finished", "stopped", "failed"]


@dataclass(frozen=True)
class Trading:
    """The policy decides at each bar."""


@dataclass(frozen=True)
class ClosingDown:
    """Each bar closes remaining positions and orders nothing else; then the session ends.

    asked: a user requested it. failed: a feature has failed.
    """

    reason: str
    asked: bool = False
    failed: bool = False


@dataclass(frozen=True)
class Ended:
    """The session is over. flat: whether the account has no positions; None: unknown.

    asked: a user or the end of the bars ended it; otherwise a guard, the account or a difference did. again: a restart
    may succeed, because what ended it may pass.
    """

    status: Status
    reason: str
    flat: bool | None = None
    asked: bool = True
    again: bool = False


Phase = Trading | ClosingDown | Ended


@dataclass(frozen=True)
class ShutdownRequest:
    """Why a session should end. reason: a sentence. positions: the response that the settings choose, if any."""

    cause: Cause
    reason: str = ""
    positions: Literal["hold", "flatten"] = "hold"


class Transition(NamedTuple):
    """The next phase for a cause: from `Trading`, for each choice about positions, and from `ClosingDown`.

    status, asked, again: fields of `Ended`.
    """

    hold: type[Phase]
    flatten: type[Phase]
    closing_down: type[Phase]
    status: Status = "stopped"
    asked: bool = False
    again: bool = False


TRANSITIONS: dict[Cause, Transition] = {
    "stop": Transition(Ended, Ended, Ended, asked=True),
    "flatten": Transition(ClosingDown, ClosingDown, ClosingDown, asked=True),
    "end_of_bars": Transition(Ended, Ended, Ended, "finished", asked=True),
    "ruin": Transition(Ended, Ended, Ended, "finished"),
    "failed_feature": Transition(Ended, ClosingDown, ClosingDown, "failed"),
    "guard": Transition(Ended, ClosingDown, Ended),
    "difference": Transition(Ended, ClosingDown, Ended),
    "gap": Transition(Trading, ClosingDown, ClosingDown),
    "unreachable": Transition(Ended, Ended, Ended, "failed", again=True),
    "all_closed": Transition(Trading, Trading, Ended),
}
"""`Ended` is final. `ClosingDown` keeps its first reason and ends with it when everything is closed."""


def next_phase(phase: Phase, request: ShutdownRequest) -> Phase:
    """The phase after a request, by `TRANSITIONS`; `flat` of an end is not yet known.

    >>> next_phase(Trading(), ShutdownRequest("gap", "Bars are missing.", "flatten"))
    ClosingDown(reason='Bars are missing.', asked=False, failed=False)
    """
    to = TRANSITIONS[request.cause]
    failed = to.status == "failed"
    match phase:
        case Ended():
            return phase
        case ClosingDown():
            if to.closing_down is ClosingDown:
                return replace(phase, failed=phase.failed or failed)
            if request.cause == "all_closed":
                return Ended("failed" if phase.failed else to.status, phase.reason, asked=phase.asked)
            return Ended(to.status, request.reason, asked=to.asked, again=to.again)
        case Trading():
            kind = to.flatten if request.positions == "flatten" else to.hold
            if kind is ClosingDown:
                return ClosingDown(request.reason, asked=to.asked, failed=failed)
            return phase if kind is Trading else Ended(to.status, request.reason, asked=to.asked, again=to.again)


# Order of causes if several occur at one bar.
_FIRST: tuple[Cause, ...] = ("failed_feature", "guard", "difference")


@dataclass
class Shutdown:
    """The phase of a session, and the requests that wait until the current bar is booked."""

    phase: Phase = field(default_factory=Trading)
    _requests: dict[Cause, ShutdownRequest] = field(default_factory=dict)

    @property
    def closes_down(self) -> bool:
        return isinstance(self.phase, ClosingDown)

    def request(self, request: ShutdownRequest) -> None:
        """Request an end after the bar; only the first request of a cause counts."""
        self._requests.setdefault(request.cause, request)

    def enter(self, request: ShutdownRequest) -> Phase:
        """Apply a request now. Returns the phase after it."""
        self.phase = next_phase(self.phase, request)
        return self.phase

    def take_requests(self) -> list[ShutdownRequest]:
        """The waiting requests, in the order in which to apply them."""
        waiting, self._requests = self._requests, {}
        return [waiting[cause] for cause in _FIRST if cause in waiting]

"""How a session ends: it trades, it closes all positions down, it has ended. Every transition stands in one table."""

from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

Cause = Literal[
    "stop",
    "flatten",
    "end_of_bars",
    "ruin",
    "failed_feature",
    "guard",
    "foreign_trade",
    "gap",
    "all_closed",
]
"""stop, flatten: a person asks. foreign_trade: the account traded by an order that is not of this session. all_closed:
after `ClosingDown`, nothing is held or open any more."""
Status = Literal["finished", "stopped", "failed"]


@dataclass(frozen=True)
class Trading:
    """Bars are decided on."""


@dataclass(frozen=True)
class ClosingDown:
    """All positions are closed, bar after bar, and nothing else is ordered; then the session ends.

    asked: a person asked for it. failed: a feature failed, before or meanwhile.
    """

    reason: str
    asked: bool = False
    failed: bool = False


@dataclass(frozen=True)
class Ended:
    """The session is over. flat: whether the account holds nothing; None: not known.

    asked: a person, or the end of the bars, ended it; otherwise a guard, the account or a difference did.
    """

    status: Status
    reason: str
    flat: bool | None = None
    asked: bool = True


Phase = Trading | ClosingDown | Ended


@dataclass(frozen=True)
class ShutdownRequest:
    """Why a session is to end. reason: in a sentence. positions: what the settings say about them, if they say so."""

    cause: Cause
    reason: str = ""
    positions: Literal["hold", "flatten"] = "hold"


class Transition(NamedTuple):
    """Where a cause leads: out of `Trading` as the settings say about positions, and out of `ClosingDown`.

    status, asked: of the end.
    """

    hold: type[Phase]
    flatten: type[Phase]
    closing_down: type[Phase]
    status: Status = "stopped"
    asked: bool = False


TRANSITIONS: dict[Cause, Transition] = {
    "stop": Transition(Ended, Ended, Ended, asked=True),
    "flatten": Transition(ClosingDown, ClosingDown, ClosingDown, asked=True),
    "end_of_bars": Transition(Ended, Ended, Ended, "finished", asked=True),
    "ruin": Transition(Ended, Ended, Ended, "finished"),
    "failed_feature": Transition(Ended, ClosingDown, ClosingDown, "failed"),
    "guard": Transition(Ended, ClosingDown, Ended),
    "foreign_trade": Transition(Ended, ClosingDown, Ended),
    "gap": Transition(Trading, ClosingDown, ClosingDown),
    "all_closed": Transition(Trading, Trading, Ended),
}
"""Out of `Ended` nothing leads. `ClosingDown` keeps its first reason, and ends with it once all is closed."""


def next_phase(phase: Phase, request: ShutdownRequest) -> Phase:
    """The phase after a request, as `TRANSITIONS` has it; `flat` of an end is not known yet.

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
            return Ended(to.status, request.reason, asked=to.asked)
        case Trading():
            kind = to.flatten if request.positions == "flatten" else to.hold
            if kind is ClosingDown:
                return ClosingDown(request.reason, asked=to.asked, failed=failed)
            return phase if kind is Trading else Ended(to.status, request.reason, asked=to.asked)


# What is looked at first, where several causes met one bar.
_FIRST: tuple[Cause, ...] = ("failed_feature", "guard", "foreign_trade")


@dataclass
class Shutdown:
    """The phase of a session, and the requests that wait for the end of the bar that is being booked."""

    phase: Phase = field(default_factory=Trading)
    _requests: dict[Cause, ShutdownRequest] = field(default_factory=dict)

    @property
    def closes_down(self) -> bool:
        return isinstance(self.phase, ClosingDown)

    def request(self, request: ShutdownRequest) -> None:
        """Ask for an end after the bar; the first request of a cause counts."""
        self._requests.setdefault(request.cause, request)

    def enter(self, request: ShutdownRequest) -> Phase:
        """Follow a request at once. Returns the phase after it."""
        self.phase = next_phase(self.phase, request)
        return self.phase

    def take_requests(self) -> list[ShutdownRequest]:
        """The requests that wait, in the order in which they are to be followed."""
        waiting, self._requests = self._requests, {}
        return [waiting[cause] for cause in _FIRST if cause in waiting]

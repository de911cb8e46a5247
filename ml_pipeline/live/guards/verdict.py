"""What guards answer: refusals with their numbers, and what is to be done on a bar."""

from collections.abc import Iterable
from typing import Literal, NamedTuple

Action = Literal["trade", "hold", "flatten"]
_STRENGTH: dict[Action, int] = {"trade": 0, "hold": 1, "flatten": 2}


class Refusal(NamedTuple):
    """Something that a guard refused, or only told.

    symbol: None where it concerns the whole account. value: what was met, and limit: what is allowed, in the unit that
    the sentence names; NaN where there is no such number. warning: it was told, and nothing was refused.
    """

    guard: str
    symbol: str | None
    value: float
    limit: float
    sentence: str
    warning: bool = False


class Verdict(NamedTuple):
    """What a guard, or all of them, say about a bar.

    action: order as decided, hold all positions as they are, or close them. blocked: symbols that are not to be traded
    on this bar, with the refusal. ends: why the session ends once that is done; None: it goes on.
    """

    refusals: tuple[Refusal, ...] = ()
    action: Action = "trade"
    blocked: tuple[Refusal, ...] = ()
    ends: str | None = None


TRADE = Verdict()
"""Nothing to refuse."""


def strongest(actions: Iterable[Action]) -> Action:
    """The action that takes the least risk: flatten before hold before trade.

    >>> strongest(["trade", "flatten", "hold"]), strongest([])
    ('flatten', 'trade')
    """
    return max(actions, key=_STRENGTH.__getitem__, default="trade")


def together(verdicts: Iterable[Verdict]) -> Verdict:
    """The verdict of several guards: every refusal, the strongest action, and the first end."""
    each = list(verdicts)
    return Verdict(
        refusals=tuple(refusal for verdict in each for refusal in verdict.refusals),
        action=strongest(verdict.action for verdict in each),
        blocked=tuple(refusal for verdict in each for refusal in verdict.blocked),
        ends=next((verdict.ends for verdict in each if verdict.ends is not None), None),
    )


def blocking(refusals: Iterable[Refusal]) -> Verdict:
    """A verdict by which the symbols of these refusals are not traded on this bar."""
    found = tuple(refusals)
    return Verdict(found, "trade", found)

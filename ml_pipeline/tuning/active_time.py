"""How long a study really ran: the time that its trials cover, without the pauses between its stretches."""

from collections.abc import Iterable

_LONGEST_GAP_S = 60.0
"""From one trial's end to the next one's beginning; what is longer is a pause, as of a study that was stopped."""


def active_seconds(stretches: Iterable[tuple[float, float]], *, since: float = float("-inf")) -> float:
    """Seconds that the stretches (begin, end) cover together, with the short gaps between them, from `since` on.

    >>> active_seconds([(0, 100), (50, 120), (150, 200), (4000, 4100)])
    300.0
    >>> active_seconds([(0, 100), (50, 120), (150, 200), (4000, 4100)], since=180)
    120.0
    """
    total = 0.0
    covered: float | None = None
    for begin, end in sorted(stretches):
        from_here = begin if covered is None or begin - covered > _LONGEST_GAP_S else covered
        total += max(0.0, end - max(from_here, since))
        covered = end if covered is None else max(covered, end)
    return total

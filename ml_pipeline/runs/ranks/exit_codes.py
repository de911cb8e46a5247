"""What the exit codes of ranks mean for the command that started them."""

import signal
from collections.abc import Sequence

RANK_LOST = 75
"""The exit code of a rank that could not go on without another one: EX_TEMPFAIL of BSD's sysexits.h."""
REFUSED = 2
FAILED = 1
BY_SIGNAL = 128
"""And the signal's number: the code of a rank that saved and ended as it was asked to."""
STOPPED = frozenset(BY_SIGNAL + number for number in (signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGHUP", 1)))


def is_bad(code: int | None) -> bool:
    """Whether a rank that ended with this code leaves the others in the lurch; None: it has not ended."""
    return code is not None and code != 0 and code not in STOPPED


def verdict(codes: Sequence[int]) -> int | None:
    """The exit code of the command; None where ranks were lost, so that starting all again can help.

    2 where a rank refused its settings, and 1 where one failed by itself, which starting again would not change. 0
    where the first rank has ended the run, even if another one was killed after it had done its part.

    >>> verdict([0, 0]), verdict([RANK_LOST, 2]), verdict([143, 143]), verdict([RANK_LOST, -9]), verdict([0, -9])
    (0, 2, 143, None, 0)
    """
    for decisive in (REFUSED, FAILED):
        if decisive in codes:
            return decisive
    if not codes or codes[0] == 0:
        return 0
    return next((code for code in codes if code in STOPPED), None)


def lost_ranks(codes: Sequence[int]) -> str:
    """Which ranks were lost and how, as the begin of a sentence.

    >>> lost_ranks([RANK_LOST, -9])
    'Rank 1 was killed by SIGKILL'
    """
    causes = [_cause(rank, code) for rank, code in enumerate(codes) if code not in {0, RANK_LOST}]
    return f"R{', '.join(causes)[1:]}" if causes else "The ranks lost each other"


def _cause(rank: int, code: int) -> str:
    if code > 0:
        return f"rank {rank} ended with exit code {code}"
    try:
        return f"rank {rank} was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"rank {rank} was killed by signal {-code}"

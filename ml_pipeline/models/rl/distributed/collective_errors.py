"""What fails on one rank is raised on all of them, so that they go on alike. Each call is one small exchange."""

from collections.abc import Callable
from typing import TypeVar

from ml_pipeline.models.rl.core.stepping.errors import StateNotAvailable
from ml_pipeline.models.rl.distributed.exchange import pack, unpack
from ml_pipeline.models.rl.distributed.ranks import Ranks

Result = TypeVar("Result")


def first_reason(ranks: Ranks | None, what: str, own: str) -> str:
    """The first text that is not empty, of the texts of all ranks in their order; "" where all are."""
    if ranks is None:
        return own
    return next(filter(None, (reason.decode() for reason in ranks.gather(own.encode(), what))), "")


def states_put(ranks: Ranks | None, put: Callable[[], Result], *, first_env: int) -> Result | None:
    """What `put` returns, which puts this rank's environments into states; first_env: the index of the first of them.

    Raises StateNotAvailable where an environment of any rank does not take its state.
    """
    result, failed = None, None
    try:
        result = put()
    except StateNotAvailable as error:
        if ranks is None:
            raise
        failed = first_env + error.index, error.reason
    if ranks is not None:
        of_ranks = [unpack(part) for part in ranks.gather(pack(failed), "whether states can be restored")]
        for of_rank in of_ranks:
            if of_rank is not None:
                raise StateNotAvailable(*of_rank)
    return result

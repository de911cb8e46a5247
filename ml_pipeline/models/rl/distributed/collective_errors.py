"""What fails on one rank is raised on all of them, so that they go on alike. Each call is one small exchange."""

from collections.abc import Callable
from typing import TypeVar

from ml_pipeline.models.rl.core.stepping.errors import StateNotAvailable
from ml_pipeline.models.rl.distributed.exchange import pack, unpack
from ml_pipeline.models.rl.distributed.ranks import Ranks

Result = TypeVar("Result")


def first_reason(ranks: Ranks, what: str, own: str) -> str:
    """The first text that is not empty, of the texts of all ranks in their order; "" where all are."""
    return next(filter(None, (reason.decode() for reason in ranks.gather(own.encode(), what))), "")


def states_put(ranks: Ranks, put: Callable[[], Result], *, first_env: int) -> Result | None:
    """What `put` returns, which puts this rank's environments into states; first_env: the index of the first of them.

    Raises StateNotAvailable where an environment of any rank does not take its state.
    """
    result, failed, cause = None, None, None
    try:
        result = put()
    except StateNotAvailable as error:
        failed, cause = (first_env + error.index, error.reason), error
    for of_rank in ranks.gather(pack(failed), "whether states can be restored"):
        if (found := unpack(of_rank)) is not None:
            raise StateNotAvailable(*found) from cause
    return result

"""Which environments a rank owns: N environments in contiguous rows, as even as possible."""

from ml_pipeline.config.errors import UserError
from ml_pipeline.models.rl.core.workers.open import split


def rows_of(rank: int, size: int, num_envs: int) -> slice:
    """The rows of one rank of `size`; the first ranks have one more where it does not divide.

    Raises UserError where there are fewer environments than ranks.

    >>> [rows_of(rank, 3, 8) for rank in range(3)]
    [slice(0, 3, None), slice(3, 6, None), slice(6, 8, None)]
    >>> rows_of(0, 1, 0)  # one rank owns all that there are
    slice(0, 0, None)
    """
    if num_envs < size > 1:
        raise UserError(
            f"{size} ranks need at least {size} environments, one each, but n_envs is {num_envs}; raise n_envs to "
            f"{size} or more (a multiple of {size} gives all ranks as many), or start at most {num_envs} ranks."
        )
    mine = split(range(num_envs), size)[rank]
    return slice(mine.start, mine.stop)

"""Divides a batch into groups, and groups among workers."""

import itertools

from ml_pipeline.models.rl.core.workers.choice import Division


def split(whole: range, n_parts: int) -> list[range]:
    """Contiguous parts, the first ones larger by one where it does not divide.

    >>> split(range(7), 3)
    [range(0, 3), range(3, 5), range(5, 7)]
    """
    small, n_large = divmod(len(whole), n_parts)
    starts = [whole.start + part * small + min(part, n_large) for part in range(n_parts + 1)]
    return [range(start, stop) for start, stop in itertools.pairwise(starts)]


def divide(num_envs: int, num_groups: int, division: Division) -> list[list[range]]:
    """The blocks of environments of each group: one per worker, and the first for this process if it steps a share.

    Without workers, this process steps one block per group.

    >>> divide(5, 1, Division(n_workers=1, steps_here=True))
    [[range(0, 3), range(3, 5)]]
    >>> divide(4, 2, Division(n_workers=3, steps_here=False))
    [[range(0, 1), range(1, 2)], [range(2, 4)]]
    """
    n_workers = division.n_workers
    if not n_workers:
        return [[group] for group in split(range(num_envs), num_groups)]
    sizes = [len(share) for share in split(range(n_workers + division.steps_here), num_groups)]
    groups = zip(split(range(num_envs), num_groups), sizes, strict=True)
    return [split(group, min(len(group), size)) for group, size in groups]  # no more workers than environments

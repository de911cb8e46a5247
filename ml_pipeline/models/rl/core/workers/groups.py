"""Divides a batch among workers, and the workers into groups."""

import itertools
from dataclasses import dataclass

from ml_pipeline.models.rl.core.workers.choice import Division


@dataclass(frozen=True, slots=True)
class Partition:
    """The workers of a batch by index.

    blocks: the consecutive environments of each. n_here: so many of them, the first ones, are in this process.
    groups: the indices of the workers that step together.
    """

    blocks: list[range]
    n_here: int
    groups: list[range]


def split(whole: range, n_parts: int) -> list[range]:
    """Contiguous parts, the first ones larger by one where it does not divide.

    >>> split(range(7), 3)
    [range(0, 3), range(3, 5), range(5, 7)]
    """
    small, n_large = divmod(len(whole), n_parts)
    starts = [whole.start + part * small + min(part, n_large) for part in range(n_parts + 1)]
    return [range(start, stop) for start, stop in itertools.pairwise(starts)]


def divide(num_envs: int, num_groups: int, division: Division) -> Partition:
    """A block per worker, and one for this process where it steps a share; without workers, one per group.

    >>> divide(5, 1, Division(n_workers=1, steps_here=True))
    Partition(blocks=[range(0, 3), range(3, 5)], n_here=1, groups=[range(0, 2)])
    >>> divide(4, 2, Division(n_workers=3, steps_here=False))
    Partition(blocks=[range(0, 1), range(1, 2), range(2, 4)], n_here=0, groups=[range(0, 2), range(2, 3)])
    """
    n_workers, everything = division.n_workers, range(num_envs)
    if n_workers and division.steps_here:
        blocks = split(everything, n_workers + 1)
        return Partition(blocks, 1, [range(len(blocks))])
    sizes = [len(share) for share in split(range(n_workers), num_groups)] if n_workers else [1] * num_groups
    blocks, groups = [], []
    for group, size in zip(split(everything, num_groups), sizes, strict=True):
        n_blocks = min(len(group), size)  # no more workers than environments
        groups.append(range(len(blocks), len(blocks) + n_blocks))
        blocks += split(group, n_blocks)
    return Partition(blocks, 0 if n_workers else len(blocks), groups)

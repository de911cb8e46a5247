"""Acting in blocks of fixed rows, so that an action does not depend on who else acts. N environments of all ranks.

The bits of a row of a matrix product depend on the number of rows and on the row's place, for torch's as for NumPy's
products; they do not depend on what the other rows hold. Environments are therefore cut into blocks by their index, and
a rank that has some of a block's environments acts on a whole block in which the other rows are 0.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

Array = np.ndarray


class ActRows(NamedTuple):
    """Which of N environments the rows at hand are: those from index `first` on."""

    first: int
    num_envs: int


class Block(NamedTuple):
    """Environments start to stop of N, of which those from `first` to `last` are at hand."""

    start: int
    stop: int
    first: int
    last: int

    def filled(self, rows: Array, at_hand: ActRows) -> Array:
        """The rows of the whole block, (stop - start, ...), of the rows at hand, (n, ...), and zeros."""
        own = rows[self.first - at_hand.first : self.last - at_hand.first]
        if len(own) == self.stop - self.start:
            return own
        whole = np.zeros((self.stop - self.start, *rows.shape[1:]), rows.dtype)
        whole[self.first - self.start : self.last - self.start] = own
        return whole

    def own(self, of_block: Array) -> Array:
        """The rows at hand of the whole block's."""
        return of_block[self.first - self.start : self.last - self.start]


def blocks_of(at_hand: ActRows, n_rows: int, *, size: int) -> Iterator[Block]:
    """The blocks that hold any of the n_rows rows at hand; the last of all has what remains of N.

    >>> [tuple(block) for block in blocks_of(ActRows(first=6, num_envs=20), 4, size=8)]
    [(0, 8, 6, 8), (8, 16, 8, 10)]
    """
    end = at_hand.first + n_rows
    for start in range(at_hand.first // size * size, end, size):
        stop = min(start + size, at_hand.num_envs)
        yield Block(start, stop, max(start, at_hand.first), min(stop, end))


def act_in_blocks(
    act: Callable[..., Array],
    *inputs: Array,
    at_hand: ActRows | None,
    size: int,
    each: Callable[[Callable[[int], None], int], None] | None = None,
) -> Array:
    """The outputs (n, ...) of `act` for inputs of n rows, in blocks of `size`.

    act: takes the rows of one block of each of the inputs, and returns an array of as many.
    at_hand: which environments the rows are; None means all of n.
    each: calls a function with 0 to n_blocks - 1, such as `in_threads`; None means one after another.
    """
    n_rows = len(inputs[0])
    at_hand = at_hand or ActRows(0, n_rows)
    if n_rows == at_hand.num_envs <= size:
        return act(*inputs)
    blocks = list(blocks_of(at_hand, n_rows, size=size))
    outputs: list[Array] = [np.empty(0)] * len(blocks)

    def act_on(i: int) -> None:
        block = blocks[i]
        # A copy, since an actor on a device returns the same memory again.
        outputs[i] = block.own(act(*(block.filled(rows, at_hand) for rows in inputs))).copy()

    if each is None or len(blocks) == 1:
        for i in range(len(blocks)):
            act_on(i)
    else:
        each(act_on, len(blocks))
    return np.concatenate(outputs)

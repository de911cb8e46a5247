"""How many threads torch learns with: one for small minibatches, all for large ones."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

# Below this many weights times samples in a minibatch, a second thread gained at most a third here, and where other
# processes wanted the cores it cost a factor of 70: OpenMP's threads wait for each other by spinning.
_WORTH_SHARING = 3e7


@contextmanager
def learning_threads(n_weights: int, minibatch_size: int) -> Iterator[None]:
    """Within the block torch uses one thread if a minibatch is too small to share, else as many as before."""
    before = torch.get_num_threads()
    if n_weights * minibatch_size < _WORTH_SHARING:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)

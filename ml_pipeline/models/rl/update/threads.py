"""How many threads torch uses for an update: one for small minibatches, all for large ones.

torch has a count for each thread, and one that new threads begin with; set_num_threads() sets both.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

# Below this many weights times samples per minibatch, a second thread gained at most a third; beside other busy
# processes it cost a factor of 70, since OpenMP's threads wait for each other by spinning.
_WORTH_SHARING = 3e7
_changing = threading.Lock()


@contextmanager
def learning_threads(n_weights: int, minibatch_size: int) -> Iterator[None]:
    """Within the block, torch uses one thread if minibatches are too small to share, else as many as before.

    This holds for the calling thread alone: other threads keep their counts, and new ones begin with the usual count.
    """
    before = torch.get_num_threads()
    if before == 1 or n_weights * minibatch_size >= _WORTH_SHARING:
        yield
        return
    with _changing:
        torch.set_num_threads(1)
        for_new_threads = threading.Thread(target=torch.set_num_threads, args=(before,))
        for_new_threads.start()  # 0.14 ms an update, on a busy machine of 2 cores
        for_new_threads.join()
    try:
        yield
    finally:
        torch.set_num_threads(before)


def begin_with_usual_threads() -> None:
    """Called by a thread before it first uses torch: its count is then the usual one, whatever others do meanwhile."""
    with _changing:
        torch.get_num_threads()  # which sets it

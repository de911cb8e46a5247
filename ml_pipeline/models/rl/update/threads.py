"""How many threads torch uses for the update of another library: one for small minibatches, all for large ones."""

from collections.abc import Iterator
from contextlib import contextmanager

from ml_pipeline.models.rl.policies.one_thread import one_thread

# Below this many weights times samples per minibatch, a second thread gained at most a third; beside other busy
# processes it cost a factor of 70, since OpenMP's threads wait for each other by spinning.
_WORTH_SHARING = 3e7


@contextmanager
def learning_threads(n_weights: int, minibatch_size: int) -> Iterator[None]:
    """Within the block, torch uses one thread if minibatches are too small to share, else as many as before.

    For updates of other libraries, whose bits may depend on the number of threads.
    """
    if n_weights * minibatch_size >= _WORTH_SHARING:
        yield
    else:
        with one_thread():
            yield

"""Where torch computes: devices by name, and the number of threads, torch's or ours.

The bits of sums in torch depend on the number of threads that share them. In torch 2.13, 1, 2 and 4 threads differ in
orthogonal weights of 64x64, in products of 5, 6, 7, 9, 10 or 11 rows, and in nearly every gradient. A computation that
must give the same bits on all machines therefore uses one thread of torch. If that is slow, it is divided into parts,
which `in_threads` computes in parallel.

torch keeps one thread count per thread, and one for new threads; set_num_threads() sets both.
"""

import itertools
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property

import torch

from ml_pipeline.config.errors import UserError
from ml_pipeline.runtime.cores import usable_cores
from ml_pipeline.runtime.rank_variables import local_rank


def choose_device(name: str) -> str:
    """The device with this name: "cpu", "cuda", "mps", or one of several, such as "cuda:1".

    "auto" is the CPU, which is the fastest for perceptrons of the usual sizes. If LOCAL_RANK is set, for example by
    torchrun, and the machine has several GPUs, "cuda" assigns them to the ranks in turn. Raises UserError if the
    machine lacks the device, or if LOCAL_RANK is needed and not a number.
    """
    if name == "auto":
        return "cpu"
    if name == "cuda" and torch.cuda.device_count() > 1 and (rank := local_rank(os.environ)) is not None:
        return f"cuda:{rank % torch.cuda.device_count()}"
    counts = {"cpu": 1, "cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}
    kind, _, number = name.partition(":")
    if not (number or "0").isdecimal() or int(number or 0) >= counts.get(kind, 0):
        found = ", ".join(kind for kind, count in counts.items() if count)
        raise UserError(f"This machine has no device {name}; it has {found}. Pass one of them, or auto.")
    return name


# With fewer weights times samples per minibatch, a second thread gained at most a third. With other busy processes, it
# was 70 times slower, because threads of OpenMP spin while they wait for each other.
_WORTH_SHARING = 3e7


@contextmanager
def one_thread() -> Iterator[None]:
    """Within the block, torch uses one thread.

    Only the calling thread is affected. Other threads keep their counts, and new ones start with the usual count.
    """
    before = torch.get_num_threads()
    if before == 1:
        yield
        return
    _take_one_thread()
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def learning_threads(n_weights: int, minibatch_size: int) -> Iterator[None]:
    """Within the block, torch uses one thread if minibatches are too small for several, else as many as before.

    Meant for updates of other libraries, whose bits may depend on the number of threads.
    """
    if n_weights * minibatch_size >= _WORTH_SHARING:
        yield
    else:
        with one_thread():
            yield


def begin_with_usual_threads() -> None:
    """Call this in a thread before its first use of torch; its count is then the usual one, whatever others do."""
    with _process.changing:
        torch.get_num_threads()  # sets the count


def in_threads(work: Callable[[int], None], n_parts: int, *, n_threads: int | None = None) -> None:
    """Call work(0) to work(n_parts - 1), each once, in this thread and in others with one thread of torch each.

    Which thread takes which part is random. If a call raises, no further calls begin, and the error is raised here.
    Call this within `one_thread`.

    n_threads: including the calling thread; None means one per core.
    """
    n_threads = min(n_parts, n_threads or _process.n_threads)
    parts = itertools.count()
    errors: list[BaseException] = []

    def take_parts() -> None:
        try:
            while not errors and (part := next(parts)) < n_parts:
                work(part)
        except BaseException as error:
            errors.append(error)

    others = [_process.pool().submit(take_parts) for _ in range(n_threads - 1)]
    take_parts()
    for other in others:
        # A thread that has not begun is not needed; other trainings in this process may keep the pool busy.
        if not other.cancel():
            other.result()
    if errors:
        raise errors[0]


class _OfProcess:
    """State shared by the threads of this process: a lock on torch's count for new threads, and a pool of threads."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Start over in a forked process, which has none of the threads, and may have a lock that one of them held."""
        self.changing = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None

    @cached_property
    def n_threads(self) -> int:
        return max(1, int(usable_cores()))

    def pool(self) -> ThreadPoolExecutor:
        with self.changing:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self.n_threads, "torch", initializer=_take_one_thread)
            return self._pool


_process = _OfProcess()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_process.forget)


def _take_one_thread() -> None:
    with _process.changing:
        usual = torch.get_num_threads()
        torch.set_num_threads(1)
        for_new_threads = threading.Thread(target=torch.set_num_threads, args=(usual,))
        for_new_threads.start()  # 0.14 ms, on a busy machine of 2 cores
        for_new_threads.join()

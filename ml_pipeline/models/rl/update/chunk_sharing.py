"""Whether ranks share the chunks of a gradient, or each computes all: measured, since it does not change the bits."""

import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.distributed import is_nccl_available

from ml_pipeline.models.rl.distributed.ranks import Ranks
from ml_pipeline.runtime.rank_variables import processes_here

_TRIALS = (False, True, False, True, False, True)
"""Whether the first calls share; the first of each kind also sets up memory and connections, and is not counted."""


class ChunkSharing:
    """The first minibatches are computed alone and shared in turn; from then on, in the way that was faster.

    The slowest rank's times count, and all ranks see the same times, so that they decide alike.
    """

    def __init__(
        self,
        ranks: Ranks,
        *,
        device: torch.device,
        always: bool | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """device: of the gradients. always: share or never share, without measuring; None: measure. clock: in s."""
        self._ranks = ranks
        self._device = device
        self._by_host = device.type != "cpu" and not _reaches_others(device)
        self._clock = clock
        self._shares = always
        self._times: list[float] = []

    @property
    def rank(self) -> int:
        return self._ranks.rank

    @property
    def size(self) -> int:
        return self._ranks.size

    def gather(self, part: Tensor, out: Tensor) -> None:
        """Write the parts of all ranks, each float (n,), into `out`, (size, n)."""
        if self._by_host:
            on_host = torch.empty(out.shape, dtype=out.dtype)
            self._ranks.gather_tensor(part.cpu(), on_host)
            out.copy_(on_host)
        else:
            self._ranks.gather_tensor(part, out)

    @contextmanager
    def timed(self) -> Iterator[bool]:
        """Whether to share the chunks of the minibatch that is computed within."""
        if self._shares is not None:
            yield self._shares
            return
        began = self._clock()
        yield _TRIALS[len(self._times)]
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        self._times.append(self._clock() - began)
        if len(self._times) == len(_TRIALS):
            self._shares = self._decide()

    def _decide(self) -> bool:
        own = torch.tensor([self._shortest(shared=False), self._shortest(shared=True)])
        all_times = own.new_empty(self.size, 2)
        self._ranks.gather_tensor(own, all_times, "the times of gradients")
        alone_s, shared_s = all_times.amax(dim=0).tolist()
        return bool(shared_s < alone_s)

    def _shortest(self, *, shared: bool) -> float:
        _, *times = [t for t, was_shared in zip(self._times, _TRIALS, strict=True) if was_shared == shared]
        return min(times, default=math.inf)


def _reaches_others(device: torch.device) -> bool:
    """Whether gradients go from GPU to GPU: by nccl, which wants a GPU of its own for each rank of a machine."""
    n_processes = processes_here(os.environ)
    return device.type == "cuda" and is_nccl_available() and n_processes <= torch.cuda.device_count()

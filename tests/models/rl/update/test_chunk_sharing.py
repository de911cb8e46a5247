"""Chunks are shared where that took less time for the slowest rank, and all ranks decide alike."""

import pytest
import torch

from ml_pipeline.models.rl.update import gradient_chunks
from ml_pipeline.models.rl.update.gradient_chunks import ChunkSharing

CPU = torch.device("cpu")


class Pair:
    """This rank and another, whose times are (alone, shared)."""

    rank, size = 0, 2

    def __init__(self, other):
        self._other = torch.tensor(other)

    def gather_tensor(self, part, out, what="gradients"):
        out[0], out[1] = part, self._other


def choices(other, *, alone_s, shared_s, n=9):
    """Whether each of n minibatches is shared; the first of each kind takes 100 s."""
    now = [0.0]
    sharing, found = ChunkSharing(Pair(other), device=CPU, clock=lambda: now[0]), []
    for i in range(n):
        with sharing.timed() as shared:
            now[0] += 100.0 if i < 2 else shared_s if shared else alone_s
        found.append(shared)
    return found


TRIED = [False, True] * 3


@pytest.mark.parametrize(
    ("other", "alone_s", "shared_s", "chosen"),
    [
        ((2.0, 1.0), 2.0, 1.0, True),
        ((1.0, 2.0), 1.0, 2.0, False),
        ((2.0, 3.0), 2.0, 1.0, False),  # the other takes 3 s where it shares
        ((4.0, 3.0), 1.0, 2.0, True),  # the other takes 4 s alone
        ((1.0, 1.0), 1.0, 1.0, False),
    ],
)
def test_the_slowest_rank_decides(other, alone_s, shared_s, chosen):
    assert choices(other, alone_s=alone_s, shared_s=shared_s) == [*TRIED, *[chosen] * 3]


@pytest.mark.parametrize("always", [True, False])
def test_a_choice_that_is_given_is_not_measured(always):
    sharing = ChunkSharing(Pair((1.0, 1.0)), device=CPU, always=always)
    for _ in range(9):
        with sharing.timed() as shared:
            assert shared == always


def test_an_error_within_is_raised():
    sharing = ChunkSharing(Pair((1.0, 1.0)), device=CPU)
    with pytest.raises(ValueError, match="own"), sharing.timed():
        raise ValueError("own")


@pytest.mark.parametrize(
    ("n_ranks_here", "n_gpus", "nccl", "kind"),
    [("2", 2, True, "meta"), ("3", 2, True, "cpu"), ("2", 2, False, "cpu"), (None, 1, True, "meta")],
)
def test_gradients_go_through_the_host_where_ranks_share_a_gpu(n_ranks_here, n_gpus, nccl, kind, monkeypatch):
    seen = []

    class Recording(Pair):
        def gather_tensor(self, part, out, what="gradients"):
            seen.extend([part.device.type, out.device.type])

    class Part(torch.Tensor):
        def cpu(self):
            return torch.zeros(3)

    monkeypatch.setattr(gradient_chunks, "is_nccl_available", lambda: nccl)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: n_gpus)
    if n_ranks_here is None:
        monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    else:
        monkeypatch.setenv("RANK", "0")
        monkeypatch.setenv("LOCAL_WORLD_SIZE", n_ranks_here)
    sharing = ChunkSharing(Recording((1.0, 1.0)), device=torch.device("cuda"), always=True)
    part = torch.zeros(3, device="meta").as_subclass(Part)  # as on a GPU: numbers are elsewhere
    sharing.gather(part, torch.zeros(2, 3, device="meta"))
    assert seen == [kind, kind]

"""The gradient of a minibatch as the sum over its chunks; its bits do not depend on who computes which chunk.

Threads of one process compute chunks in parallel. Ranks may share the chunks as well, if measurements show that this is
faster. A fixed tree adds the chunks, so a rank sends the sums of its branches instead of all its chunks. The gradients
by the large weights behind images are not added; one product over all samples computes each of them.
B samples, P parameters; I inputs and O outputs of a large layer.
"""

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.distributed import is_nccl_available

from ml_pipeline.models.rl.networks.actor_critic import ActorCritic, GeneralActorCritic
from ml_pipeline.models.rl.networks.image_encoder import factors_of_weights
from ml_pipeline.models.rl.policies.threads_and_device import in_threads
from ml_pipeline.models.rl.ranks import Ranks
from ml_pipeline.models.rl.transitions import LossInputs, Minibatch, of_sequences
from ml_pipeline.models.rl.update.ppo_loss import LossRows, LossWeights, loss_of
from ml_pipeline.runtime.rank_variables import processes_here

Node = tuple[int, int]
"""A branch of the tree: its first chunk, and the chunk after its last."""
_SLICE = 1 << 16  # numbers of each chunk that are added at a time; they fit into a core's cache
_OUTPUTS = 128  # rows of a large layer's weights whose gradients a thread computes at a time
Columns = list[Tensor]
"""For b samples: the rows of the loss, (b, 4), and for each large layer its inputs, (b, I), and gradients, (b, O)."""


_TRIALS = (False, True, False, True, False, True)
"""Whether each of the first calls shares. The first call of each kind also sets up memory and connections, so its time
does not count."""


class ChunkSharing:
    """Decides whether ranks share chunks. The first minibatches alternate; later ones use what was faster.

    The times of the slowest rank count. All ranks see the same times, so they reach the same decision.
    """

    def __init__(
        self,
        ranks: Ranks,
        *,
        device: torch.device,
        always: bool | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """device: where the gradients are. always: True: share the work; False: never; None:
        measure, and keep the faster. clock: in seconds."""
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
        """Within the block, compute one minibatch; the value is whether to share its chunks."""
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


class ChunkedGradients:
    """Gradients by autograd, chunk by chunk, for any network. With `sharing`, all ranks pass the same minibatch."""

    def __init__(
        self,
        network: ActorCritic | GeneralActorCritic,
        gradient: Tensor,
        *,
        n_chunks: int,
        sharing: ChunkSharing | None = None,
    ) -> None:
        """gradient: float (P,); receives the gradient by all parameters, in `parameter_order`."""
        self._network = network
        self._n_chunks = n_chunks
        self._sharing = sharing
        large = network.weights_of_linear() if isinstance(network, GeneralActorCritic) else []
        parameters = network.parameter_order()
        parts = dict(zip(parameters, gradient.split([p.numel() for p in parameters]), strict=True))
        self._of_large = [parts.pop(weight).view_as(weight) for weight in large]
        self._small, self._of_small = list(parts), list(parts.values())
        self._sum = torch.cat(self._of_small) if large else gradient
        self._of_chunks = gradient.new_empty(n_chunks, len(self._sum))
        self._each = in_threads if gradient.device.type == "cpu" else _one_after_another

    def __call__(self, minibatch: Minibatch, weights: LossWeights) -> LossRows:
        chunks = chunks_of(minibatch, self._n_chunks)
        if self._sharing is None:
            return self._alone(chunks, weights)
        with self._sharing.timed() as shared:
            return self._shared(chunks, weights, self._sharing) if shared else self._alone(chunks, weights)

    def _alone(self, chunks: list[Minibatch], weights: LossWeights) -> LossRows:
        columns = self._compute(chunks, range(len(chunks)), weights)
        return self._whole({(i, i + 1): self._of_chunks[i] for i in range(len(chunks))}, len(chunks), columns)

    def _shared(self, chunks: list[Minibatch], weights: LossWeights, sharing: ChunkSharing) -> LossRows:
        lengths, n_chunks, n_ranks = [len(chunk.observations) for chunk in chunks], len(chunks), sharing.size
        ranges = [range(n_chunks * rank // n_ranks, n_chunks * (rank + 1) // n_ranks) for rank in range(n_ranks)]
        nodes = [list(branches(own, n_chunks)) for own in ranges]
        n_sums = max(map(len, nodes)) * len(self._sum)
        widths = [4, *(width for weight in self._of_large for width in reversed(weight.shape))]
        n_rows = [sum(lengths[i] for i in own) for own in ranges]
        sent = self._sum.new_zeros(n_sums + sum(widths) * max(n_rows))

        def columns_in(part: Tensor, rank: int) -> Columns:
            sizes = [n_rows[rank] * width for width in widths]
            columns = part[n_sums : n_sums + sum(sizes)].split(sizes)
            return [column.view(-1, width) for column, width in zip(columns, widths, strict=True)]

        own = ranges[sharing.rank]
        computed = self._compute(chunks, own, weights)
        of_chunks = {(i, i + 1): self._of_chunks[i] for i in own}
        for node, out in zip(nodes[sharing.rank], _vectors(sent, len(self._sum)), strict=False):
            self._add_up(of_chunks, node, out)
        for out, *parts in zip(columns_in(sent, sharing.rank), *computed, strict=True) if computed else ():
            torch.cat(parts, out=out)

        received = sent.new_empty(n_ranks, len(sent))
        sharing.gather(sent, received)
        sums = {
            node: vector
            for part, its_nodes in zip(received, nodes, strict=True)
            for node, vector in zip(its_nodes, _vectors(part, len(self._sum)), strict=False)
        }
        return self._whole(sums, n_chunks, [columns_in(part, rank) for rank, part in enumerate(received)])

    def _compute(self, chunks: list[Minibatch], numbers: range, weights: LossWeights) -> list[Columns]:
        """Write the gradients of the given chunks by all small weights; return the columns of each chunk."""
        n_samples = sum(len(chunk.observations) for chunk in chunks)
        found: list[Columns] = [[]] * len(numbers)

        def compute(i: int) -> None:
            chunk = chunks[numbers[i]]
            with factors_of_weights() as factors:
                loss, rows = loss_of(self._network, chunk, weights)
                share = loss * (len(chunk.observations) / n_samples)  # since the loss is a mean
                gradients = torch.autograd.grad(share, self._small, materialize_grads=True)
            torch.cat([gradient.flatten() for gradient in gradients], out=self._of_chunks[numbers[i]])
            assert None not in factors
            found[i] = [torch.stack(rows, dim=1), *(part.float() for pair in factors if pair for part in pair)]

        self._each(compute, len(numbers))
        return found

    def _whole(self, known: Mapping[Node, Tensor], n_chunks: int, columns: Sequence[Columns]) -> LossRows:
        """Write the gradient of the minibatch, from sums over chunks and from the columns of all samples, in order."""
        self._add_up(known, (0, n_chunks), self._sum)
        rows, *factors = (torch.cat(parts) for parts in zip(*columns, strict=True))
        if self._of_large:
            for out, part in zip(self._of_small, self._sum.split([len(out) for out in self._of_small]), strict=True):
                out.copy_(part)
        for inputs, gradients, out in zip(factors[::2], factors[1::2], self._of_large, strict=True):
            self._multiply(inputs, gradients, out)
        return LossRows(*rows.T.contiguous())

    def _multiply(self, inputs: Tensor, gradients: Tensor, out: Tensor) -> None:
        def multiply(i: int) -> None:
            outputs = slice(i * _OUTPUTS, (i + 1) * _OUTPUTS)
            torch.mm(gradients[:, outputs].T, inputs, out=out[outputs])

        self._each(multiply, -(-len(out) // _OUTPUTS))

    def _add_up(self, known: Mapping[Node, Tensor], node: Node, out: Tensor) -> None:
        """Write the sum of a branch to `out`; known: sums of smaller branches, each as long as `out`."""

        def add(i: int) -> None:
            columns = slice(i * _SLICE, (i + 1) * _SLICE)
            out[columns] = _sum(node, {known_node: vector[columns] for known_node, vector in known.items()})

        self._each(add, -(-len(out) // _SLICE))


def chunks_of(minibatch: Minibatch, n_chunks: int) -> list[Minibatch]:
    """The minibatch in n_chunks parts whose sizes differ by at most one; fewer if it has fewer samples or sequences.

    Sequences are not divided.
    """
    if minibatch.sequences is None:
        parts = min(n_chunks, len(minibatch.observations))
        observations, actions = minibatch.observations.tensor_split(parts), minibatch.actions.tensor_split(parts)
        inputs = torch.stack(minibatch.inputs).tensor_split(parts, dim=1)
        return [Minibatch(o, a, LossInputs(*i)) for o, a, i in zip(observations, actions, inputs, strict=True)]
    state = minibatch.sequences.state
    numbers = torch.arange(len(state), device=state.device)
    return [of_sequences(minibatch, chosen) for chosen in numbers.tensor_split(min(n_chunks, len(state)))]


def branches(own: range, n_chunks: int) -> Iterator[Node]:
    """The largest branches of the tree over n_chunks that contain only chunks in `own`.

    >>> list(branches(range(0, 4), 8)), list(branches(range(2, 5), 8))
    ([(0, 4)], [(2, 4), (4, 5)])
    """

    def within(node: Node) -> Iterator[Node]:
        if own.start <= node[0] and node[1] <= own.stop:
            yield node
        elif max(node[0], own.start) < min(node[1], own.stop):
            for half in _halves(node):
                yield from within(half)

    return within((0, n_chunks))


def _halves(node: Node) -> tuple[Node, Node]:
    middle = (node[0] + node[1]) // 2
    return (node[0], middle), (middle, node[1])


def _sum(node: Node, known: Mapping[Node, Tensor]) -> Tensor:
    if node in known:
        return known[node]
    one, other = _halves(node)
    return _sum(one, known) + _sum(other, known)


def _vectors(part: Tensor, size: int) -> Iterator[Tensor]:
    """The consecutive vectors of `size` numbers at the start of `part`."""
    return iter(part[: len(part) // size * size].view(-1, size))


def _one_after_another(work: Callable[[int], None], n_parts: int) -> None:
    for part in range(n_parts):
        work(part)


def _reaches_others(device: torch.device) -> bool:
    """Whether gradients travel from GPU to GPU. This takes nccl, which needs one GPU per rank of a machine."""
    n_processes = processes_here(os.environ)
    return device.type == "cuda" and is_nccl_available() and n_processes <= torch.cuda.device_count()

"""The gradient of a minibatch as a sum of those of its chunks, with the same bits whoever computes which chunk.

Threads of one process compute chunks side by side, and ranks may share them. A fixed tree adds them, so that a rank
sends the sums of its own branches in place of all its chunks. B samples, P parameters, C chunks.
"""

from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor

from ml_pipeline.models.rl.networks.actor_critic import ActorCritic
from ml_pipeline.models.rl.networks.general_actor_critic import GeneralActorCritic
from ml_pipeline.models.rl.policies.one_thread import in_threads
from ml_pipeline.models.rl.update.chunk_sharing import ChunkSharing
from ml_pipeline.models.rl.update.minibatch_gradients import Minibatch, loss_of
from ml_pipeline.models.rl.update.minibatches import of_sequences
from ml_pipeline.models.rl.update.ppo_loss import LossInputs, LossRows, LossWeights

Node = tuple[int, int]
"""A branch of the tree: chunks first to last, without the last."""
_SLICE = 1 << 16  # numbers of each chunk that are added at a time: they stay in a core's cache


class ChunkedGradients:
    """By autograd, for any network. Called with the same minibatch by all ranks, if it has `sharing`."""

    def __init__(
        self,
        network: ActorCritic | GeneralActorCritic,
        gradient: Tensor,
        *,
        n_chunks: int,
        sharing: ChunkSharing | None = None,
    ) -> None:
        """gradient: float (P,), to which the gradient by all parameters is written, in their order."""
        self._network = network
        self._gradient = gradient
        self._n_chunks = n_chunks
        self._sharing = sharing
        self._of_chunks = gradient.new_empty(n_chunks, len(gradient))
        self._each = in_threads if gradient.device.type == "cpu" else _one_after_another

    def __call__(self, minibatch: Minibatch, weights: LossWeights) -> LossRows:
        chunks = chunks_of(minibatch, self._n_chunks)
        if self._sharing is None:
            return self._alone(chunks, weights)
        with self._sharing.timed() as shared:
            return self._shared(chunks, weights, self._sharing) if shared else self._alone(chunks, weights)

    def _alone(self, chunks: list[Minibatch], weights: LossWeights) -> LossRows:
        rows = self._compute(chunks, range(len(chunks)), weights)
        self._add_up({(i, i + 1): self._of_chunks[i] for i in range(len(chunks))}, (0, len(chunks)), self._gradient)
        return LossRows(*torch.cat(rows, dim=1))

    def _shared(self, chunks: list[Minibatch], weights: LossWeights, sharing: ChunkSharing) -> LossRows:
        lengths, n_chunks, n_ranks = [len(chunk.observations) for chunk in chunks], len(chunks), sharing.size
        ranges = [range(n_chunks * rank // n_ranks, n_chunks * (rank + 1) // n_ranks) for rank in range(n_ranks)]
        nodes = [list(branches(own, n_chunks)) for own in ranges]
        n_sums = max(map(len, nodes)) * len(self._gradient)
        n_rows = [sum(lengths[i] for i in own) for own in ranges]
        sent = self._gradient.new_zeros(n_sums + 4 * max(n_rows))

        own = ranges[sharing.rank]
        rows = self._compute(chunks, own, weights)
        of_chunks = {(i, i + 1): self._of_chunks[i] for i in own}
        for node, out in zip(nodes[sharing.rank], _vectors(sent, len(self._gradient)), strict=False):
            self._add_up(of_chunks, node, out)
        if rows:
            sent[n_sums : n_sums + 4 * n_rows[sharing.rank]] = torch.cat(rows, dim=1).flatten()

        received = sent.new_empty(n_ranks, len(sent))
        sharing.gather(sent, received)
        sums = {
            node: vector
            for part, its_nodes in zip(received, nodes, strict=True)
            for node, vector in zip(its_nodes, _vectors(part, len(self._gradient)), strict=False)
        }
        self._add_up(sums, (0, n_chunks), self._gradient)
        whole = [part[n_sums : n_sums + 4 * n].view(4, n) for part, n in zip(received, n_rows, strict=True)]
        return LossRows(*torch.cat(whole, dim=1))

    def _compute(self, chunks: list[Minibatch], numbers: range, weights: LossWeights) -> list[Tensor]:
        """Write the gradients of the chunks of these numbers; return their rows of losses, float (4, B / C) each."""
        n_samples = sum(len(chunk.observations) for chunk in chunks)
        parameters = self._network.parameter_order()
        rows: list[Tensor] = [self._gradient] * len(numbers)

        def compute(i: int) -> None:
            chunk = chunks[numbers[i]]
            loss, of_samples = loss_of(self._network, chunk, weights)
            share = loss * (len(chunk.observations) / n_samples)  # the loss is a mean
            gradients = torch.autograd.grad(share, parameters, materialize_grads=True)
            torch.cat([gradient.flatten() for gradient in gradients], out=self._of_chunks[numbers[i]])
            rows[i] = torch.stack(of_samples)

        self._each(compute, len(numbers))
        return rows

    def _add_up(self, known: Mapping[Node, Tensor], node: Node, out: Tensor) -> None:
        """Write to `out` the sum of a branch, from those that are known, each float (P,)."""

        def add(i: int) -> None:
            columns = slice(i * _SLICE, (i + 1) * _SLICE)
            out[columns] = _sum(node, {known_node: vector[columns] for known_node, vector in known.items()})

        self._each(add, -(-len(out) // _SLICE))


def chunks_of(minibatch: Minibatch, n_chunks: int) -> list[Minibatch]:
    """A minibatch cut into as many parts, or as it has samples or sequences, whose sizes differ by one at most.

    Sequences stay whole.
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
    """The largest branches of the tree over n_chunks that have none but own chunks.

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
    """The vectors of this size that lie one after another at the start."""
    return iter(part[: len(part) // size * size].view(-1, size))


def _one_after_another(work: Callable[[int], None], n_parts: int) -> None:
    for part in range(n_parts):
        work(part)

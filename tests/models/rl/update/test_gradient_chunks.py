"""Gradients of chunks add up to autograd's of the whole minibatch, with the same bits whoever computes which."""

import itertools
import threading
from functools import partial

import numpy as np
import pytest
import torch
from gymnasium import spaces

from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.models.rl.policies.policy import Policy
from ml_pipeline.models.rl.policies.threads_and_device import in_threads, one_thread
from ml_pipeline.models.rl.transitions import LossInputs, Minibatch, Sequences
from ml_pipeline.models.rl.update import gradient_chunks
from ml_pipeline.models.rl.update.gradient_chunks import ChunkedGradients, ChunkSharing, branches, chunks_of
from ml_pipeline.models.rl.update.gradient_steps import flatten_parameters
from ml_pipeline.models.rl.update.ppo_loss import AutogradGradients, LossWeights

WEIGHTS = LossWeights(clip_range=0.2, clip_range_vf=0.3, ent_coef=0.01, vf_coef=0.5)
IMAGE = spaces.Box(0, 255, (36, 36, 1), np.uint8)
NUMBERS = spaces.Box(-np.inf, np.inf, (7,), np.float32)
KINDS = {
    "images": (IMAGE, spaces.Discrete(4), {}),
    "bfloat16": (IMAGE, spaces.Discrete(4), {"bfloat16": True}),
    "gru": (NUMBERS, spaces.MultiDiscrete([3, 2]), {"memory": "gru"}),
    "perceptrons": (NUMBERS, spaces.Box(-1, 1, (2,), np.float32), {}),
}
T, M = 4, 11  # steps, sequences


class Case:
    """A network, its gradient, and a minibatch of 44 samples, for a policy with memory of 11 sequences."""

    def __init__(self, kind):
        observation_space, action_space, settings = KINDS[kind]
        config = PPOConfig(**{"hidden_sizes": (16,), **settings})
        policy = Policy(observation_space, action_space, config, seed=1)
        self.network = policy.network
        self.gradient = flatten_parameters(self.network.parameter_order()).grad
        generator = np.random.default_rng(0)
        samples = T * M
        parameters = np.zeros((samples, policy.distribution.num_parameters), np.float32)
        actions = policy.distribution.sample(parameters, policy.distribution.draw_noise(generator, (samples,)))
        inputs = LossInputs(*torch.from_numpy(generator.normal(size=(4, samples)).astype(np.float32)))
        starts = torch.from_numpy(generator.random((T, M)) < 0.2)
        state = torch.from_numpy(generator.normal(size=(M, getattr(self.network, "state_size", 0))).astype(np.float32))
        observations = generator.uniform(0, 255, (samples, policy.observations.size)).astype(np.float32)
        if kind not in ("images", "bfloat16"):
            observations /= 255
        sequences = Sequences(starts, state) if kind == "gru" else None
        self.minibatch = Minibatch(torch.from_numpy(observations), torch.from_numpy(actions), inputs, sequences)

    def run(self, gradients):
        """The gradient, and the loss's rows."""
        rows = gradients(self.minibatch, WEIGHTS)
        return [self.gradient.clone(), *rows]

    def chunked(self, n_chunks, sharing=None):
        return ChunkedGradients(self.network, self.gradient, n_chunks=n_chunks, sharing=sharing)


def assert_same_bits(found, expected):
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("n_chunks", [1, 2, 3, 8, 99])
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_chunks_add_up_to_that_of_the_whole(kind, n_chunks):
    case = Case(kind)
    whole, *rows = case.run(AutogradGradients(case.network))
    found, *found_rows = case.run(case.chunked(n_chunks))
    tolerance = 1e-2 if kind == "bfloat16" else 1e-5  # bfloat16 has 8 bits, and rounds each chunk's sums
    assert (found - whole).norm() <= tolerance * whole.norm()
    for one, other in zip(found_rows, rows, strict=True):  # chunks of sequences put their samples in another order
        torch.testing.assert_close(one.sort()[0], other.sort()[0], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("kind", KINDS)
def test_bits_do_not_depend_on_the_number_of_threads(kind, monkeypatch):
    case, before, found = Case(kind), torch.get_num_threads(), []
    try:
        for n_threads in (1, 2, 4):
            torch.set_num_threads(n_threads)
            monkeypatch.setattr(gradient_chunks, "in_threads", partial(in_threads, n_threads=n_threads))
            with one_thread():
                found.append(case.run(case.chunked(8)))
    finally:
        torch.set_num_threads(before)
    assert_same_bits(found[1], found[0])
    assert_same_bits(found[2], found[0])


class ThreadRanks:
    """Ranks that are threads of this process."""

    def __init__(self, size):
        self.size = size
        self.lengths = []
        self._parts = [None] * size
        self._barrier = threading.Barrier(size)

    def member(self, rank):
        return Member(self, rank)

    def gather(self, rank, part, out):
        self._parts[rank] = part
        self.lengths.append(len(part))
        self._barrier.wait(30)
        torch.stack(self._parts, out=out)
        self._barrier.wait(30)


class Member:
    def __init__(self, group, rank):
        self._group, self.rank, self.size = group, rank, group.size

    def gather_tensor(self, part, out, what="gradients"):
        self._group.gather(self.rank, part, out)


def run_shared(kind, n_ranks, *, n_chunks, always=True, n_times=1):
    """The group, and what each of these ranks finds."""
    group, found = ThreadRanks(n_ranks), [None] * n_ranks

    def learn(rank):
        case = Case(kind)
        sharing = ChunkSharing(group.member(rank), device=torch.device("cpu"), always=always)
        gradients = case.chunked(n_chunks, sharing)
        found[rank] = [case.run(gradients) for _ in range(n_times)]

    threads = [threading.Thread(target=learn, args=(rank,)) for rank in range(n_ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return group, found


@pytest.mark.parametrize("n_ranks", [2, 3, 5])
@pytest.mark.parametrize("kind", ["images", "gru"])
def test_bits_do_not_depend_on_how_many_ranks_share_the_chunks(kind, n_ranks):
    case = Case(kind)
    alone = case.run(case.chunked(4))
    _, found = run_shared(kind, n_ranks, n_chunks=4)
    for (of_rank,) in found:
        assert_same_bits(of_rank, alone)


def test_a_measured_choice_does_not_change_bits():
    case = Case("gru")
    alone = case.run(case.chunked(4))
    _, found = run_shared("gru", 2, n_chunks=4, always=None, n_times=9)
    for of_rank in found:
        for each in of_rank:
            assert_same_bits(each, alone)


def test_two_ranks_send_one_gradient_each_and_three_at_most_two():
    n_weights, n_samples = len(Case("gru").gradient), T * M
    for n_ranks, n_sums in ((2, 1), (4, 1), (8, 1), (3, 2)):
        group, _ = run_shared("gru", n_ranks, n_chunks=8)
        longest = max(group.lengths)
        assert n_sums * n_weights < longest <= n_sums * n_weights + 4 * n_samples


def test_of_the_large_weights_behind_images_two_ranks_send_only_factors():
    case = Case("images")
    (large,) = case.network.weights_of_linear()
    group, _ = run_shared("images", 2, n_chunks=4)
    n_small, n_samples = len(case.gradient) - large.numel(), T * M
    assert max(group.lengths) == n_small + n_samples // 2 * (4 + sum(large.shape))
    assert max(group.lengths) < len(case.gradient)


@pytest.mark.parametrize(("kind", "n_units"), [("images", T * M), ("gru", M)])
def test_chunks_are_parts_of_nearly_equal_size_and_hold_every_sample_once(kind, n_units):
    minibatch = Case(kind).minibatch
    for n_chunks in (1, 3, 8, 99):
        chunks = chunks_of(minibatch, n_chunks)
        sizes = [len(chunk.observations) for chunk in chunks]
        assert len(chunks) == min(n_chunks, n_units)
        assert max(sizes) - min(sizes) <= (T if kind == "gru" else 1)
        found = torch.cat([chunk.inputs.returns for chunk in chunks]).sort()[0]
        assert torch.equal(found, minibatch.inputs.returns.sort()[0])


@pytest.mark.parametrize("n_chunks", [1, 2, 5, 8])
def test_branches_of_all_ranks_hold_every_chunk_once(n_chunks):
    for n_ranks in range(1, 10):
        edges = [n_chunks * rank // n_ranks for rank in range(n_ranks + 1)]
        nodes = [node for a, b in itertools.pairwise(edges) for node in branches(range(a, b), n_chunks)]
        assert [chunk for first, last in nodes for chunk in range(first, last)] == list(range(n_chunks))


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

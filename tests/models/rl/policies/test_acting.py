"""An environment's action has the same bits whichever environments act with it, and however many threads there are."""

from functools import partial

import numpy as np
import pytest
import threadpoolctl
import torch
from gymnasium import spaces

from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.models.rl.networks.actor_critic import ActorCritic
from ml_pipeline.models.rl.networks.mlp import NumpyMlp
from ml_pipeline.models.rl.policies import acting
from ml_pipeline.models.rl.policies.acting import ActRows, Transfers
from ml_pipeline.models.rl.policies.policy import Policy
from ml_pipeline.models.rl.policies.threads_and_device import in_threads
from ml_pipeline.models.rl.transitions import Sequences

IMAGE = spaces.Box(0, 255, (36, 36, 1), np.uint8)
NUMBERS = spaces.Box(-np.inf, np.inf, (7,), np.float32)
CHOICES, SEVERAL = spaces.Discrete(4), spaces.MultiDiscrete([3, 2, 5])
BOUNDED = spaces.Box(-1, 1, (2,), np.float32)
KINDS = {
    "images": (IMAGE, CHOICES, {}),
    "images and memory": (IMAGE, CHOICES, {"memory": "gru"}),
    "gru": (NUMBERS, SEVERAL, {"memory": "gru"}),
    "lstm": (NUMBERS, CHOICES, {"memory": "lstm", "share_layers": True}),
    "shared layers": (NUMBERS, CHOICES, {"share_layers": True}),
    "several choices": (NUMBERS, SEVERAL, {}),
    "squashed": (NUMBERS, BOUNDED, {"squash_actions": True}),
    "noise by state": (NUMBERS, BOUNDED, {"use_sde": True}),
    "too wide to compile": (NUMBERS, CHOICES, {"hidden_sizes": (512, 512)}),
    "2,600 inputs": (spaces.Box(-np.inf, np.inf, (2600,), np.float32), CHOICES, {"hidden_sizes": (64, 64)}),
    "an activation of torch's": (NUMBERS, CHOICES, {"activation": "silu"}),
}
NUM_ENVS = 45  # a whole block of 32, and a part of one; eleven of 4, and a part


class Case:
    """A policy, three observations of each of its environments, and noise."""

    def __init__(self, kind):
        observation_space, action_space, settings = KINDS[kind]
        config = PPOConfig(**{"normalize_obs": False, "hidden_sizes": (16,), **settings})
        self.policy = Policy(observation_space, action_space, config, seed=1)
        generator = np.random.default_rng(0)
        with torch.no_grad():
            for parameter in self.policy.network.parameters():
                parameter.add_(torch.from_numpy(0.05 * generator.normal(size=parameter.shape).astype(np.float32)))
        self.policy.refresh()
        self.observations = generator.uniform(0, 255, (3, NUM_ENVS, self.policy.observations.size)).astype(np.float32)
        self.noise = self.policy.distribution.draw_noise(generator, (3, NUM_ENVS))

    def act(self, rows, num_envs=NUM_ENVS):
        """Parameters and actions of three steps, and the memory after them, of these rows."""
        at_hand = None if num_envs == rows.stop - rows.start else ActRows(rows.start, num_envs)
        policy, memory, found = self.policy, self.policy.new_memory(rows.stop - rows.start), []
        with policy.acting_threads():
            for seen, noise in zip(self.observations[:, rows], self.noise[:, rows], strict=True):
                before = None if memory is None else memory.state
                found += [policy.parameters(seen, memory, at_hand).copy()]
                if memory is not None:
                    memory.state = before
                found += [policy.choose(seen, noise, memory, at_hand)]
        return [*found, *([] if memory is None else [memory.state])]


def assert_same_bits(found, expected):
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("kind", KINDS)
def test_actions_do_not_depend_on_which_environments_a_process_has(kind):
    case = Case(kind)
    whole = case.act(slice(0, NUM_ENVS))
    for size in (1, 2, 3, 4, 7):
        edges = [NUM_ENVS * part // size for part in range(size + 1)]
        for rows in map(slice, edges, edges[1:]):
            assert_same_bits(case.act(rows), [part[rows] for part in whole])


@torch.inference_mode()
def outputs_of_network(policy, seen):
    """The distribution's parameters by one call for all rows, at the start of an episode."""
    network, rows = policy.network, torch.from_numpy(seen)
    if isinstance(network, ActorCritic):
        return NumpyMlp(network.actor)(seen)
    if not network.state_size:
        return network.parameters_of(rows).numpy()
    starts, state = torch.ones(1, len(seen), dtype=torch.bool), torch.zeros(len(seen), network.state_size)
    return network.over_sequences(rows, Sequences(starts, state))[0].numpy()


@pytest.mark.parametrize("kind", KINDS)
def test_few_environments_get_the_bits_of_one_call_of_the_network(kind):
    case, few = Case(kind), 4
    seen, memory = case.observations[0, :few], case.policy.new_memory(few)
    with case.policy.acting_threads():
        np.testing.assert_array_equal(case.policy.parameters(seen, memory), outputs_of_network(case.policy, seen))


@pytest.mark.parametrize(("activation", "n_threads"), [("tanh", 2), ("elu", 1), ("gelu", 1), ("silu", 1)])
def test_torch_acts_in_one_thread_where_it_computes_activations(activation, n_threads):
    """Of 40,000 numbers by elu, one to four differed in the last bit with 1, 2 and 4 threads."""
    policy, before = Policy(NUMBERS, CHOICES, PPOConfig(activation=activation)), torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        with policy.acting_threads():
            assert torch.get_num_threads() == n_threads
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("kind", KINDS)
def test_actions_do_not_depend_on_the_number_of_threads(kind, monkeypatch):
    before, found = torch.get_num_threads(), []
    try:
        for n_threads in (1, 2, 4):
            torch.set_num_threads(n_threads)
            monkeypatch.setattr(acting, "in_threads", partial(in_threads, n_threads=n_threads))
            with threadpoolctl.threadpool_limits(n_threads, "blas"):  # NumPy's
                case = Case(kind)
                found.append([*case.act(slice(0, 10), num_envs=10), *case.act(slice(0, NUM_ENVS))])
    finally:
        torch.set_num_threads(before)
    assert_same_bits(found[1], found[0])
    assert_same_bits(found[2], found[0])


@pytest.fixture
def pinned(monkeypatch):
    """Transfers that take the way of a GPU, and what was pinned and waited for."""
    calls = []
    monkeypatch.setattr(acting, "pin", lambda like: calls.append("pin") or torch.empty_like(like))
    monkeypatch.setattr(acting, "wait_for", lambda device: calls.append("wait"))
    both = Transfers(torch.device("cpu"))
    both.pins = True
    return both, calls


def test_pinned_and_plain_transfers_carry_the_same(pinned):
    throughpins, calls = pinned
    plain = Transfers(torch.device("cpu"))
    for array in np.random.default_rng(0).normal(size=(3, 4, 2)).astype(np.float32):
        results = [each.to_host(each.to_device(array) * 2.0).copy() for each in (plain, throughpins)]
        np.testing.assert_array_equal(results[0], array * 2.0)
        np.testing.assert_array_equal(results[1], results[0])
    assert calls == ["pin", "pin", "wait", "wait", "wait"]  # pinned once each way, waited for at every answer


def test_other_shapes_get_memory_of_their_own(pinned):
    both, _ = pinned
    for shape in ((2, 3), (5,), (2, 3)):
        assert both.to_host(both.to_device(np.ones(shape, np.float32))).shape == shape

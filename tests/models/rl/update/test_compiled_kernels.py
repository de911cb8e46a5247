"""The recurrent kernel's steps against autograd's and torch's, and with themselves whatever the number of threads."""

import copy
import math

import numpy as np
import pytest
import torch
from gymnasium import spaces

from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.models.rl.policies.policy import Policy
from ml_pipeline.models.rl.transitions import LossInputs, Minibatch, Sequences
from ml_pipeline.models.rl.update.compiled_steps import CompiledSteps
from ml_pipeline.models.rl.update.gradient_steps import FlatAdam, StepSettings, TorchSteps, flatten_parameters
from ml_pipeline.models.rl.update.ppo_loss import AutogradGradients, LossWeights

CHOICES, NUMBERS = spaces.Discrete(3), spaces.Box(-1, 1, (2,))
WEIGHTS = LossWeights(0.2, None, 0.01, 0.5)
kinds = pytest.mark.parametrize("kind", ["gru", "lstm"])
sharing = pytest.mark.parametrize("share_layers", [False, True], ids=["separate", "shared"])
both_spaces = pytest.mark.parametrize("action_space", [CHOICES, NUMBERS], ids=["discrete", "box"])


def recurrent(action_space, *, n_inputs=5, **settings):
    """A network with its parameters in one vector, and what steps them."""
    config = PPOConfig(**{"hidden_sizes": (16,), **settings})
    network = Policy(spaces.Box(-1, 1, (n_inputs,)), action_space, config).network
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    flat = flatten_parameters(network.parameter_order())
    return network, FlatAdam(flat, flat.grad, epsilon=1e-5)


def random_batch(network, length, n_sequences, *, n_inputs=5, p_start=0.15):
    """Far from the kinks of the loss: ratios within 1 +- 0.1."""
    generator = torch.Generator().manual_seed(length)
    n_samples = length * n_sequences
    observations = torch.randn(n_samples, n_inputs, generator=generator)
    starts = torch.rand(length, n_sequences, generator=generator) < p_start
    sequences = Sequences(starts, torch.randn(n_sequences, network.state_size, generator=generator))
    choices = torch.randint(3, (n_samples,), generator=generator)
    actions = choices if network.distribution.num_parameters == 3 else torch.randn(n_samples, 2, generator=generator)
    with torch.no_grad():
        parameters, values, _ = network.over_sequences(observations, sequences)
        log_probs, _ = network.distribution.log_probs_and_entropies(parameters, actions)
    noise = torch.randn(3, n_samples, generator=generator)
    old_log_probs = log_probs + 0.1 * torch.tanh(noise[0])
    return Minibatch(observations, actions, LossInputs(old_log_probs, noise[1], values + noise[2], values), sequences)


def gradient_by_float64(network, minibatch):
    exact = copy.deepcopy(network).double()
    flat = flatten_parameters(exact.parameter_order())
    actions = minibatch.actions if minibatch.actions.ndim == 1 else minibatch.actions.double()
    inputs = LossInputs(*(column.double() for column in minibatch.inputs))
    sequences = minibatch.sequences._replace(state=minibatch.sequences.state.double())
    AutogradGradients(exact)(Minibatch(minibatch.observations.double(), actions, inputs, sequences), WEIGHTS)
    return flat.grad


def steps_of(kind, network, optimizer, config, **threads):
    generator = np.random.default_rng(1)
    if kind == "torch":
        return TorchSteps(AutogradGradients(network), optimizer, config, generator)
    return CompiledSteps(network, optimizer, config, generator, **threads)


@kinds
@sharing
@both_spaces
@pytest.mark.parametrize("seed", range(4))
def test_the_gradient_through_time_is_that_of_autograd(kind, share_layers, action_space, seed):
    drawn = np.random.default_rng(seed)
    size, n_inputs, length, n_sequences = drawn.integers([1, 1, 1, 1], [40, 20, 30, 12])
    p_start = drawn.choice([0.0, 0.1, 1.0])
    settings = {"memory": kind, "memory_size": int(size), "share_layers": share_layers}
    network, optimizer = recurrent(action_space, n_inputs=int(n_inputs), **settings)
    minibatch = random_batch(network, int(length), int(n_sequences), n_inputs=int(n_inputs), p_start=p_start)
    found = steps_of("compiled", network, optimizer, PPOConfig()).gradient(minibatch, WEIGHTS)
    expected = gradient_by_float64(network, minibatch)
    assert (found - expected).norm() <= 1e-5 * expected.norm()  # of rounding at most 1e-6 was seen


@kinds
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("sizes", [((9,), None), ((9, 20, 5), (7,))], ids=str)
def test_the_gradient_is_that_of_autograd_whatever_is_above_the_memory(kind, activation, sizes):
    hidden_sizes, value_hidden_sizes = sizes
    settings = {"hidden_sizes": hidden_sizes, "value_hidden_sizes": value_hidden_sizes, "activation": activation}
    network, optimizer = recurrent(NUMBERS, memory=kind, memory_size=8, **settings)
    minibatch = random_batch(network, 7, 6)
    found = steps_of("compiled", network, optimizer, PPOConfig()).gradient(minibatch, WEIGHTS)
    expected = gradient_by_float64(network, minibatch)
    assert (found - expected).norm() <= 1e-5 * expected.norm()


@kinds
def test_several_groups_of_sequences_add_up(kind):
    """64 sequences of 40 steps are three groups of at most 25, in one thread and one chunk of each network."""
    network, optimizer = recurrent(CHOICES, memory=kind, memory_size=8)
    minibatch = random_batch(network, 40, 64)
    found = steps_of("compiled", network, optimizer, PPOConfig()).gradient(minibatch, WEIGHTS)
    expected = gradient_by_float64(network, minibatch)
    assert (found - expected).norm() <= 1e-5 * expected.norm()


@kinds
@sharing
def test_steps_rows_and_norms_are_those_of_torch(kind, share_layers):
    settings = {"memory": kind, "memory_size": 8, "share_layers": share_layers}
    found = {}
    for steps in ("torch", "compiled"):
        network, optimizer = recurrent(CHOICES, **settings)
        # Two epochs of minibatches of 4, 4 and 3 of 11 sequences, each of 9 steps
        config = PPOConfig(minibatch_size=40, n_epochs=2)
        taken = steps_of(steps, network, optimizer, config)(
            random_batch(network, 9, 11), StepSettings(WEIGHTS, 0.003, math.inf)
        )
        found[steps] = {**optimizer.state_dict(), "weights": optimizer.parameters.detach()}
        # The rows of a minibatch are those of torch in another order.
        rows = [part.sort(dim=1).values for part in torch.stack(taken.rows).split([36, 36, 27, 36, 36, 27], dim=1)]
        found[steps] |= {"norms": taken.norms.float(), "rows": rows}
        found[steps] |= {"first": torch.stack(taken.first).sort(dim=1).values}
    assert found["compiled"]["n_steps"] == 6
    torch.testing.assert_close(found["compiled"], found["torch"], rtol=1e-4, atol=1e-5)


@kinds
@sharing
@pytest.mark.parametrize("n_threads", [2, 3])
def test_the_number_of_threads_changes_no_bit(kind, share_layers, n_threads):
    config, found = PPOConfig(minibatch_size=1024, n_epochs=2), []  # 1,024 samples are four parts
    for threads in (1, n_threads):
        network, optimizer = recurrent(NUMBERS, memory=kind, memory_size=8, share_layers=share_layers)
        steps = steps_of("compiled", network, optimizer, config, n_threads=threads)
        assert steps._n_threads == threads
        taken = steps(random_batch(network, 16, 100), StepSettings(WEIGHTS, 0.003, math.inf))
        found.append([optimizer.parameters.detach(), taken.norms, *taken.rows])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_steps_end_before_the_one_that_would_go_further():
    network, optimizer = recurrent(CHOICES, memory="gru", memory_size=8)
    batch = random_batch(network, 10, 10)
    steps = steps_of("compiled", network, optimizer, PPOConfig(minibatch_size=35, n_epochs=5), n_threads=2)
    taken = steps(batch, StepSettings(WEIGHTS, 1e-3, 0.0))  # the KL of any minibatch is above 0
    assert len(taken.norms) == len(taken.rows.log_ratios) == 0
    taken = steps(batch, StepSettings(WEIGHTS, 1e-3, math.inf))
    assert len(taken.norms) == optimizer.n_steps == 20  # of 3, 3, 3 and 1 sequences
    assert len(taken.rows.log_ratios) == 500


@pytest.mark.parametrize("field", ["advantages", "returns", "observations", "state"])
def test_a_nan_comes_out(field):
    network, optimizer = recurrent(CHOICES, memory="lstm", memory_size=8)
    batch = random_batch(network, 6, 10, p_start=0.0)
    owner = {"observations": batch, "state": batch.sequences}.get(field, batch.inputs)
    getattr(owner, field)[5] = math.nan
    steps = steps_of("compiled", network, optimizer, PPOConfig(minibatch_size=60, n_epochs=1))
    assert steps(batch, StepSettings(WEIGHTS, 0.01, math.inf)).norms.isnan().all()

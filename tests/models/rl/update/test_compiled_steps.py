"""The kernel's steps against autograd's and torch's, and with themselves whatever the number of threads."""

import copy
import math
from typing import get_args

import numpy as np
import pytest
import torch
from gymnasium import spaces

from ml_pipeline.config.ppo import Activation, PPOConfig
from ml_pipeline.models.rl.networks.actor_critic import ActorCritic
from ml_pipeline.models.rl.transitions import LossInputs, Minibatch
from ml_pipeline.models.rl.update.compiled_steps import CompiledSteps
from ml_pipeline.models.rl.update.gradient_steps import FlatAdam, StepSettings, TorchSteps, flatten_parameters
from ml_pipeline.models.rl.update.ppo_loss import AutogradGradients, LossWeights

CHOICES, NUMBERS = spaces.Discrete(3), spaces.Box(-1, 1, (2,))
WEIGHTS = LossWeights(0.2, 0.2, 0.01, 0.5)
both_spaces = pytest.mark.parametrize("action_space", [CHOICES, NUMBERS], ids=["discrete", "box"])


def actor_critic(action_space, *, hidden_sizes=(16, 16), **settings):
    """With its parameters in one vector, and what steps them."""
    generator = torch.Generator().manual_seed(0)
    settings = {"hidden_sizes": hidden_sizes, "activation": "tanh", **settings}
    network = ActorCritic(5, action_space, **settings, generator=generator)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    flat = flatten_parameters(network.parameter_order())
    return network, FlatAdam(flat, flat.grad, epsilon=1e-5)


def random_batch(network, n_samples, *, as_if_moved=0.3):
    """Old log-probabilities and values that differ from those of the network, so that some are clipped.

    No sample is at a kink of the loss or of a rectifier, where rounding would decide which slope is taken.
    """
    generator = torch.Generator().manual_seed(n_samples)
    drawn = n_samples + 10 + n_samples // 4
    observations = torch.randn(drawn, 5, generator=generator)
    choices = torch.randint(3, (drawn,), generator=generator)
    actions = choices if network.distribution.num_parameters == 3 else torch.randn(drawn, 2, generator=generator)
    with torch.no_grad():
        parameters, values = network(observations)
        log_probs, _ = network.distribution.log_probs_and_entropies(parameters, actions)
    noise = torch.randn(4, drawn, generator=generator)
    old_log_probs, old_values = log_probs + as_if_moved * noise[0], values + as_if_moved * noise[1]
    inputs = LossInputs(old_log_probs, noise[2], values + noise[3], old_values)
    smooth = distances_to_kinks(network, Minibatch(observations, actions, inputs)) > 1e-4
    assert smooth.sum() >= n_samples
    observations, actions, *columns = (each[smooth][:n_samples] for each in (observations, actions, *inputs))
    return Minibatch(observations, actions, LossInputs(*columns))


@torch.no_grad()
def distances_to_kinks(network, batch):
    """Of each sample, (B,): how far it is, at least, from the next place where the loss has two slopes."""
    parameters, values = network(batch.observations)
    log_probs, _ = network.distribution.log_probs_and_entropies(parameters, batch.actions)
    ratios, inputs = (log_probs - batch.inputs.old_log_probs).exp(), batch.inputs
    moved, residuals = values - inputs.old_values, values - inputs.returns
    clipped = residuals - moved + moved.clamp(-WEIGHTS.clip_range_vf, WEIGHTS.clip_range_vf)
    distances = [
        *((ratios - 1.0 - sign * WEIGHTS.clip_range).abs() for sign in (-1, 1)),
        (moved.abs() - WEIGHTS.clip_range_vf).abs(),
        torch.where(moved.abs() <= WEIGHTS.clip_range_vf, 1.0, (residuals.abs() - clipped.abs()).abs()),
    ]
    for mlp in (network.actor, network.critic):
        if not any(isinstance(layer, torch.nn.ReLU | torch.nn.LeakyReLU) for layer in mlp):
            continue
        outputs = batch.observations
        for layer in mlp[:-1]:
            outputs = layer(outputs)
            if isinstance(layer, torch.nn.Linear):
                distances.append(outputs.abs().amin(dim=1))
    return torch.stack(distances).amin(dim=0)


def gradient_by_float64(network, minibatch, weights):
    """By autograd, all of it in float64, and so free of its own rounding."""
    exact = copy.deepcopy(network).double()
    flat = flatten_parameters(exact.parameter_order())
    observations, actions = minibatch.observations.double(), minibatch.actions
    actions = actions if actions.ndim == 1 else actions.double()
    inputs = LossInputs(*(column.double() for column in minibatch.inputs))
    AutogradGradients(exact)(Minibatch(observations, actions, inputs), weights)
    return flat.grad


def steps_of(kind, network, optimizer, config, **threads):
    generator = np.random.default_rng(1)
    if kind == "torch":
        return TorchSteps(AutogradGradients(network), optimizer, config, generator)
    return CompiledSteps(network, optimizer, config, generator, **threads)


@both_spaces
@pytest.mark.parametrize("activation", get_args(Activation))
@pytest.mark.parametrize("hidden_sizes", [(64, 64), (8,), (33, 7, 20)], ids=str)
@pytest.mark.parametrize("bound", [None, 0.2], ids=["", "clipped values"])
def test_the_gradient_is_that_of_autograd(action_space, activation, hidden_sizes, bound):
    weights = WEIGHTS._replace(clip_range_vf=bound)
    assert_gradient_is_that_of_autograd(
        *actor_critic(action_space, hidden_sizes=hidden_sizes, activation=activation), weights
    )


@both_spaces
@pytest.mark.parametrize("activation", ["tanh", "silu"])
@pytest.mark.parametrize(
    ("hidden_sizes", "value_hidden_sizes"), [((8,), (33, 7, 20)), ((33, 7, 20), (8,)), ((64, 64), (128, 16))], ids=str
)
def test_so_it_is_where_the_networks_have_different_sizes(action_space, activation, hidden_sizes, value_hidden_sizes):
    sizes = {"hidden_sizes": hidden_sizes, "value_hidden_sizes": value_hidden_sizes}
    assert_gradient_is_that_of_autograd(*actor_critic(action_space, **sizes, activation=activation), WEIGHTS)


def assert_gradient_is_that_of_autograd(network, optimizer, weights):
    steps = steps_of("compiled", network, optimizer, PPOConfig())
    for n_samples in (1, 7, 100):
        minibatch = random_batch(network, n_samples)
        expected = gradient_by_float64(network, minibatch, weights)
        found = steps.gradient(minibatch, weights)
        assert (found - expected).norm() <= 3e-5 * expected.norm()  # of rounding at most 1.4e-5, and 7e-6 in torch


@both_spaces
@pytest.mark.parametrize("over", ["minibatch", "batch"])
def test_steps_rows_and_norms_are_those_of_torch(action_space, over):
    # 3 epochs of minibatches of 40, 40 and 20
    config = PPOConfig(minibatch_size=40, n_epochs=3, normalize_advantages_over=over)
    assert_equal_to_torch(action_space, config, n_minibatches=9)


@both_spaces
def test_a_last_minibatch_of_one_is_stepped_on_as_in_torch(action_space):
    assert_equal_to_torch(action_space, PPOConfig(minibatch_size=33, n_epochs=1), n_minibatches=4)


def assert_equal_to_torch(action_space, config, *, n_minibatches):
    found = {}
    for kind in ("torch", "compiled"):
        network, optimizer = actor_critic(action_space)
        steps = steps_of(kind, network, optimizer, config)
        if kind == "torch":
            steps._gradients = between_kinks(network)
        taken = steps(random_batch(network, 100), StepSettings(WEIGHTS, 0.01, 99))
        found[kind] = {**optimizer.state_dict(), "weights": optimizer.parameters.detach(), "norms": taken.norms.float()}
        found[kind] |= {"rows": torch.stack(taken.rows), "first": torch.stack(taken.first)}
    assert found["compiled"]["n_steps"] == n_minibatches
    torch.testing.assert_close(found["compiled"], found["torch"], rtol=1e-4, atol=1e-5)


def between_kinks(network):
    """Autograd, which sees to it that the weights come by no kink on their way."""
    gradients = AutogradGradients(network)

    def checked(minibatch, weights):
        assert distances_to_kinks(network, minibatch).min() > 1e-5
        return gradients(minibatch, weights)

    return checked


@both_spaces
@pytest.mark.parametrize("n_threads", [2, 3])
def test_the_number_of_threads_changes_no_bit(action_space, n_threads):
    config = PPOConfig(minibatch_size=1024, n_epochs=2)  # four chunks, and 976 samples at last
    found = []
    for threads in (1, n_threads):
        network, optimizer = actor_critic(action_space)
        steps = steps_of("compiled", network, optimizer, config, n_threads=threads)
        taken = steps(random_batch(network, 2000), StepSettings(WEIGHTS, 0.01, math.inf))
        found.append([optimizer.parameters.detach(), taken.norms, *taken.rows])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_steps_end_before_the_one_that_would_go_further():
    config = PPOConfig(minibatch_size=30, n_epochs=5)
    network, optimizer = actor_critic(CHOICES)
    batch = random_batch(network, 100, as_if_moved=0.0)
    steps = steps_of("compiled", network, optimizer, config, n_threads=2)
    # The approximate KL of the eleventh minibatch is 0.0020, of those before at most 0.0012.
    taken = steps(batch, StepSettings(WEIGHTS, 1e-3, 1.5e-3))
    assert len(taken.norms) == optimizer.n_steps == 10
    assert len(taken.rows.log_ratios) == 2 * 100 + 2 * 30  # four minibatches an epoch, of 30, 30, 30 and 10


@pytest.mark.parametrize("field", ["advantages", "returns", "old_log_probs", "observations"])
def test_a_nan_comes_out(field):
    network, optimizer = actor_critic(CHOICES)
    batch = random_batch(network, 60)
    batch = batch._replace(observations=batch.observations.clone())
    owner = batch if field == "observations" else batch.inputs
    getattr(owner, field)[50] = math.nan
    steps = steps_of("compiled", network, optimizer, PPOConfig(minibatch_size=60, n_epochs=1))
    assert steps(batch, StepSettings(WEIGHTS, 0.01, math.inf)).norms.isnan().all()

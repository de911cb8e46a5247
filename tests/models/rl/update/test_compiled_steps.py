"""The kernel's steps against autograd's and torch's, and with themselves whatever the number of threads."""

import math

import numpy as np
import pytest
import torch
from gymnasium import spaces

from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.models.rl.networks.actor_critic import ActorCritic
from ml_pipeline.models.rl.networks.flat_parameters import flatten_parameters
from ml_pipeline.models.rl.update.compiled_steps import CompiledSteps
from ml_pipeline.models.rl.update.flat_adam import FlatAdam
from ml_pipeline.models.rl.update.gradient_steps import StepSettings, TorchSteps
from ml_pipeline.models.rl.update.minibatch_gradients import AutogradGradients, Minibatch
from ml_pipeline.models.rl.update.ppo_loss import LossInputs, LossWeights

CHOICES, NUMBERS = spaces.Discrete(3), spaces.Box(-1, 1, (2,))
WEIGHTS = LossWeights(0.2, 0.2, 0.01, 0.5)
both_spaces = pytest.mark.parametrize("action_space", [CHOICES, NUMBERS], ids=["discrete", "box"])


def actor_critic(action_space, *, hidden_sizes=(16, 16), activation="tanh"):
    """With its parameters in one vector, and what steps them."""
    generator = torch.Generator().manual_seed(0)
    network = ActorCritic(5, action_space, hidden_sizes=hidden_sizes, activation=activation, generator=generator)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    flat = flatten_parameters(network.parameter_order())
    return network, FlatAdam(flat, flat.grad, epsilon=1e-5)


def random_batch(network, n_samples, *, as_if_moved=0.3):
    """Old log-probabilities and values that differ from those of the network, so that some are clipped."""
    generator = torch.Generator().manual_seed(n_samples)
    observations = torch.randn(n_samples, 5, generator=generator)
    choices = torch.randint(3, (n_samples,), generator=generator)
    actions = choices if network.distribution.num_parameters == 3 else torch.randn(n_samples, 2, generator=generator)
    with torch.no_grad():
        parameters, values = network(observations)
        log_probs, _ = network.distribution.log_probs_and_entropies(parameters, actions)
    noise = torch.randn(4, n_samples, generator=generator)
    old_log_probs, old_values = log_probs + as_if_moved * noise[0], values + as_if_moved * noise[1]
    return Minibatch(observations, actions, LossInputs(old_log_probs, noise[2], values + noise[3], old_values))


def steps_of(kind, network, optimizer, config, **threads):
    generator = np.random.default_rng(1)
    if kind == "torch":
        return TorchSteps(AutogradGradients(network), optimizer, config, generator)
    return CompiledSteps(network, optimizer, config, generator, **threads)


@both_spaces
@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("hidden_sizes", [(64, 64), (8,), (33, 7, 20)], ids=str)
@pytest.mark.parametrize("bound", [None, 0.2], ids=["", "clipped values"])
def test_the_gradient_is_that_of_autograd(action_space, activation, hidden_sizes, bound):
    network, optimizer = actor_critic(action_space, hidden_sizes=hidden_sizes, activation=activation)
    weights = WEIGHTS._replace(clip_range_vf=bound)
    steps = steps_of("compiled", network, optimizer, PPOConfig())
    for n_samples in (1, 7, 100):
        minibatch = random_batch(network, n_samples)
        found = steps.gradient(minibatch, weights)
        AutogradGradients(network)(minibatch, weights)
        assert (found - optimizer.gradient).norm() <= 1e-5 * optimizer.gradient.norm()


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
        taken = steps_of(kind, network, optimizer, config)(random_batch(network, 100), StepSettings(WEIGHTS, 0.01, 99))
        found[kind] = {**optimizer.state_dict(), "weights": optimizer.parameters.detach(), "norms": taken.norms.float()}
        found[kind] |= {"rows": torch.stack(taken.rows), "first": torch.stack(taken.first)}
    assert found["compiled"]["n_steps"] == n_minibatches
    torch.testing.assert_close(found["compiled"], found["torch"], rtol=1e-4, atol=1e-5)


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
    taken = steps(batch, StepSettings(WEIGHTS, 1e-3, 1e-3))
    assert 4 < len(taken.norms) < 20
    whole, more = divmod(len(taken.norms), 4)
    assert len(taken.rows.log_ratios) == 100 * whole + 30 * more
    assert optimizer.n_steps == len(taken.norms)


@pytest.mark.parametrize("field", ["advantages", "returns", "old_log_probs", "observations"])
def test_a_nan_comes_out(field):
    network, optimizer = actor_critic(CHOICES)
    batch = random_batch(network, 60)
    batch = batch._replace(observations=batch.observations.clone())
    owner = batch if field == "observations" else batch.inputs
    getattr(owner, field)[50] = math.nan
    steps = steps_of("compiled", network, optimizer, PPOConfig(minibatch_size=60, n_epochs=1))
    assert steps(batch, StepSettings(WEIGHTS, 0.01, math.inf)).norms.isnan().all()

"""The closed form against autograd, on whole networks."""

from typing import get_args

import pytest
import torch
from gymnasium import spaces

from ml_pipeline.config.ppo import Activation
from ml_pipeline.models.rl.networks.actor_critic import ActorCritic
from ml_pipeline.models.rl.transitions import LossInputs, Minibatch
from ml_pipeline.models.rl.update.gradient_steps import flatten_parameters
from ml_pipeline.models.rl.update.ppo_loss import AutogradGradients, ClosedFormGradients, LossWeights


@pytest.mark.parametrize("hidden_sizes", [(16, 16), (8,), ()], ids=str)
@pytest.mark.parametrize("activation", get_args(Activation))
@pytest.mark.parametrize("action_space", [spaces.Discrete(3), spaces.Box(-1, 1, (2,))], ids=["discrete", "box"])
def test_both_ways_give_the_same_gradient_and_loss(action_space, activation, hidden_sizes):
    generator = torch.Generator().manual_seed(0)
    network = ActorCritic(5, action_space, hidden_sizes=hidden_sizes, activation=activation, generator=generator)
    flat = flatten_parameters(network.double().parameter_order())
    closed_form, autograd = ClosedFormGradients(network), AutogradGradients(network)
    for n_samples in (33, 7, 33):  # the last minibatch of an epoch may be smaller
        minibatch = random_minibatch(network, action_space, n_samples, generator)
        weights = LossWeights(0.2, 0.2, 0.01, 0.5)
        flat.grad.fill_(9.0)  # what an earlier minibatch left must not count
        rows = autograd(minibatch, weights)
        expected = flat.grad.clone()
        flat.grad.fill_(9.0)
        same_rows = closed_form(minibatch, weights)
        torch.testing.assert_close(flat.grad, expected, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(torch.stack(same_rows), torch.stack(rows), rtol=1e-9, atol=1e-12)


def random_minibatch(network, action_space, n_samples, generator):
    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    observations = normal(n_samples, 5)
    discrete = isinstance(action_space, spaces.Discrete)
    actions = torch.randint(3, (n_samples,), generator=generator) if discrete else normal(n_samples, 2)
    with torch.no_grad():
        parameters, values = network(observations)
        log_probs, _ = network.distribution.log_probs_and_entropies(parameters, actions)
    inputs = LossInputs(
        log_probs + 0.3 * normal(n_samples), normal(n_samples), normal(n_samples), values + 0.3 * normal(n_samples)
    )
    return Minibatch(observations, actions, inputs)

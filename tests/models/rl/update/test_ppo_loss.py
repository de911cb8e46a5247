"""The loss worked by hand; its closed-form derivatives against autograd, alone and on whole networks."""

import math
from typing import get_args

import pytest
import torch
from gymnasium import spaces

from ml_pipeline.config.ppo import Activation
from ml_pipeline.models.rl.networks.actor_critic import ActorCritic
from ml_pipeline.models.rl.transitions import LossInputs, Minibatch
from ml_pipeline.models.rl.update.gradient_steps import flatten_parameters
from ml_pipeline.models.rl.update.ppo_loss import (
    AutogradGradients,
    ClosedFormGradients,
    LossWeights,
    approx_kl,
    loss_terms,
    normalize_advantages,
    ppo_loss,
    ppo_loss_gradients,
)


def tensor(*values):
    return torch.tensor(values, dtype=torch.float64)


def test_the_loss_of_two_samples_worked_by_hand():
    # ratios 1.5 and 0.5, clipped to 1.2 and 0.8; advantages 1 and -1:
    # min(1.5, 1.2) = 1.2 and min(-0.5, -0.8) = -0.8, mean 0.2, loss -0.2
    # values 3 and 1 for returns 1 and 1: errors 4 and 0, mean 2; entropies 0.5 and 0.7, mean 0.6
    # loss = -0.2 + 0.5 * 2 - 0.1 * 0.6 = 0.74;  KL = mean(0.5 - ln 1.5, -0.5 - ln 0.5)
    inputs = LossInputs(tensor(0, 0), tensor(1, -1), tensor(1, 1), tensor(0, 0))
    log_probs = tensor(math.log(1.5), math.log(0.5))
    loss, rows = ppo_loss(log_probs, tensor(0.5, 0.7), tensor(3, 1), inputs, LossWeights(0.2, None, 0.1, 0.5))
    terms = loss_terms(rows, clip_range=0.2)
    assert loss.item() == pytest.approx(0.74)
    assert terms.policy_loss.item() == pytest.approx(-0.2)
    assert terms.value_loss.item() == pytest.approx(2.0)
    assert terms.entropy.item() == pytest.approx(0.6)
    assert terms.clip_fraction.item() == 1.0
    assert terms.approx_kl.item() == pytest.approx((0.5 - math.log(1.5) - 0.5 - math.log(0.5)) / 2)


def test_the_kl_is_that_of_the_third_estimator_and_never_negative():
    # ratios 1.5 and 1: (0.5 - ln 1.5 + 0) / 2 = 0.0473; the mean of -log ratio would be -0.2027
    assert approx_kl(tensor(math.log(1.5), 0)).item() == pytest.approx((0.5 - math.log(1.5)) / 2)


def test_with_value_clipping_the_worse_error_counts():
    # old value 0, range 0.2. Value 1 for return 1: error 0, clipped 0.2: 0.64 counts.
    # Value -1 for return 1: error 4 counts, clipped -0.2: 1.44.
    inputs = LossInputs(tensor(0, 0), tensor(0, 0), tensor(1, 1), tensor(0, 0))
    _, rows = ppo_loss(tensor(0, 0), tensor(0, 0), tensor(1, -1), inputs, LossWeights(0.2, 0.2, 0.0, 1.0))
    torch.testing.assert_close(rows.value_errors, tensor(0.64, 4.0))


@pytest.mark.parametrize("clip_range_vf", [None, 0.3])
@pytest.mark.parametrize("seed", range(5))
def test_closed_form_gradients_equal_autograd(seed, clip_range_vf):
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(7, 64, generator=generator, dtype=torch.float64)
    log_probs, entropies, values = (row.clone().requires_grad_() for row in rows[:3])
    inputs = LossInputs(rows[0] + 0.3 * rows[3], rows[4], rows[5], rows[2] + 0.4 * rows[6])
    weights = LossWeights(0.2, clip_range_vf, 0.01, 0.5)
    loss, rows = ppo_loss(log_probs, entropies, values, inputs, weights)
    expected = torch.autograd.grad(loss, (log_probs, entropies, values))
    with torch.no_grad():
        gradients, same_rows = ppo_loss_gradients(log_probs, entropies, values, inputs, weights)
    torch.testing.assert_close(gradients.d_log_probs, expected[0], rtol=1e-12, atol=1e-15)
    torch.testing.assert_close(torch.full((64,), gradients.d_entropy).double(), expected[1], rtol=1e-6, atol=0)
    torch.testing.assert_close(gradients.d_values, expected[2], rtol=1e-12, atol=1e-15)
    torch.testing.assert_close(torch.stack(same_rows), torch.stack(rows))


def test_advantages_are_normalized_and_a_single_one_is_left_alone():
    out = normalize_advantages(tensor(1, 2, 3))  # mean 2, deviation 1 with ddof 1
    torch.testing.assert_close(out, tensor(-1, 0, 1))
    assert normalize_advantages(tensor(5)).tolist() == [5.0]


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

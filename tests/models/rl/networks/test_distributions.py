"""Against torch.distributions and autograd; the sampling against the probabilities it is meant to have."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from ml_pipeline.models.rl.core.spaces import UnsupportedSpace
from ml_pipeline.models.rl.networks.distributions import Categorical, DiagonalGaussian, distribution_for

N_SAMPLES = 7


def gaussian(size):
    distribution = DiagonalGaussian(size)
    with torch.no_grad():
        distribution.log_std.copy_(torch.linspace(-0.5, 0.4, size))
    return distribution.double()


def cases():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(N_SAMPLES, 3, generator=generator, dtype=torch.float64)
    choices = torch.randint(3, (N_SAMPLES,), generator=generator)
    means = torch.randn(N_SAMPLES, 2, generator=generator, dtype=torch.float64)
    numbers = means + torch.randn(N_SAMPLES, 2, generator=generator, dtype=torch.float64)
    return [("categorical", Categorical(3), logits, choices), ("gaussian", gaussian(2), means, numbers)]


CASES = cases()


def reference(name, distribution, parameters):
    if name == "categorical":
        return torch.distributions.Categorical(logits=parameters)
    normal = torch.distributions.Normal(parameters, distribution.log_std.exp())
    return torch.distributions.Independent(normal, 1)


@pytest.mark.parametrize(
    ("name", "distribution", "parameters", "actions"), cases(), ids=lambda x: x if isinstance(x, str) else ""
)
def test_log_probs_and_entropies_equal_those_of_torch(name, distribution, parameters, actions):
    log_probs, entropies = distribution.log_probs_and_entropies(parameters, actions)
    expected = reference(name, distribution, parameters)
    torch.testing.assert_close(log_probs, expected.log_prob(actions), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(entropies, expected.entropy(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("d_entropy", [0.0, -0.3])
@pytest.mark.parametrize(
    ("name", "distribution", "parameters", "actions"), cases(), ids=lambda x: x if isinstance(x, str) else ""
)
def test_closed_form_gradients_equal_autograd(name, distribution, parameters, actions, d_entropy):
    weights = torch.linspace(-1, 2, N_SAMPLES, dtype=torch.float64)
    parameters = parameters.clone().requires_grad_()
    log_probs, entropies = distribution.log_probs_and_entropies(parameters, actions)
    inputs = [parameters, *distribution.parameters()]
    expected = torch.autograd.grad((log_probs * weights).sum() + d_entropy * entropies.sum(), inputs)

    for own in distribution.parameters():
        own.grad = torch.zeros_like(own)
    with torch.no_grad():
        *same, backward = distribution.closed_form(parameters, actions)
        actual = backward(weights, d_entropy)
    torch.testing.assert_close(same, [log_probs, entropies], rtol=1e-12, atol=1e-12)
    for one, other in zip([actual, *(own.grad for own in distribution.parameters())], expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_categorical_choices_come_as_often_as_their_probability():
    distribution, n_draws = Categorical(3), 40_000
    probabilities = np.array([0.7, 0.05, 0.25])
    logits = np.tile(np.log(probabilities).astype(np.float32), (n_draws, 1))
    noise = distribution.draw_noise(np.random.default_rng(0), (n_draws,))
    shares = np.bincount(distribution.sample(logits, noise), minlength=3) / n_draws
    np.testing.assert_allclose(shares, probabilities, atol=4 * np.sqrt(0.25 / n_draws))  # four deviations


def test_categorical_noise_at_its_largest_gives_the_last_choice_that_is_possible():
    logits = np.array([[0.0, 0.0, 0.0]], np.float32)
    assert Categorical(3).sample(logits, np.array([np.nextafter(np.float32(1), np.float32(0))])).tolist() == [2]
    assert Categorical(3).sample(logits, np.array([1.0], np.float32)).tolist() == [2]


def test_gaussian_samples_have_the_mean_and_the_deviation():
    distribution, n_draws = gaussian(2).float(), 40_000
    means = np.tile(np.array([3.0, -1.0], np.float32), (n_draws, 1))
    actions = distribution.sample(means, distribution.draw_noise(np.random.default_rng(0), (n_draws,)))
    assert actions.dtype == np.float32
    np.testing.assert_allclose(actions.mean(axis=0), [3.0, -1.0], atol=0.03)
    np.testing.assert_allclose(actions.std(axis=0), np.exp([-0.5, 0.4]), atol=0.03)


def test_a_new_gaussian_has_deviation_one_everywhere():
    assert DiagonalGaussian(3).log_std.tolist() == [0.0, 0.0, 0.0]


def test_modes_are_the_likeliest_actions():
    assert Categorical(3).mode(np.array([[0.0, 2.0, 1.0], [5.0, 2.0, 1.0]])).tolist() == [1, 0]
    assert DiagonalGaussian(2).mode(np.array([[0.5, -2.0]])).tolist() == [[0.5, -2.0]]


def test_a_space_without_a_distribution_is_named():
    with pytest.raises(UnsupportedSpace, match="MultiBinary; Discrete and Box have one"):
        distribution_for(spaces.MultiBinary(3))

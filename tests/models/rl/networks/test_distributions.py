"""Against torch.distributions and autograd; the sampling against the probabilities it is meant to have."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector.utils import batch_space

from ml_pipeline.models.rl.networks.distributions import (
    Bernoulli,
    Categorical,
    DiagonalGaussian,
    Joint,
    SquashedGaussian,
    StateDependentGaussian,
    distribution_for,
)
from ml_pipeline.models.rl.preprocessing.spaces import UnsupportedSpace, action_fitter

N_SAMPLES = 7


def gaussian(size, kind=DiagonalGaussian):
    distribution = kind(size)
    with torch.no_grad():
        distribution.log_std.copy_(torch.linspace(-0.5, 0.4, size))
    return distribution.double()


def state_dependent(size, num_features):
    distribution = StateDependentGaussian(size, num_features)
    with torch.no_grad():
        distribution.log_std.copy_(torch.linspace(-1.5, 0.2, num_features * size).view(num_features, size))
    return distribution.double()


def cases():
    generator = torch.Generator().manual_seed(0)

    def normal(width):
        return torch.randn(N_SAMPLES, width, generator=generator, dtype=torch.float64)

    choices = torch.randint(3, (N_SAMPLES,), generator=generator)
    answers = torch.randint(2, (N_SAMPLES, 2), generator=generator)
    numbers = 2.0 * normal(2)
    joint = Joint([Categorical(3), gaussian(2), Bernoulli(2)])
    return [
        ("categorical", Categorical(3), normal(3), choices),
        ("gaussian", gaussian(2), normal(2), numbers),
        ("bernoulli", Bernoulli(2), normal(2), answers),
        ("state-dependent", state_dependent(2, 3), normal(5), numbers),
        ("squashed", gaussian(2, SquashedGaussian), normal(2), numbers),
        ("joint", joint, normal(7), torch.cat([choices[:, None].double(), numbers, answers.double()], dim=1)),
    ]


def reference(name, distribution, parameters, actions):
    """Log-probabilities and entropies by torch."""
    if name == "joint":
        parts = [("categorical", 3, actions[:, 0]), ("gaussian", 2, actions[:, 1:3]), ("bernoulli", 2, actions[:, 3:])]
        found, start = [], 0
        for (kind, width, own), part in zip(parts, distribution.parts, strict=True):
            found.append(reference(kind, part, parameters[:, start : start + width], own))
            start += width
        log_probs, entropies = zip(*found, strict=True)
        return sum(log_probs), sum(entropies)
    if name == "categorical":
        theirs = torch.distributions.Categorical(logits=parameters)
    elif name == "bernoulli":
        theirs = torch.distributions.Independent(torch.distributions.Bernoulli(logits=parameters), 1)
    elif name == "state-dependent":
        theirs = of_stable_baselines3(distribution, parameters)
        return theirs.log_prob(actions), theirs.entropy()
    else:
        normal = torch.distributions.Normal(parameters, distribution.log_std.exp())
        theirs = torch.distributions.Independent(normal, 1)
        if name == "squashed":
            tanh = torch.distributions.TransformedDistribution(theirs, torch.distributions.TanhTransform())
            return tanh.log_prob(torch.tanh(actions)), entropy_of_tanh(normal).sum(dim=1)
    return theirs.log_prob(actions.double()), theirs.entropy()


def of_stable_baselines3(distribution, parameters):
    their = pytest.importorskip("stable_baselines3.common.distributions", reason="pip install stable-baselines3")
    num_features, size = distribution.log_std.shape
    theirs = their.StateDependentNoiseDistribution(size)
    theirs.proba_distribution_net(latent_dim=num_features)
    return theirs.proba_distribution(parameters[:, :size], distribution.log_std, parameters[:, size:])


def entropy_of_tanh(normal):
    """By the trapezoidal rule over eight deviations, for each component alone."""
    z = torch.linspace(-8, 8, 4001, dtype=torch.float64)[:, None, None]
    u = normal.mean + normal.stddev * z
    integrand = torch.exp(normal.log_prob(u)) * (normal.log_prob(u) - torch.log1p(-torch.tanh(u).square()))
    return -torch.trapezoid(integrand, u, dim=0)


@pytest.mark.parametrize(
    ("name", "distribution", "parameters", "actions"), cases(), ids=lambda x: x if isinstance(x, str) else ""
)
def test_log_probs_and_entropies_equal_those_of_torch(name, distribution, parameters, actions):
    log_probs, entropies = distribution.log_probs_and_entropies(parameters, actions)
    expected_log_probs, expected_entropies = reference(name, distribution, parameters, actions)
    # Near its ends tanh has lost what torch would need; the quadrature is good to a thousandth.
    precise = {"rtol": 1e-9, "atol": 1e-9} if name == "squashed" else {"rtol": 1e-12, "atol": 1e-12}
    torch.testing.assert_close(log_probs, expected_log_probs, **precise)
    precise = {"rtol": 0, "atol": 2e-3} if name == "squashed" else precise
    torch.testing.assert_close(entropies, expected_entropies, **precise)


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


def test_an_impossible_last_choice_is_not_taken_by_the_largest_noise():
    class AlmostOne:
        def random(self, shape, dtype):
            return np.full(shape, np.nextafter(dtype(1), dtype(0)), dtype)

    noise = Categorical(3).draw_noise(AlmostOne(), (5,))
    sums = np.random.default_rng(0).normal(size=(1000, 5)).astype(np.float32)
    logits = np.concatenate([sums, np.full((1000, 1), -1e8, np.float32)], axis=1)
    assert set(Categorical(6).sample(logits, np.repeat(noise, 200))) == {4}
    assert Categorical(3).sample(np.zeros((5, 3), np.float32), noise).tolist() == [2, 2, 2, 2, 2]


def test_an_impossible_first_choice_is_not_taken():
    logits = np.array([[-1e8, 0.0, 0.0]], np.float32)
    assert Categorical(3).sample(logits, np.zeros(1, np.float32)).tolist() == [1]


def test_yes_comes_as_often_as_its_probability():
    distribution, n_draws = Bernoulli(2), 40_000
    logits = np.tile(np.array([np.log(3.0), -200.0], np.float32), (n_draws, 1))
    actions = distribution.sample(logits, distribution.draw_noise(np.random.default_rng(0), (n_draws,)))
    np.testing.assert_allclose(actions.mean(axis=0), [0.75, 0.0], atol=4 * np.sqrt(0.25 / n_draws))


def test_the_parts_of_a_joint_draw_as_they_would_alone():
    joint = Joint([Categorical(3), Bernoulli(2)])
    generator = np.random.default_rng(0)
    parameters = generator.normal(size=(50, 5)).astype(np.float32)
    noise = joint.draw_noise(generator, (50,))
    actions = joint.sample(parameters, noise)
    assert actions.dtype == np.float32
    np.testing.assert_array_equal(actions[:, 0], Categorical(3).sample(parameters[:, :3], noise[:, 0]))
    np.testing.assert_array_equal(actions[:, 1:], Bernoulli(2).sample(parameters[:, 3:], noise[:, 1:]))
    np.testing.assert_array_equal(joint.mode(parameters)[:, 0], parameters[:, :3].argmax(axis=1))


def test_gaussian_samples_have_the_mean_and_the_deviation():
    distribution, n_draws = gaussian(2).float(), 40_000
    means = np.tile(np.array([3.0, -1.0], np.float32), (n_draws, 1))
    actions = distribution.sample(means, distribution.draw_noise(np.random.default_rng(0), (n_draws,)))
    assert actions.dtype == np.float32
    np.testing.assert_allclose(actions.mean(axis=0), [3.0, -1.0], atol=0.03)
    np.testing.assert_allclose(actions.std(axis=0), np.exp([-0.5, 0.4]), atol=0.03)


def test_matrices_give_the_actions_of_stable_baselines3():
    distribution, generator = state_dependent(2, 3), np.random.default_rng(0)
    parameters = generator.normal(size=(N_SAMPLES, 5))
    noise = distribution.draw_noise(generator, (N_SAMPLES,))
    theirs = of_stable_baselines3(distribution, torch.from_numpy(parameters))
    theirs.exploration_matrices = torch.from_numpy(noise) * distribution.log_std.detach().exp()
    actions = distribution.sample(parameters, noise)
    np.testing.assert_allclose(actions, theirs.sample().detach().numpy(), rtol=1e-12)
    np.testing.assert_array_equal(distribution.mode(parameters), theirs.mode().numpy())


def test_actions_of_random_matrices_have_the_deviation_of_the_density():
    distribution, n_draws = state_dependent(2, 3), 40_000
    parameters = np.tile([3.0, -1.0, 0.5, -2.0, 1.0], (n_draws, 1))
    actions = distribution.sample(parameters, distribution.draw_noise(np.random.default_rng(0), (n_draws,)))
    normal = of_stable_baselines3(distribution, torch.from_numpy(parameters[:1])).distribution
    np.testing.assert_allclose(actions.mean(axis=0), [3.0, -1.0], atol=0.05)
    np.testing.assert_allclose(actions.std(axis=0), normal.stddev[0].detach(), rtol=0.02)


def test_a_new_gaussian_has_deviation_one_everywhere():
    assert DiagonalGaussian(3).log_std.tolist() == [0.0, 0.0, 0.0]


def test_modes_are_the_likeliest_actions():
    assert Categorical(3).mode(np.array([[0.0, 2.0, 1.0], [5.0, 2.0, 1.0]])).tolist() == [1, 0]
    assert DiagonalGaussian(2).mode(np.array([[0.5, -2.0]])).tolist() == [[0.5, -2.0]]


SPACES = [
    spaces.Discrete(3, start=4),
    spaces.MultiDiscrete([2, 3], start=[5, 0]),
    spaces.MultiDiscrete([[2, 3], [4, 2]]),
    spaces.MultiBinary([2, 2]),
    spaces.Box(-0.1, 0.1, (2, 2)),
    spaces.Dict(
        a=spaces.Discrete(3, start=1), b=spaces.Tuple([spaces.Box(0, 1, (2,), np.float64), spaces.MultiBinary(2)])
    ),
]


@pytest.mark.parametrize("squash", [False, True])
@pytest.mark.parametrize("space", SPACES, ids=str)
def test_sampled_and_likeliest_actions_are_in_the_space(space, squash):
    distribution, fit = distribution_for(space, squash=squash), action_fitter(space, squash=squash)
    generator = np.random.default_rng(0)
    parameters = generator.normal(size=(20, distribution.num_parameters)).astype(np.float32)
    sampled = distribution.sample(parameters, distribution.draw_noise(generator, (20,)))
    for actions in (sampled, distribution.mode(parameters)):
        assert batch_space(space, 20).contains(fit(actions))


def test_parts_of_a_dict_keep_their_places():
    space = spaces.Dict(a=spaces.Discrete(3, start=1), b=spaces.Box(-1, 1, (1,)), c=spaces.MultiDiscrete([2, 2]))
    fitted = action_fitter(space)(np.array([[2.0, 0.5, 1.0, 0.0]], np.float32))
    assert {key: part.tolist() for key, part in fitted.items()} == {"a": [3], "b": [[0.5]], "c": [[1, 0]]}


def test_squashed_actions_reach_from_bound_to_bound():
    fit = action_fitter(spaces.Box(np.array([-2.0, 0.0]), np.array([2.0, 10.0]), dtype=np.float64), squash=True)
    np.testing.assert_allclose(fit(np.array([[0.0, 0.0], [50.0, -50.0]])), [[0.0, 5.0], [2.0, 0.0]], atol=1e-12)


def test_what_cannot_be_an_action_is_named():
    with pytest.raises(UnsupportedSpace, match="Actions of Text are not supported; wrap the environment"):
        distribution_for(spaces.Text(5))
    with pytest.raises(UnsupportedSpace, match="squash_actions needs bounds on both sides"):
        action_fitter(spaces.Box(-np.inf, 1, (2,)), squash=True)

"""Compiled acting against NumPy's, and what can be compiled."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from ml_pipeline.models.rl.networks.compiled_choice import can_compile
from ml_pipeline.models.rl.networks.policy import Policy

CHOICES, NUMBERS = spaces.Discrete(3), spaces.Box(-1, 1, (2,))


def moved(policy):
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in policy.network.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    policy.refresh()
    return policy


@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("action_space", [CHOICES, NUMBERS], ids=["discrete", "box"])
def test_choices_are_those_of_numpy(action_space, activation):
    plain, compiled = (
        Policy(spaces.Box(-1, 1, (5,)), action_space, hidden_sizes=(33, 20), activation=activation) for _ in range(2)
    )
    compiled.compile()
    compiled.distribution.sample = None  # is not called
    moved(plain), moved(compiled)  # refresh() tells it of other weights
    generator = np.random.default_rng(0)
    for n in (1, 8, 100):
        observations = generator.normal(size=(n, 5)).astype(np.float32)
        noise = plain.distribution.draw_noise(generator, (n,))
        expected, found = (policy.choose(observations, noise) for policy in (plain, compiled))
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_what_can_be_compiled():
    observations = spaces.Box(-1, 1, (3,))
    assert can_compile(Policy(observations, CHOICES).network)
    assert can_compile(Policy(observations, NUMBERS).network)
    assert not can_compile(Policy(observations, NUMBERS, squash_actions=True).network)
    assert not can_compile(Policy(observations, spaces.MultiDiscrete([2, 2])).network)
    assert not can_compile(Policy(observations, CHOICES, share_layers=True).network)
    assert not can_compile(Policy(observations, CHOICES, hidden_sizes=(600, 600)).network)
    assert not can_compile(Policy(observations, CHOICES).network.double())

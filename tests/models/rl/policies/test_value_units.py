"""Values mean the same in both units, before and after the units have moved."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from ml_pipeline.models.rl.networks.actor_critic import ActorCritic
from ml_pipeline.models.rl.policies.policy import ValueUnits


def critic():
    generator = torch.Generator().manual_seed(0)
    return ActorCritic(2, spaces.Discrete(2), hidden_sizes=(4,), activation="tanh", generator=generator)


@pytest.fixture
def values():
    """Units of 20 around 40, and the network that predicts in them."""
    network = critic()
    units = ValueUnits(network, normalize=True)
    units.learn(np.array([20.0, 60.0], np.float32))
    return units, network


def test_a_value_of_one_deviation_above_the_mean_is_predicted_as_one(values):
    units, _ = values
    torch.testing.assert_close(units.to_rewards(torch.tensor([0.0, 1.0])), torch.tensor([40.0, 60.0]))
    torch.testing.assert_close(units.from_rewards(torch.tensor([40.0, 60.0])), torch.tensor([0.0, 1.0]))


def test_learning_other_units_leaves_values_in_rewards_as_they_were(values):
    units, network = values
    observations = torch.linspace(-1, 1, 6).view(3, 2)
    with torch.no_grad():
        before = units.to_rewards(network.critic(observations))
        units.learn(np.array([-500.0, 900.0], np.float32))
        after = units.to_rewards(network.critic(observations))
    assert units.normalizer.deviation > 100.0
    torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-3)


def test_saved_units_are_taken_over(values):
    units, _ = values
    other = ValueUnits(critic(), normalize=True)
    other.load_state_dict(units.state_dict())
    assert (other.normalizer.mean, other.normalizer.deviation) == (units.normalizer.mean, units.normalizer.deviation)


def test_without_normalization_the_units_are_those_of_rewards():
    units, predictions = ValueUnits(critic(), normalize=False), torch.tensor([3.0])
    assert units.to_rewards(predictions) is predictions
    assert units.from_rewards(predictions) is predictions
    assert units.state_dict() is None
    units.load_state_dict(None)

"""How a new actor and critic begin."""

import torch
from gymnasium import spaces

from ml_pipeline.models.rl.networks.actor_critic import ActorCritic


def test_the_critic_may_have_sizes_of_its_own():
    generator = torch.Generator().manual_seed(0)
    network = ActorCritic(
        4, spaces.Discrete(3), hidden_sizes=(16,), value_hidden_sizes=(8, 9), activation="tanh", generator=generator
    )
    actor, critic = (
        [layer.out_features for layer in perceptron if isinstance(layer, torch.nn.Linear)]
        for perceptron in (network.actor, network.critic)
    )
    assert (actor, critic, network.is_paired) == ([16, 3], [8, 9, 1], False)
    assert {id(parameter) for parameter in network.parameter_order()} == {*map(id, network.parameters())}


def test_the_last_layers_have_gains_of_a_hundredth_and_one():
    generator = torch.Generator().manual_seed(0)
    network = ActorCritic(4, spaces.Discrete(3), hidden_sizes=(16,), activation="tanh", generator=generator)
    policy_weight, value_weight = network.actor[-1].weight, network.critic[-1].weight
    torch.testing.assert_close(policy_weight @ policy_weight.T, 1e-4 * torch.eye(3), atol=1e-8, rtol=0)
    torch.testing.assert_close(value_weight @ value_weight.T, torch.ones(1, 1), atol=1e-5, rtol=0)

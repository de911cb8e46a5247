"""Two perceptrons wherever they suffice, and what no network is for."""

import pytest
import torch
from gymnasium import spaces

from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.models.rl.networks.actor_critic import ActorCritic, GeneralActorCritic, network_for
from ml_pipeline.models.rl.preprocessing.observations import observation_layout
from ml_pipeline.models.rl.preprocessing.spaces import UnsupportedSpace

IMAGE = spaces.Box(0, 255, (3, 36, 36), "uint8")
VECTOR, CHOICES = spaces.Box(-1, 1, (3,)), spaces.Discrete(2)
MASKED = spaces.Dict(x=VECTOR, action_mask=spaces.MultiBinary(2))


def chosen(observation_space=VECTOR, action_space=CHOICES, **settings):
    config = PPOConfig(**{"hidden_sizes": (8,), **settings})
    return network_for(observation_layout(observation_space), action_space, config, torch.Generator().manual_seed(0))


@pytest.mark.parametrize("action_space", [CHOICES, VECTOR, spaces.MultiDiscrete([2, 3])])
def test_plain_numbers_are_for_two_perceptrons(action_space):
    network = chosen(action_space=action_space)
    assert isinstance(network, ActorCritic)
    assert network.actor[0].in_features == 3


def test_value_networks_get_their_own_sizes():
    assert [chosen(value_hidden_sizes=(9,)).critic[i].out_features for i in (0, -1)] == [9, 1]
    assert chosen(MASKED, value_hidden_sizes=(9,)).critic_head[-1].in_features == 9


@pytest.mark.parametrize(
    ("space", "settings"), [(MASKED, {}), (VECTOR, {"share_layers": True}), (VECTOR, {"memory": "gru"})]
)
def test_all_else_is_for_the_general_one(space, settings):
    assert isinstance(chosen(space, **settings), GeneralActorCritic)


def test_noise_by_state_has_a_deviation_for_each_hidden_unit_and_number():
    network = chosen(action_space=spaces.Box(-1, 1, (2, 1)), use_sde=True, log_std_init=-2.0, value_hidden_sizes=(9,))
    assert network.distribution.log_std.tolist() == [[-2.0, -2.0]] * 8
    parameters, values = network(torch.ones(5, 3))
    assert (parameters.shape, values.shape) == ((5, 10), (5,))
    assert torch.equal(parameters, network.parameters_of(torch.ones(5, 3)))


def test_settings_that_are_about_nothing_are_refused():
    with pytest.raises(UnsupportedSpace, match=r"squash_actions needs a Box of actions, .* is Discrete\(2\)"):
        chosen(squash_actions=True)
    with pytest.raises(UnsupportedSpace, match=r"log_std_init needs a Box of actions, .* is Discrete\(2\)"):
        chosen(log_std_init=-1.0)
    for space in (CHOICES, spaces.Tuple([VECTOR, CHOICES])):
        with pytest.raises(UnsupportedSpace, match="use_sde needs a Box of actions, but the action space is"):
            chosen(action_space=space, use_sde=True)
    with pytest.raises(UnsupportedSpace, match="bfloat16 needs images, but the observations have none"):
        chosen(bfloat16=True)
    with pytest.raises(UnsupportedSpace, match="share_encoder needs images, but the observations have none"):
        chosen(share_encoder=False)


@pytest.mark.parametrize(
    ("space", "settings"), [(VECTOR, {}), (VECTOR, {"share_layers": True}), (VECTOR, {"memory": "lstm"}), (IMAGE, {})]
)
def test_without_ortho_init_every_weight_and_bias_is_random(space, settings):
    network = chosen(space, VECTOR, ortho_init=False, log_std_init=-2.0, **settings)
    for name, weight in network.named_parameters():
        if name.startswith("distribution"):
            assert weight.tolist() == [-2.0] * 3
        elif weight.numel() > 1:
            assert weight.std() > 0.02, name
    again, usual = chosen(space, VECTOR, ortho_init=False, **settings), chosen(space, VECTOR, **settings)
    assert torch.equal(again.critic_output.weight, network.critic_output.weight)
    assert not torch.equal(usual.critic_output.weight, network.critic_output.weight)


def test_only_images_need_no_hidden_layers():
    images = chosen(IMAGE, hidden_sizes=(), value_hidden_sizes=(4,))
    parameters, values = images(torch.zeros(2, 3 * 36 * 36, dtype=torch.uint8))
    assert (parameters.shape, values.shape) == ((2, 2), (2,))
    for name in ("hidden_sizes", "value_hidden_sizes"):
        with pytest.raises(
            UnsupportedSpace, match=f"^{name} must name at least one layer, such as 64 64, but got none"
        ):
            chosen(**{name: ()})

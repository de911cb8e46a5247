"""What goes into which head, and how far a gradient reaches."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.models.rl.networks.actor_critic import GeneralActorCritic, NetworkConfig
from ml_pipeline.models.rl.policies.policy import Policy
from ml_pipeline.models.rl.preprocessing.observations import observation_layout
from ml_pipeline.models.rl.preprocessing.spaces import UnsupportedSpace
from ml_pipeline.models.rl.transitions import Sequences

VECTOR = spaces.Box(-1, 1, (2,))
N_STEPS, N_SEQUENCES = 6, 3


def network_for(space=VECTOR, action_space=None, **settings):
    generator = torch.Generator().manual_seed(0)
    config = NetworkConfig(hidden_sizes=(8,), activation="tanh", **settings)
    layout = observation_layout(space)
    actions = action_space or spaces.Discrete(3)
    network = GeneralActorCritic(layout, actions, config, squash_actions=False, generator=generator)
    with torch.no_grad():  # the first policy is nearly the same everywhere; let it be one that has learned
        network.actor_head[-1].weight *= 100.0
    return network


def random_sequences(network, *, starting_in=None):
    generator = torch.Generator().manual_seed(1)
    observations = torch.randn(N_STEPS * N_SEQUENCES, 2, generator=generator, requires_grad=True)
    starts = torch.zeros(N_STEPS, N_SEQUENCES, dtype=torch.bool)
    if starting_in is not None:
        starts[starting_in] = True
    state = torch.randn(N_SEQUENCES, network.state_size, generator=generator, requires_grad=True)
    return observations, Sequences(starts, state)


@pytest.mark.parametrize("share_layers", [False, True])
@pytest.mark.parametrize("memory", ["gru", "lstm"])
def test_no_gradient_reaches_back_over_the_start_of_an_episode(memory, share_layers):
    network = network_for(memory=memory, memory_size=4, share_layers=share_layers)
    for starting_in, reaches in ((3, False), (None, True)):
        observations, sequences = random_sequences(network, starting_in=starting_in)
        parameters, values, _ = network.over_sequences(observations, sequences)
        after = slice(3 * N_SEQUENCES, None)
        (parameters[after].sum() + values[after].sum()).backward()
        before = observations.grad[: 3 * N_SEQUENCES]
        assert observations.grad[after].abs().min() > 0
        assert (before.abs().min() > 0) == reaches
        assert before.any() == reaches
        assert sequences.state.grad.any() == reaches


@pytest.mark.parametrize("memory", ["gru", "lstm"])
def test_a_sequence_in_pieces_is_the_sequence_as_a_whole(memory):
    network = network_for(memory=memory, memory_size=4)
    observations, sequences = random_sequences(network, starting_in=2)
    *expected, states = network.over_sequences(observations, sequences)
    found, state = [], sequences.state
    for t in range(N_STEPS):
        rows = slice(t * N_SEQUENCES, (t + 1) * N_SEQUENCES)
        *outputs, after = network.over_sequences(observations[rows], Sequences(sequences.starts[t : t + 1], state))
        found.append(outputs)
        state = after[0]
        torch.testing.assert_close(state, states[t])
    for whole, pieces in zip(expected, zip(*found, strict=True), strict=True):
        torch.testing.assert_close(torch.cat(pieces), whole)


def test_shared_layers_learn_from_both_heads_and_separate_ones_from_their_own():
    for share_layers in (False, True):
        network = network_for(share_layers=share_layers)
        _, values = network(torch.ones(1, 2))
        values.sum().backward()
        reached = any(weight.grad is not None and weight.grad.any() for weight in network.towers[0].parameters())
        assert reached == share_layers
        assert len(network.towers) == (1 if share_layers else 2)


@pytest.mark.parametrize("memory", [None, "gru"])
def test_the_critic_may_have_sizes_of_its_own(memory):
    network = network_for(value_hidden_sizes=(5, 7), memory=memory, memory_size=4)
    width = 2 if memory is None else 4
    shapes = [[layer.weight.shape for layer in tower.hidden if hasattr(layer, "weight")] for tower in network.towers]
    assert shapes == [[(8, width)], [(5, width), (7, 5)]]
    assert (network.actor_head[-1].in_features, network.critic_head[-1].in_features) == (8, 7)


def test_forbidden_choices_have_no_probability_no_entropy_and_no_gradient():
    space = spaces.Dict(action_mask=spaces.MultiBinary(3), x=VECTOR)
    network = network_for(space)
    observations = torch.tensor([[1.0, 0.0, 1.0, 0.3, -0.2], [0.0, 1.0, 0.0, 0.3, -0.2]])
    parameters, _ = network(observations)
    free, _ = network(torch.tensor([[1.0, 1.0, 1.0, 0.3, -0.2]]))
    log_probs, entropies = network.distribution.log_probs_and_entropies(parameters, torch.tensor([2, 1]))
    two = torch.distributions.Categorical(logits=free[:, [0, 2]])
    torch.testing.assert_close(log_probs, torch.stack([two.log_prob(torch.tensor(1))[0], torch.tensor(0.0)]))
    torch.testing.assert_close(entropies, torch.stack([two.entropy()[0], torch.tensor(0.0)]))
    log_probs.sum().backward()
    assert not network.actor_head[-1].bias.grad[1].any()


def test_a_mask_is_no_feature_and_is_not_normalized():
    space = spaces.Dict(action_mask=spaces.MultiBinary(3), x=VECTOR)
    policy = Policy(space, spaces.Discrete(3), PPOConfig(hidden_sizes=(8,)))
    rows = np.array([[1, 0, 1, 0.5, -1.0], [1, 1, 0, -0.5, 1.0]], np.float32)
    policy.observations.normalizer.update(rows)
    np.testing.assert_array_equal(policy.observations.normalize(rows)[:, :3], rows[:, :3])
    np.testing.assert_allclose(policy.observations.normalize(rows)[:, 3:], [[1, -1], [-1, 1]], atol=1e-5)
    _, values = policy.network(torch.tensor([[1.0, 0, 1, 0.5, -1], [0, 1, 0, 0.5, -1]]))
    assert values[0] == values[1]


def test_a_policy_keeps_to_its_mask_and_says_where_that_forbids_everything():
    space = spaces.Dict(action_mask=spaces.MultiBinary(5), x=VECTOR)
    policy = Policy(space, spaces.MultiDiscrete([2, 3]), PPOConfig(hidden_sizes=(8,)))
    generator = np.random.default_rng(0)
    seen = set()
    for _ in range(50):
        mask = np.array([1, 0, 0, 1, 1], np.int8)
        seen.add(tuple(policy.act({"x": VECTOR.sample(), "action_mask": mask}, generator=generator).tolist()))
    assert seen == {(0, 1), (0, 2)}
    with pytest.raises(UserError, match="forbids every choice of part 0"):
        policy.act({"x": VECTOR.sample(), "action_mask": np.array([0, 0, 1, 1, 1], np.int8)})


@pytest.mark.parametrize(
    ("action_space", "sentence"),
    [
        (spaces.Box(-1, 1, (3,)), "Only Discrete and MultiDiscrete actions can be masked"),
        (spaces.Discrete(4), r"one entry per choice, 4 for Discrete\(4\), but has 3"),
    ],
)
def test_a_mask_that_does_not_fit_the_actions_is_named(action_space, sentence):
    with pytest.raises(UnsupportedSpace, match=sentence):
        network_for(spaces.Dict(action_mask=spaces.MultiBinary(3), x=VECTOR), action_space)


def plainly_encoded(encoder, images):
    """The features of float (B, C, height, width), from 0 to 1."""
    for layer in encoder.convolutions:
        images = torch.relu(layer(images))
    return torch.relu(encoder.last(images.permute(0, 2, 3, 1).flatten(1)))


@pytest.mark.parametrize("channels_last", [False, True])
def test_an_image_is_seen_the_same_wherever_its_channels_stand(channels_last):
    shape = (40, 36, 3) if channels_last else (3, 40, 36)
    network = network_for(spaces.Box(0, 255, shape, np.uint8), share_layers=True)
    points = torch.randint(256, (2, 3, 40, 36), generator=torch.Generator().manual_seed(0)).float()
    given = (points.permute(0, 2, 3, 1) if channels_last else points).reshape(2, -1)
    features = plainly_encoded(network.inputs[0].encoders[0], points / 255.0)
    expected = network.critic_head(network.towers[0].hidden(features)).squeeze(1)
    torch.testing.assert_close(network(given)[1], expected)
    torch.testing.assert_close(network(given.byte())[1], expected)


IMAGE = spaces.Box(0, 255, (36, 40, 2), np.uint8)


@pytest.mark.parametrize("bfloat16", [False, True])
def test_the_gradient_of_an_encoder_is_that_of_its_plain_formula(bfloat16):
    network = network_for(IMAGE, bfloat16=bfloat16)
    encoder = network.inputs[0].encoders[0]
    points = torch.randint(256, (5, 36, 40, 2), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    errors = torch.randn(5, 512, generator=torch.Generator().manual_seed(1))
    found = torch.autograd.grad((encoder(points.flatten(1)) * errors).sum(), list(encoder.parameters()))
    plain = plainly_encoded(encoder, points.permute(0, 3, 1, 2).float() / 255.0)
    expected = torch.autograd.grad((plain * errors).sum(), list(encoder.parameters()))
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours - theirs).norm() <= (0.1 if bfloat16 else 1e-5) * theirs.norm()
        assert bfloat16 == bool((ours - theirs).norm() > 1e-4 * theirs.norm())


@pytest.mark.parametrize("memory", [None, "gru"])
@pytest.mark.parametrize("share_encoder", [False, True])
def test_both_networks_learn_an_encoder_they_share_and_each_its_own_otherwise(share_encoder, memory):
    network = network_for(IMAGE, share_encoder=share_encoder, memory=memory, memory_size=4)
    assert (len(network.inputs), len(network.towers)) == (1 if share_encoder else 2, 2)
    points = torch.randint(256, (3, 36 * 40 * 2), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    if memory is None:
        parameters, values = network(points)
    else:
        starts = torch.zeros(1, 3, dtype=torch.bool)
        parameters, values, _ = network.over_sequences(points, Sequences(starts, torch.zeros(3, network.state_size)))
    for outputs, reached in ((parameters, [True, share_encoder]), (values, [share_encoder, True])):
        firsts = [next(inputs.parameters()) for inputs in (network.inputs[0], network.inputs[-1])]
        total = outputs.square().sum()
        gradients = torch.autograd.grad(total, firsts, retain_graph=True, materialize_grads=True)
        assert [bool(gradient.any()) for gradient in gradients] == reached


def test_a_recurrent_policy_remembers_until_an_episode_begins():
    policy = Policy(VECTOR, spaces.Box(-9, 9, (1,)), PPOConfig(hidden_sizes=(8,), memory="gru"))
    with torch.no_grad():
        policy.network.actor_head[-1].weight *= 100.0
    observation = np.array([0.5, -0.5], np.float32)
    first, second = policy.act(observation), policy.act(observation)
    assert first != second
    policy.act.begin_episode()
    assert policy.act(observation) == first


@pytest.mark.parametrize("share_layers", [False, True])
def test_gains_are_those_of_two_perceptrons(share_layers):
    config = NetworkConfig(hidden_sizes=(8, 8), activation="tanh", share_layers=share_layers)
    generator = torch.Generator().manual_seed(0)
    network = GeneralActorCritic(
        observation_layout(VECTOR), spaces.Discrete(3), config, squash_actions=False, generator=generator
    )
    for tower in network.towers:
        first, second = tower.hidden[0].weight, tower.hidden[2].weight
        torch.testing.assert_close(first.T @ first, 2.0 * torch.eye(2), atol=1e-5, rtol=0)
        torch.testing.assert_close(second @ second.T, 2.0 * torch.eye(8), atol=1e-5, rtol=0)
    policy_weight, value_weight = network.actor_head[-1].weight, network.critic_head[-1].weight
    torch.testing.assert_close(policy_weight @ policy_weight.T, 1e-4 * torch.eye(3), atol=1e-8, rtol=0)
    torch.testing.assert_close(value_weight @ value_weight.T, torch.ones(1, 1), atol=1e-5, rtol=0)

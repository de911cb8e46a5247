"""A network of the user's own: what it sees, its weights, and the sentences about networks that cannot be used."""

import random

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.config.settings import by_name
from ml_pipeline.models.rl.algorithms.ppo_trainer import PPOTrainer
from ml_pipeline.models.rl.core.vec_env import SerialEnv
from ml_pipeline.models.rl.networks.user_network import UserNetwork
from ml_pipeline.models.rl.policies import threads_and_device
from ml_pipeline.models.rl.policies.policy import Policy
from ml_pipeline.models.rl.preprocessing.observations import observation_layout
from ml_pipeline.models.rl.transitions import Sequences, TrainingFailed

VECTOR, CHOICES = spaces.Box(-9, 9, (3,)), spaces.Discrete(2)
FRAME = spaces.Box(0, 255, (40, 38, 3), np.uint8)
TILES = spaces.Box(0, 255, (5, 4, 2), np.uint8)  # our own convolutions could not read it
MIXED = spaces.Dict(
    matrix=spaces.Box(-1, 1, (2, 3)),
    choice=spaces.Discrete(3, start=5),
    action_mask=spaces.MultiBinary(2),
    tiles=TILES,
    parts=spaces.Tuple([spaces.MultiBinary((2, 2)), spaces.MultiDiscrete([2, 3])]),
)
seen = []


class Flat(nn.Module):
    """Every tensor that it sees, flattened and concatenated."""

    def __init__(self, space):
        super().__init__()
        self.space = space

    def forward(self, observations):
        seen[:] = [observations]
        return torch.cat([part.flatten(1) for part in tensors_in(observations)], dim=1)


def tensors_in(observations):
    if isinstance(observations, torch.Tensor):
        return [observations]
    parts = observations.values() if isinstance(observations, dict) else observations
    return [tensor for part in parts for tensor in tensors_in(part)]


def linear(space, width=4):
    return nn.Linear(space.shape[0], width)


def policy_of(network, space=VECTOR, *, seed=0, **settings):
    return Policy(space, CHOICES, PPOConfig(network=network, **settings), seed=seed)


def act(policy, *observations):
    encoded = np.concatenate([policy.observations.process_one(each) for each in observations])
    return policy.parameters(encoded)


@pytest.mark.parametrize("space", [FRAME, TILES], ids=["large", "small"])
def test_images_come_as_channels_height_width_from_0_to_1(space):
    policy = policy_of(Flat, space)
    image = space.sample()
    act(policy, image)
    np.testing.assert_array_equal(seen[0].numpy(), image.transpose(2, 0, 1)[None].astype(np.float32) / 255)
    assert policy.observations.dtype == np.uint8
    shown = policy.user_network.module.space
    assert (shown.shape, shown.dtype, shown.high.min()) == (image.transpose(2, 0, 1).shape, np.uint8, 255)


@pytest.mark.parametrize("normalize_obs", [False, True])
def test_a_dict_comes_as_a_dict_of_tensors_in_the_shapes_of_its_parts(normalize_obs):
    policy = policy_of(Flat, MIXED, normalize_obs=normalize_obs)
    observation = {
        "matrix": np.arange(6, dtype=np.float32).reshape(2, 3) / 6,
        "choice": np.int64(6),
        "action_mask": np.ones(2, np.int8),
        "tiles": TILES.sample(),
        "parts": (np.eye(2, dtype=np.int8), np.array([1, 2])),
    }
    if normalize_obs:
        normalizer = policy.observations.normalizer
        normalizer.update(np.concatenate([policy.observations.encode_one(MIXED.sample()) for _ in range(9)]))
    act(policy, observation)
    found = seen[0]
    assert list(found) == list(policy.user_network.module.space) == ["matrix", "choice", "tiles", "parts"]
    assert [tuple(each.shape) for each in tensors_in(found)] == [(1, 2, 3), (1, 3), (1, 2, 5, 4), (1, 2, 2), (1, 5)]
    np.testing.assert_allclose(found["tiles"][0], observation["tiles"].transpose(2, 0, 1) / 255, rtol=1e-6)
    is_as_given = np.allclose(found["matrix"][0], observation["matrix"])
    assert is_as_given != normalize_obs
    if not normalize_obs:
        assert found["choice"].tolist() == [[0, 1, 0]]
        assert [each.tolist() for each in found["parts"]] == [[[[1, 0], [0, 1]]], [[0, 1, 0, 0, 1]]]


def test_the_heads_stand_on_the_features_without_hidden_layers():
    policy = policy_of(linear, hidden_sizes=(), value_hidden_sizes=(7,))
    network, user = policy.network, policy.user_network
    rows = torch.randn(6, 3)
    features = user.module(rows)
    parameters, values = network(rows)
    torch.testing.assert_close(parameters, network.actor_head(features))
    assert [layer.in_features for layer in (network.actor_head[-1], network.critic_head[-1])] == [4, 7]
    torch.testing.assert_close(values, network.critic_head(network.towers[1](features)).squeeze(1))


def weights_in(policy):
    return [name for name, _ in policy.network.named_parameters() if "module" in name]


def test_both_networks_share_the_module_or_have_one_each():
    assert len(weights_in(policy_of(linear))) == 2
    policy = policy_of(linear, share_encoder=False)
    assert len(weights_in(policy)) == 4
    assert not torch.equal(policy.network.inputs[0].module.weight, policy.network.inputs[1].module.weight)


class Two(nn.Module):
    """Features for the policy and for the value, of different widths."""

    def __init__(self, space):
        super().__init__()
        self.policy, self.value = nn.Linear(space.shape[0], 4), nn.Linear(space.shape[0], 6)

    def forward(self, observations):
        return self.policy(observations), self.value(observations)


def test_two_tensors_are_for_the_policy_and_for_the_value():
    policy = policy_of(Two, hidden_sizes=())
    rows = torch.randn(5, 3)
    for_policy, for_value = policy.user_network.module(rows)
    parameters, values = policy.network(rows)
    torch.testing.assert_close(parameters, policy.network.actor_head(for_policy))
    torch.testing.assert_close(values, policy.network.critic_head(for_value).squeeze(1))
    for settings in ({"share_encoder": False}, {"share_layers": True}):
        with pytest.raises(UserError, match=r"Two returns features for the policy and for the value, .*leave share_"):
            policy_of(Two, **settings)


class Drawn(nn.Module):
    """Weights from all three global generators."""

    def __init__(self, space):
        super().__init__()
        self.layer = nn.Linear(space.shape[0], 2)
        self.more = nn.Parameter(torch.tensor([random.random(), np.random.rand()], dtype=torch.float32))

    def forward(self, observations):
        return self.layer(observations) + self.more


def test_the_seed_decides_the_weights_and_the_global_generators_stay_as_they_are():
    def state():
        return torch.get_rng_state().numpy().tobytes(), str(np.random.get_state()), random.getstate()

    def made(seed):
        generator = torch.Generator().manual_seed(seed)
        return UserNetwork(Drawn, {}, observation_layout(VECTOR), normalized=True, generator=generator).state_dict()

    before = state()
    found = [made(seed) for seed in (1, 1, 2)]
    assert state() == before
    for name, weight in found[0].items():
        assert torch.equal(weight, found[1][name])
        assert not torch.equal(weight, found[2][name])


def test_a_module_keeps_its_own_initial_weights():
    def constant(space):
        layer = nn.Linear(space.shape[0], 2)
        nn.init.constant_(layer.weight, 0.25)
        return layer

    for settings in ({}, {"ortho_init": False}):
        assert (policy_of(constant, **settings).user_network.module.weight == 0.25).all()


def test_frozen_weights_stay_and_the_others_learn():
    def half_frozen(space):
        layers = nn.Sequential(nn.Linear(space.shape[0], 8), nn.Linear(8, 8))
        layers[0].requires_grad_(False)
        return layers

    for chunks in (1, 3):
        trainer = trainer_of(PPOConfig(network=half_frozen, gradient_chunks=chunks, n_steps=16, minibatch_size=16))
        frozen, learns = (layer.weight.detach().clone() for layer in trainer.policy.user_network.module)
        trainer.train_episode_vectorized()
        module = trainer.policy.user_network.module
        assert torch.equal(module[0].weight, frozen)
        assert not torch.equal(module[1].weight, learns)


def trainer_of(config, **arguments):
    envs = SerialEnv([lambda: gymnasium.make("CartPole-v1")] * 3)
    return PPOTrainer(envs, config, total_timesteps=200, **arguments)


class KeepsWhatItComputes(nn.Module):
    """Fit for one thread at a time."""

    def __init__(self, space):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(space.shape[0], 64), nn.Tanh(), nn.Linear(64, 64))

    def forward(self, observations):
        self.hidden = observations
        for layer in self.layers:
            self.hidden = layer(self.hidden)
        return self.hidden


@pytest.mark.parametrize("network", [KeepsWhatItComputes, Two])
def test_the_number_of_threads_changes_no_bit(network, monkeypatch):
    found = []
    for n_threads in (1, 2, 4):
        monkeypatch.setitem(vars(threads_and_device._process), "n_threads", n_threads)
        torch.set_num_threads(n_threads)
        try:
            config = PPOConfig(network=network, n_steps=200, minibatch_size=300, gradient_chunks=4, n_epochs=2)
            trainer = trainer_of(config, seed=1)
            trainer.train_episode_vectorized()
        finally:
            torch.set_num_threads(1)
        found.append(torch.cat([each.detach().flatten() for each in trainer.policy.network.parameters()]))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_an_action_does_not_depend_on_who_else_acts():
    policy = policy_of(linear)
    rows = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    all_rows = policy.parameters(rows)
    assert not np.array_equal(all_rows[0], all_rows[1])
    np.testing.assert_allclose(policy.parameters(rows[:1]), all_rows[:1], rtol=1e-5, atol=1e-7)


class Broken(nn.Module):
    """Fails in the way that it is told."""

    def __init__(self, space, how="nothing"):
        super().__init__()
        self.how, self.layer, self.remembered = how, nn.Linear(space.shape[0], 4), 0.0
        if how == "unused":
            self.unused = nn.Linear(2, 2)
        if how == "float64":
            self.layer.bias.data = self.layer.bias.data.double()
        if how == "meta":
            self.extra = nn.Parameter(torch.empty(2, device="meta"))

    def forward(self, x):
        self.remembered += 1.0
        return FAILURES[self.how](self, x, self.layer(x.mul_(2) if self.how == "in place" else x))


FAILURES = {
    **dict.fromkeys(("unused", "float64", "meta", "in place"), lambda self, x, y: y),
    "scalar": lambda self, x, y: y.mean(),
    "transposed": lambda self, x, y: y.T,
    "one row": lambda self, x, y: y.mean(0, keepdim=True),
    "3d": lambda self, x, y: y[:, None],
    "no width": lambda self, x, y: y[:, :0],
    "whole numbers": lambda self, x, y: y.round().long(),
    "text": lambda self, x, y: "features",
    "three": lambda self, x, y: (y, y, y),
    "nan": lambda self, x, y: torch.log(-y.abs() - 1),
    "state": lambda self, x, y: y + self.remembered,
    "noise": lambda self, x, y: y + torch.randn_like(y),
    "batch": lambda self, x, y: y - y.mean(0),
    "detached": lambda self, x, y: y.detach(),
    "raises": lambda self, x, y: y @ y,
}


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        (
            "scalar",
            r"must return one vector per observation, \(3, width\) for a batch of 3, but returned \(\); flatten",
        ),
        ("transposed", r"but returned \(4, 3\); flatten"),
        ("one row", r"but returned \(1, 4\); flatten"),
        ("3d", r"but returned \(3, 1, 4\); flatten all dimensions but the first\.$"),
        ("no width", r"but returned \(3, 0\)"),
        ("whole numbers", r"must return float32, but returned torch\.int64; add \.float\(\)\.$"),
        ("text", r"must return a tensor of features, or two: .* but returned a str\.$"),
        ("three", r"must return a tensor of features, or two: .* but returned a Tensor, a Tensor, a Tensor\.$"),
        ("nan", r"returns NaN or infinity for observations from the space; look for a division by zero"),
        (
            "state",
            r"gives other features for the same observations .*keeps state between calls.*use memory gru or lstm",
        ),
        ("noise", r"gives other features for the same observations .*draws random numbers"),
        ("batch", r"gives other features for an observation alone than in a batch; .*LayerNorm"),
        ("detached", r"returns features without gradients, so it would not learn; remove detach\(\)"),
        ("in place", r"changes its input in place; write x = x / 2"),
        ("raises", r"failed in line \d+ of test_user_network\.py: RuntimeError"),
        ("float64", r"has layer\.bias of torch\.float64, but weights must be float32; add \.float\(\)\.$"),
        ("meta", r"has extra on meta; make it on the CPU"),
    ],
)
def test_a_network_that_cannot_be_used_is_named_with_the_remedy(how, sentence):
    with pytest.raises(UserError, match=sentence) as told:
        policy_of(Broken, network_kwargs={"how": how})
    assert str(told.value).startswith(f"The network {by_name(Broken)} ")
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("network", "kwargs", "sentence"),
    [
        (
            linear,
            {"widht": 3},
            r"linear cannot be called as network\(observation_space, \*\*\{\"widht\": 3\}\): got an ",
        ),
        (lambda space: 3, {}, r"function <lambda> must return a torch\.nn\.Module, but returned a int"),
        (lambda space: space.missing, {}, r"function <lambda> failed in line \d+ of test_user_network\.py: Attribute"),
        ("no_such_module:small", {}, r"There is no module \"no_such_module\""),
        ("random:smal", {}, r"random:smal cannot be imported: random has no \"smal\""),
        ("string:digits", {}, r"The network string:digits must be a function that takes the space of observations"),
    ],
)
def test_a_function_that_cannot_be_used_is_named(network, kwargs, sentence):
    with pytest.raises(UserError, match=sentence):
        policy_of(network, network_kwargs=kwargs)


def test_weights_without_gradients_and_statistics_of_the_batch_are_warned_of():
    with pytest.warns(UserWarning, match=r"Broken has weights without gradients, .*: unused\.weight, unused\.bias;"):
        policy_of(Broken, network_kwargs={"how": "unused"})

    def normalizing(space):
        return nn.Sequential(nn.Linear(space.shape[0], 4), nn.BatchNorm1d(4), nn.Dropout(0.5))

    with pytest.warns(UserWarning, match=r"has BatchNorm1d and Dropout; such layers work here as in evalu.*LayerNorm"):
        policy = policy_of(normalizing)
    rows = torch.randn(4, 3)
    torch.testing.assert_close(policy.network(rows), policy.network(rows), rtol=0, atol=0)


def test_nan_in_training_names_the_network():
    class Root(nn.Module):
        def __init__(self, space):
            super().__init__()
            self.layer = nn.Linear(space.shape[0], 4)

        def forward(self, x):
            return self.layer(x) if len(x) <= 3 else self.layer(x) * float("nan")

    trainer = trainer_of(PPOConfig(network=Root, n_steps=16, minibatch_size=16))
    with pytest.raises(TrainingFailed, match=r"or the network function Root cannot take these observations"):
        trainer.train_episode_vectorized()


def test_a_policy_fits_only_weights_of_the_same_function():
    state = policy_of(linear).state_dict()
    assert state["fits"]["network"] == by_name(linear)
    policy_of(linear, seed=5).load_state_dict(state)
    with pytest.raises(UserError, match=r"has network .*:linear, but here it is .*:Two"):
        policy_of(Two).load_state_dict(state)
    with pytest.raises(UserError, match=r"has network .*:linear, but here it is none"):
        Policy(VECTOR, CHOICES, PPOConfig()).load_state_dict(state)
    with pytest.raises(UserError, match=r"has network none, but here it is .*:linear"):
        policy_of(linear).load_state_dict(Policy(VECTOR, CHOICES, PPOConfig()).state_dict())
    with pytest.raises(UserError, match=r'has network_kwargs {}, but here it is {"width": 5}'):
        policy_of(linear, network_kwargs={"width": 5}).load_state_dict(state)
    moved = {**state, "fits": {**state["fits"], "network": "elsewhere:linear"}}
    policy_of(linear).load_state_dict(moved)
    changed = policy_of(linear)
    state["network"]["inputs.0.module.weight"] = torch.zeros(4, 9)
    before = changed.state_dict()["network"]
    with pytest.raises(UserError, match=r":linear has changed since the policy was saved: inputs\.0\.module\.weight"):
        changed.load_state_dict(state)
    assert all(torch.equal(weight, before[name]) for name, weight in changed.state_dict()["network"].items())


class Decaying(nn.Module):
    """Remembers a decaying sum of its features."""

    state_size = 4

    def __init__(self, space, how="step by step"):
        super().__init__()
        self.how, self.layer, self.decay = how, nn.Linear(space.shape[0], 4), nn.Parameter(torch.tensor(0.5))
        if how != "step by step":
            self.sequence = self.at_once
        if how == "no size":
            self.state_size = None

    def forward(self, observations):
        return self.layer(observations)

    def step(self, features, state):
        state = state * self.decay + features
        if self.how == "short state":
            return features, state[:, :2]
        return state.tanh(), state

    def at_once(self, features, state, starts):
        states = []
        for step_features, begins in zip(features, starts, strict=True):
            if self.how != "forgets no episode":
                state = state * ~begins[:, None]
            state = state * self.decay + step_features
            states.append(state)
        return torch.stack(states).tanh(), torch.stack(states)


def test_a_module_that_steps_remembers_and_forgets_where_an_episode_starts():
    policy = policy_of(Decaying, hidden_sizes=())
    starts = torch.zeros(5, 2, dtype=torch.bool)
    starts[3, 1] = True
    rows = torch.randn(10, 3)
    parameters, values, states = policy.network.over_sequences(rows, Sequences(starts, torch.zeros(2, 4)))
    features, expected = policy.user_network.module(rows).unflatten(0, (5, 2)), torch.zeros(2, 4)
    for t in range(5):
        expected = expected * ~starts[t, :, None] * 0.5 + features[t]
        torch.testing.assert_close(states[t], expected)
    torch.testing.assert_close(parameters[-2:], policy.network.actor_head(expected.tanh()))
    torch.testing.assert_close(values[-2:], policy.network.critic_head(expected.tanh()).squeeze(1))
    at_once = policy_of(Decaying, hidden_sizes=(), network_kwargs={"how": "at once"})
    found = at_once.network.over_sequences(rows, Sequences(starts, torch.zeros(2, 4)))
    torch.testing.assert_close(found, (parameters, values, states))


@pytest.mark.parametrize(
    ("how", "settings", "sentence"),
    [
        ("no size", {}, r"has step\(\), so .* state_size must be .* but that is None\.$"),
        ("short state", {}, r"must return a state of \(3, 4\) from step\(\), but got \(3, 2\)"),
        ("forgets no episode", {}, r"must return from sequence\(\) what step\(\) returns step by step"),
        ("at once", {"memory": "gru"}, r"remembers by itself, but memory is gru; use one\.$"),
    ],
)
def test_a_memory_that_cannot_be_used_is_named(how, settings, sentence):
    with pytest.raises(UserError, match=sentence):
        policy_of(Decaying, network_kwargs={"how": how}, **settings)


def test_sequences_are_for_networks_that_remember():
    with pytest.raises(UserError, match=r"sequence_length is 8, but the network .*:linear has no step\(\) that rememb"):
        policy_of(linear, sequence_length=8)


def test_the_run_says_that_the_network_is_not_compiled():
    (notice,) = trainer_of(PPOConfig(network=linear, n_steps=8, minibatch_size=8)).notices
    assert notice.startswith(f"The network {by_name(linear)} acts and learns in torch; it is not compiled. ")
    assert trainer_of(PPOConfig(n_steps=8, minibatch_size=8)).notices == ()

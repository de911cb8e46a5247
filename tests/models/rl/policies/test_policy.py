"""Acting, and loading what was saved for something else."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.models.rl.networks.actor_critic import ActorCritic
from ml_pipeline.models.rl.policies.policy import Policy, ValueUnits, check_space, check_traits, traits_of
from ml_pipeline.models.rl.preprocessing.spaces import space_from_data

OBSERVATIONS = spaces.Box(-1, 1, (3,))
ACTIONS = spaces.Discrete(3, start=4)


def make(observation_space=OBSERVATIONS, action_space=ACTIONS, *, seed=0, **settings):
    return Policy(observation_space, action_space, PPOConfig(**{"hidden_sizes": (8,), **settings}), seed=seed)


def test_acting_gives_actions_of_the_space():
    for space in (spaces.Discrete(3, start=4), spaces.Box(-0.1, 0.1, (2, 2))):
        policy = make(action_space=space)
        for generator in (None, np.random.default_rng(0)):
            action = policy.act(OBSERVATIONS.sample(), generator=generator)
            assert space.contains(action)


def test_acting_alone_is_acting_in_a_batch():
    space = spaces.Dict(a=spaces.Discrete(3), b=OBSERVATIONS)
    space.seed(0)
    policy = make(observation_space=space, action_space=spaces.Box(-9, 9, (2,)))
    with torch.no_grad():
        for parameter in policy.network.parameters():
            parameter.normal_(generator=torch.Generator().manual_seed(0))
    policy.observations.normalizer.update(np.random.default_rng(0).normal(size=(9, 6)).astype(np.float32))
    sample = space.sample()
    encoded = np.concatenate([np.eye(3)[sample["a"]], sample["b"]]).astype(np.float32)[None]
    with torch.no_grad():
        expected, _ = policy.network(torch.from_numpy(policy.observations.normalizer(encoded)))
    np.testing.assert_allclose(policy.act(sample), expected[0].clamp(-9, 9).numpy(), rtol=1e-5)


def test_new_weights_do_not_depend_on_the_number_of_threads():
    before, found = torch.get_num_threads(), []
    try:
        for n_threads in (1, 2, 4):
            torch.set_num_threads(n_threads)
            found.append(torch.cat([weights.flatten() for weights in make(hidden_sizes=(64, 64)).network.parameters()]))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


PARTS = spaces.Dict(
    a=spaces.Discrete(3, start=2),
    b=spaces.Box(-1, 1, (2, 2), np.float64),
    c=spaces.MultiDiscrete([[2, 3], [4, 5]], start=[[1, 0], [0, 7]]),
    d=spaces.Tuple((spaces.MultiBinary((2, 2)), spaces.Box(0, 9, (2,), np.int64), spaces.Box(-1, 1, ()))),
)
MASKED = spaces.Dict(x=OBSERVATIONS, action_mask=spaces.Box(1, 1, (3,), np.int8))
IMAGE = spaces.Box(0, 255, (36, 36, 1), np.uint8)


@pytest.mark.parametrize(
    ("observation_space", "action_space", "settings"),
    [
        *((observations, ACTIONS, {}) for observations in (OBSERVATIONS, PARTS, MASKED, IMAGE)),
        *((OBSERVATIONS, actions, {}) for actions in (*PARTS.spaces.values(), PARTS)),
        (OBSERVATIONS, spaces.Box(-0.1, 0.3, (2, 2)), {"squash_actions": True}),
        (OBSERVATIONS, ACTIONS, {"normalize_obs": False}),
        (OBSERVATIONS, ACTIONS, {"memory": "gru"}),
    ],
)
def test_acting_has_the_form_and_the_bits_of_a_batch_of_one(observation_space, action_space, settings):
    policy = make(observation_space, action_space, **settings)
    observation_space.seed(0)
    observations = [observation_space.sample() for _ in range(9)]
    if policy.observations.normalizer is not None:
        encoded = [policy.observations.encode_one(observation) for observation in observations]
        policy.observations.normalizer.update(np.concatenate(encoded))
    memory = policy.new_memory(1)
    for observation in observations:
        batch = concatenate(observation_space, [observation], create_empty_array(observation_space, 1))
        chosen = policy.choose_likeliest(policy.observations.normalize(policy.observations.encode(batch)), memory)
        expected = next(iter(iterate(batch_space(action_space, 1), policy.fit_actions(chosen))))
        assert _with_types(policy.act(observation)) == _with_types(expected)


def _with_types(action):
    if isinstance(action, dict):
        return {key: _with_types(part) for key, part in action.items()}
    if isinstance(action, tuple):
        return tuple(map(_with_types, action))
    return type(action), action.dtype, action.shape, action.tobytes()


def test_an_encoded_observation_is_kept_when_the_environment_writes_over_its_own():
    observation = np.array([0.5, -0.2, 0.1], np.float32)
    encoded = make(normalize_obs=False).observations.encode_one(observation)
    observation[:] = 9.0
    np.testing.assert_array_equal(encoded, np.array([[0.5, -0.2, 0.1]], np.float32))


def test_an_observation_of_another_size_is_not_taken_for_several():
    with pytest.raises(ValueError, match="reshape"):
        make().act(np.zeros(6, np.float32))


def test_a_saved_policy_acts_the_same():
    numbers = spaces.Box(-9, 9, (2,))
    policy, other = (make(action_space=numbers, seed=seed) for seed in (1, 2))
    policy.observations.normalizer.update(np.random.default_rng(0).normal(size=(9, 3)).astype(np.float32))
    observation = np.array([0.5, -0.2, 0.1], np.float32)
    assert not np.array_equal(policy.act(observation), other.act(observation))
    other.load_state_dict(policy.state_dict())
    np.testing.assert_array_equal(policy.act(observation), other.act(observation))


def test_normalized_observations_are_clipped_where_the_configuration_says():
    seen = np.array([100.0, 0.0, -100.0], np.float32)
    for clip in (10.0, 2.5):
        assert make(clip_obs=clip).observations.process_one(seen).tolist() == [[clip, 0.0, -clip]]


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"observation_space": spaces.Box(-1, 1, (4,))}, r"observation space Box\(3,\), but here it is Box\(4,\)"),
        ({"action_space": spaces.Discrete(2)}, r"action space Discrete\(3, start=4\), but here it is Discrete\(2\)"),
        ({"normalize_obs": False}, "observation normalization on, but here it is off"),
        ({"normalize_values": True}, "value normalization off, but here it is on"),
        ({"hidden_sizes": (9,)}, r"hidden sizes \[8\], but here it is \[9\]"),
        ({"activation": "relu"}, "activation tanh, but here it is relu"),
        ({"share_layers": True}, "sharing of layers off, but here it is on"),
        ({"memory": "gru"}, "memory none, but here it is gru of 64"),
    ],
)
def test_what_a_saved_policy_does_not_fit_is_named_and_nothing_changed(changed, sentence):
    policy = make(**changed)
    before = [parameter.clone() for parameter in policy.network.parameters()]
    with pytest.raises(UserError, match=sentence):
        policy.load_state_dict(make(seed=5).state_dict())
    assert all(torch.equal(a, b) for a, b in zip(before, policy.network.parameters(), strict=True))


def test_actions_without_numbers_cannot_be_squashed():
    with pytest.raises(
        UserError, match=r"squash_actions needs a Box of actions, but the action space is Discrete\(3, start=4\)"
    ):
        make(squash_actions=True)


def test_bfloat16_is_for_images_and_near_float32():
    with pytest.raises(UserError, match="bfloat16 needs images, but the observations have none"):
        make(bfloat16=True)
    space = spaces.Box(0, 255, (36, 36, 1), np.uint8)
    exact, near = (make(observation_space=space, bfloat16=bfloat16) for bfloat16 in (False, True))
    seen = np.random.default_rng(0).integers(255, size=(5, 36 * 36)).astype(np.uint8)
    assert not np.array_equal(exact.parameters(seen), near.parameters(seen))
    np.testing.assert_allclose(near.parameters(seen), exact.parameters(seen), atol=1e-3)
    assert near.parameters(seen).dtype == np.float32


def test_a_saved_policy_keeps_the_units_of_its_values():
    policy, other = make(normalize_values=True), make(normalize_values=True, seed=2)
    policy.values.learn(np.array([2.0, 6.0], np.float32))
    other.load_state_dict(policy.state_dict())
    ours, theirs = other.values.normalizer, policy.values.normalizer
    assert (ours.mean, ours.deviation) == (4.0, theirs.deviation)


def test_acting_changes_nothing_in_the_policy():
    policy = make()
    policy.observations.normalizer.update(np.random.default_rng(0).normal(size=(9, 3)).astype(np.float32))
    before = policy.state_dict()
    policy.act(OBSERVATIONS.sample())
    policy.act(OBSERVATIONS.sample(), generator=np.random.default_rng(0))
    assert policy.state_dict()["normalizer"] == before["normalizer"]
    assert all(torch.equal(weight, before["network"][name]) for name, weight in policy.network.state_dict().items())


def test_the_spaces_are_saved_as_data():
    policy = make(PARTS, PARTS)
    told = policy.state_dict()["spaces"]
    assert (space_from_data(told["observation"]), space_from_data(told["action"])) == (PARTS, PARTS)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({}, "Policy(Box(3,) -> Discrete(3, start=4), hidden sizes [8], tanh)"),
        (
            {"memory": "gru", "memory_size": 5, "share_layers": True},
            "Policy(Box(3,) -> Discrete(3, start=4), hidden sizes [8], tanh, memory gru of 5, shared layers)",
        ),
    ],
)
def test_a_policy_shows_what_it_is_in_one_line(settings, text):
    assert repr(make(**settings)) == text


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


def test_the_format_of_traits():
    traits = traits_of(spaces.Box(-1, 1, (3,)), spaces.Discrete(2), PPOConfig())
    assert traits == {
        "observation space": "Box(3,)",
        "action space": "Discrete(2)",
        "hidden sizes": "[64, 64]",
        "activation": "tanh",
        "observation normalization": "on",
        "value normalization": "off",
        "squashing of actions": "off",
        "use_sde": "off",
        "sharing of layers": "off",
        "memory": "none",
    }
    other = PPOConfig(
        hidden_sizes=(8,), activation="relu", normalize_obs=False, normalize_values=True, squash_actions=True,
        share_layers=True, memory="lstm", memory_size=5,
    )  # fmt: skip
    assert list(traits_of(spaces.Box(-1, 1, (3,)), spaces.Box(-2, 2, (1,)), other).values()) == [
        "Box(3,)", "Box(1,)", "[8]", "relu", "off", "on", "on", "off", "on", "lstm of 5"
    ]  # fmt: skip


def test_a_policy_of_an_earlier_version_explores_without_noise_by_state():
    off, on = (traits_of(OBSERVATIONS, spaces.Box(-2, 2, (1,)), PPOConfig(use_sde=each)) for each in (False, True))
    earlier = {name: trait for name, trait in off.items() if name != "use_sde"}
    check_traits(earlier, off)
    with pytest.raises(UserError, match="The saved policy has use_sde off, but here it is on"):
        check_traits(earlier, on)


def test_who_sees_images_by_which_encoder_stands_there():
    image = spaces.Box(0, 255, (36, 36, 1), np.uint8)

    def encoders(**settings):
        return traits_of(image, spaces.Discrete(2), PPOConfig(**settings))["encoders of images"]

    assert [encoders(), encoders(share_layers=True)] == ["one for both networks"] * 2
    assert encoders(share_encoder=False) == "one per network"


def test_a_policy_that_saw_images_in_an_earlier_version_is_refused_in_a_sentence():
    here = traits_of(spaces.Box(0, 255, (36, 36, 1), np.uint8), spaces.Discrete(2), PPOConfig())
    earlier = {name: trait for name, trait in here.items() if name != "encoders of images"}
    with pytest.raises(UserError, match="reads images by a network of an earlier version of this package"):
        check_traits(earlier, here)


def test_a_policy_for_numbers_is_not_taken_for_one_of_images_of_an_earlier_version():
    numbers, images = (
        traits_of(space, spaces.Discrete(2), PPOConfig())
        for space in (spaces.Box(-1, 1, (3,)), spaces.Box(0, 255, (36, 36, 1), np.uint8))
    )
    with pytest.raises(UserError, match="The saved policy has observation space"):
        check_traits(numbers, images)


def test_sizes_of_the_value_network_stand_there_where_they_are_others():
    def sizes(value_hidden_sizes):
        config = PPOConfig(hidden_sizes=(8,), value_hidden_sizes=value_hidden_sizes)
        return traits_of(spaces.Box(-1, 1, (3,)), spaces.Discrete(2), config)["hidden sizes"]

    assert [sizes(None), sizes((8,)), sizes((9, 9))] == ["[8]", "[8]", "[8] and of the value network [9, 9]"]


def test_a_bound_of_observations_stands_there_where_it_is_another():
    def normalization(**settings):
        return traits_of(spaces.Box(-1, 1, (3,)), spaces.Discrete(2), PPOConfig(**settings))[
            "observation normalization"
        ]

    assert [normalization(clip_obs=10), normalization(clip_obs=2.5)] == ["on", "on, clipped to 2.5"]


def test_every_trait_is_compared():
    here = traits_of(spaces.Box(-1, 1, (3,)), spaces.Discrete(2), PPOConfig())
    check_traits(here, here)
    for trait in here:
        with pytest.raises(UserError, match=f"The saved policy has {trait} other, but here it is"):
            check_traits({**here, trait: "other"}, here)


def test_a_box_whose_bounds_moved_still_fits():
    check_space("observations", of_policy=spaces.Box(-1, 1, (3,)), of_envs=spaces.Box(-9, 9, (3,)))
    with pytest.raises(UserError, match=r"The policy was made for actions Discrete\(2\), but those of"):
        check_space("actions", of_policy=spaces.Discrete(2), of_envs=spaces.Discrete(3))

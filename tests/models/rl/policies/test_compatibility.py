"""The traits of a policy stand in checkpoints: their names and words are a format, and stay."""

import numpy as np
import pytest
from gymnasium import spaces

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.models.rl.policies.policy import check_space, check_traits, traits_of


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
        "sharing of layers": "off",
        "memory": "none",
    }
    other = PPOConfig(
        hidden_sizes=(8,), activation="relu", normalize_obs=False, normalize_values=True, squash_actions=True,
        share_layers=True, memory="lstm", memory_size=5,
    )  # fmt: skip
    assert list(traits_of(spaces.Box(-1, 1, (3,)), spaces.Box(-2, 2, (1,)), other).values()) == [
        "Box(3,)", "Box(1,)", "[8]", "relu", "off", "on", "on", "on", "lstm of 5"
    ]  # fmt: skip


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

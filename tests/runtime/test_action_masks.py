"""An environment's mask is found wherever it reports it."""

import gymnasium
import numpy as np
import pytest

from ml_pipeline.runtime.action_masks import mask_method, reported_mask
from tests.contracts.envs import MaskedEnv

MASK = np.array([0, 1, 0], np.int8)


ASKED = MaskedEnv("method")
ASKED.t = 1  # so that it allows the second action


class Attribute(gymnasium.Env):
    action_masks = None


@pytest.mark.parametrize(
    ("env", "observation", "info"),
    [
        (None, {"x": 1, "action_mask": MASK}, {}),
        (None, {"inner": ({"action_mask": MASK}, 2)}, {}),
        (None, 1, {"action_mask": MASK}),
        (ASKED, 1, {}),
        (gymnasium.Wrapper(ASKED), 1, {}),
        (ASKED, 1, {"action_mask": MASK}),
        (None, {"action_mask": MASK}, {"action_mask": 1 - MASK}),
    ],
)
def test_the_mask_is_found_in_observation_info_or_method(env, observation, info):
    assert reported_mask(env, observation, info).tolist() == [0, 1, 0]


@pytest.mark.parametrize("env", [None, Attribute()])
def test_without_a_mask_there_is_none(env):
    assert reported_mask(env, (1, {"x": 2}), {"mask": MASK}) is None
    assert env is None or mask_method(env) is None

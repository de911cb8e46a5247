"""Random actions keep to the masks that an environment reports, wherever it reports them."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from ml_pipeline.config.errors import UserError
from ml_pipeline.runtime.random_actions import mask_method, n_choices, random_action, reported_mask

MASK = np.array([0, 1, 0], np.int8)


class Asked(gymnasium.Env):
    def action_masks(self):
        return [False, True, False]


class Attribute(gymnasium.Env):
    action_masks = None


@pytest.mark.parametrize(
    ("env", "observation", "info"),
    [
        (None, {"x": 1, "action_mask": MASK}, {}),
        (None, {"inner": ({"action_mask": MASK}, 2)}, {}),
        (None, 1, {"action_mask": MASK}),
        (Asked(), 1, {}),
        (gymnasium.Wrapper(Asked()), 1, {}),
        (Asked(), 1, {"action_mask": MASK}),
        (None, {"action_mask": MASK}, {"action_mask": 1 - MASK}),
    ],
)
def test_the_mask_is_found_in_observation_info_or_method(env, observation, info):
    assert reported_mask(env, observation, info).tolist() == [0, 1, 0]


@pytest.mark.parametrize("env", [None, Attribute()])
def test_without_a_mask_there_is_none(env):
    assert reported_mask(env, (1, {"x": 2}), {"mask": MASK}) is None
    assert env is None or mask_method(env) is None


# Of MultiDiscrete([[2, 3], [4, 1]]) these choices alone are allowed: 1, 2, 0, 0.
GRID = np.array([0, 1, 0, 0, 1, 1, 0, 0, 0, 1], np.int8)


@pytest.mark.parametrize(
    ("space", "mask", "only"),
    [
        (spaces.Discrete(3), [0, 0, 1], 2),
        (spaces.Discrete(3, start=-1), [True, False, False], -1),
        (spaces.MultiDiscrete([2, 3]), [0, 1, 1, 0, 0], [1, 0]),
        (spaces.MultiDiscrete([[2, 3], [4, 1]]), GRID, [[1, 2], [0, 0]]),
    ],
)
def test_no_action_is_drawn_that_the_mask_forbids(space, mask, only):
    assert n_choices(space) == len(mask)
    for _ in range(20):
        action = random_action(space, np.array(mask))
        assert np.array_equal(action, only)
        assert space.contains(action)


def test_every_allowed_action_is_drawn_and_what_has_no_choices_is_drawn_as_ever():
    drawn = {int(random_action(spaces.Discrete(4), np.array([1, 0, 1, 1]))) for _ in range(200)}
    assert drawn == {0, 2, 3}
    box = spaces.Box(0, 1, (2,))
    assert box.contains(random_action(box, np.array([0, 0])))
    assert 0 <= random_action(spaces.Discrete(4), None) < 4


def test_a_mask_of_another_size_is_told():
    with pytest.raises(UserError, match="The action mask must have 5 entries, one per choice, but has 3"):
        random_action(spaces.MultiDiscrete([2, 3]), MASK)

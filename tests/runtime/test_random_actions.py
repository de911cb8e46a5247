"""Random actions keep to action masks."""

import numpy as np
import pytest
from gymnasium import spaces

from ml_pipeline.config.errors import UserError
from ml_pipeline.runtime.action_masks import n_choices
from ml_pipeline.runtime.random_actions import random_action

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
        random_action(spaces.MultiDiscrete([2, 3]), np.array([0, 1, 0]))

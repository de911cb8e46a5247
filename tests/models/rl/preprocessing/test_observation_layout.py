"""Columns worked by hand."""

import numpy as np
import pytest
from gymnasium import spaces

from ml_pipeline.models.rl.preprocessing.observations import observation_layout
from ml_pipeline.models.rl.preprocessing.spaces import UnsupportedSpace, observation_encoder


def image(*shape):
    return spaces.Box(0, 255, shape, np.uint8)


def test_numbers_alone_are_plain():
    for space in (spaces.Box(-1, 1, (3,)), spaces.Discrete(4), image(4, 4, 2), spaces.Box(-1, 1, (3, 40, 40))):
        layout = observation_layout(space)
        assert layout.is_plain
        assert layout.numbers.tolist() == list(range(observation_encoder(space)[1]))


def test_parts_stand_where_the_encoder_puts_them():
    space = spaces.Dict(
        a=spaces.Discrete(2), action_mask=spaces.MultiBinary(3), eye=image(36, 40, 3), z=spaces.Box(-1, 1, (2,))
    )
    layout = observation_layout(space)
    n = 36 * 40 * 3
    assert layout.numbers.tolist() == [0, 1, 5 + n, 6 + n]
    assert layout.mask == slice(2, 5)
    assert [(im.columns, im.shape, im.channels_last) for im in layout.images] == [(slice(5, 5 + n), (3, 36, 40), True)]
    assert observation_encoder(space)[1] == 7 + n


def test_channels_may_come_first():
    (found,) = observation_layout(image(4, 84, 84)).images
    assert (found.shape, found.channels_last) == ((4, 84, 84), False)


def test_a_mask_that_is_none_is_named():
    with pytest.raises(UnsupportedSpace, match="must be MultiBinary or a Box of zeros and ones, but is Discrete"):
        observation_layout(spaces.Dict(action_mask=spaces.Discrete(3)))

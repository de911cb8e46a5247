"""Which observation spaces may stand in one batch, and what the batch's own are then."""

import numpy as np
import pytest
from gymnasium import spaces

from ml_pipeline.config.errors import UserError
from ml_pipeline.models.rl.core.arguments import (
    check_observation_mode,
    check_space_mismatches,
    observation_spaces,
)
from ml_pipeline.models.rl.core.stepping.errors import SpacesDifferError
from ml_pipeline.models.rl.core.stepping.protocol import SpaceMismatch

LOW, HIGH = spaces.Box(0, 1, (2,)), spaces.Box(0, 9, (2,))
WIDER = SpaceMismatch(2, "observation_space", "Box(1)", "Box(9)", has_equal_rows=True)
LONGER = SpaceMismatch(1, "observation_space", "Box((2,))", "Box((3,))", has_equal_rows=False)


def test_equal_spaces_are_batched():
    assert observation_spaces("same", LOW, 3, ()) == (spaces.Box(0, 1, (3, 2)), LOW)


def test_different_spaces_keep_their_bounds():
    batched, single = observation_spaces("different", LOW, 2, [LOW, HIGH])
    assert single == LOW
    np.testing.assert_array_equal(batched.high, [[1, 1], [9, 9]])


def test_given_spaces_are_taken_where_they_fit():
    given = (spaces.Box(0, 9, (2, 2)), HIGH)
    assert observation_spaces(given, LOW, 2, ()) == given
    with pytest.raises(SpacesDifferError, match="shape and dtype must be equal"):
        observation_spaces((given[0], spaces.Box(0, 9, (3,))), LOW, 2, ())


def test_wider_bounds_are_refused_with_the_remedy_and_taken_with_it():
    with pytest.raises(
        SpacesDifferError, match=r"environment 2 is Box\(9\).* If this is intentional, use `observation_"
    ):
        check_space_mismatches([WIDER], "same")
    check_space_mismatches([WIDER], "different")


@pytest.mark.parametrize("mode", ["same", "different", (LOW, LOW)])
def test_other_shapes_are_refused_and_nothing_is_promised(mode):
    with pytest.raises(SpacesDifferError, match=r"1 is Box\(\(3,\)\), and that of environment 0 is") as refused:
        check_space_mismatches([LONGER], mode)
    assert "intentional" not in str(refused.value)


def test_unknown_modes_are_named():
    for mode in ("same", "different", (LOW, LOW)):
        check_observation_mode(mode)
    with pytest.raises(UserError, match=r"Invalid `observation_mode`.* got diffrent"):
        check_observation_mode("diffrent")
    with pytest.raises(TypeError, match="both elements of observation_mode to be Spaces"):
        check_observation_mode((LOW, 3))

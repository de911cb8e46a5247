import json

import numpy as np
import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.trading.features.scaling import FeatureRanges, OutOfRange

SEEN = FeatureRanges.of(np.array([[1.0, np.nan, -3.0], [2.0, np.nan, np.nan], [0.5, np.nan, 4.0]]))


def test_the_range_of_a_column_is_that_of_its_known_values():
    np.testing.assert_array_equal(SEEN.low, [0.5, np.nan, -3.0])
    np.testing.assert_array_equal(SEEN.high, [2.0, np.nan, 4.0])


def test_what_lies_outside_is_told_with_its_range():
    assert SEEN.outside(np.array([0.5, 7.0, 4.0]), ("a", "b", "c")) == []  # nothing is known of b
    assert SEEN.outside(np.array([0.4, 7.0, 5.0]), ("a", "b", "c")) == [
        OutOfRange("a", 0.4, 0.5, 2.0),
        OutOfRange("c", 5.0, -3.0, 4.0),
    ]
    assert SEEN.outside(np.array([np.nan, 0.0, 0.0]), ("a", "b", "c")) == []


def test_a_state_is_plain_and_gives_the_same_ranges():
    again = FeatureRanges.from_state(json.loads(json.dumps(SEEN.state(), allow_nan=False)))
    assert again.low.tobytes() == SEEN.low.tobytes()
    assert again.high.tobytes() == SEEN.high.tobytes()


@pytest.mark.parametrize("state", [{}, {"low": [1.0], "high": [1.0, 2.0]}, {"low": 3, "high": None}])
def test_a_state_of_something_else_is_refused(state):
    with pytest.raises(UserError, match="not the state of feature ranges"):
        FeatureRanges.from_state(state)

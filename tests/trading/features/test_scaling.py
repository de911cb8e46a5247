import json

import numpy as np
import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.trading.features.scaling import FeatureScaler


def test_by_hand():
    scaler = FeatureScaler.fit(np.array([[1.0, 7.0], [3.0, 7.0], [np.nan, 7.0]]), clip=4)
    # column 0: mean 2, deviation 1 of the two known values; column 1 is constant.
    scaled = scaler(np.array([[4.0, 7.0], [100.0, 7.5], [np.nan, np.nan], [-100.0, 6.0]]))
    np.testing.assert_array_equal(scaled, [[2, 0], [4, 0.5], [0, 0], [-4, -1]])
    assert scaled.dtype == np.float32


def test_a_column_without_a_value_is_left_alone():
    scaler = FeatureScaler.fit(np.full((3, 1), np.nan))
    np.testing.assert_array_equal(scaler(np.array([[2.0]])), [[2.0]])


@pytest.mark.parametrize("constant", [0.0, 0.1, 1e9, -1e-9])
def test_a_constant_column_is_scaled_to_zero_despite_rounding(constant):
    values = np.full((1001, 1), constant)
    np.testing.assert_array_equal(np.abs(FeatureScaler.fit(values)(values)) < 1e-3, True)


def test_its_state_survives_json_to_the_last_bit():
    values = np.random.default_rng(0).normal(3, 2, (50, 4))
    scaler = FeatureScaler.fit(values)
    twin = FeatureScaler.from_state(json.loads(json.dumps(scaler.state())))
    np.testing.assert_array_equal(scaler(values), twin(values))


@pytest.mark.parametrize("state", [{}, {"mean": ["x"], "deviation": [1], "clip": 5}, None])
def test_no_state(state):
    with pytest.raises(UserError, match="not the state of a feature scaler"):
        FeatureScaler.from_state(state)

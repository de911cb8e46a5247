"""Encoding and normalizing of observations, one after the other, of batches and of single ones."""

import numpy as np
import pytest
from gymnasium import spaces

from ml_pipeline.models.rl.preprocessing.observations import ObservationPreprocessor
from ml_pipeline.models.rl.preprocessing.spaces import UnsupportedSpace

SPACE = spaces.Dict(a=spaces.Discrete(3), b=spaces.Box(-1, 1, (2,)))


def preprocessor(*, normalize=True):
    """Of five columns; its statistics have mean 1 and deviation 2 in every one."""
    observations = ObservationPreprocessor(SPACE, normalize=normalize)
    if normalize:
        observations.normalizer.update(np.array([[-1.0] * 5, [3.0] * 5], np.float32))
    return observations


def test_a_batch_is_encoded_then_normalized():
    observations = preprocessor()
    encoded = observations.encode({"a": np.array([2, 0]), "b": np.array([[0.5, -0.5], [1.0, 0.0]], np.float32)})
    expected = np.array([[0, 0, 1, 0.5, -0.5], [1, 0, 0, 1.0, 0.0]], np.float32)
    np.testing.assert_array_equal(encoded, expected)
    np.testing.assert_allclose(observations.normalize(encoded), (expected - 1) / 2, rtol=1e-6)
    assert observations.size == 5


def test_a_single_observation_is_processed_as_a_batch_of_one():
    observations = preprocessor()
    single = {"a": np.int64(2), "b": np.array([0.5, -0.5], np.float32)}
    batch = {"a": np.array([2]), "b": np.array([[0.5, -0.5]], np.float32)}
    expected = observations.normalize(observations.encode(batch))
    np.testing.assert_array_equal(observations.process_one(single), expected)


def test_processing_does_not_learn():
    observations = preprocessor()
    before = observations.normalizer.state_dict()
    observations.process_one(SPACE.sample())
    assert observations.normalizer.state_dict() == before


def test_without_normalization_numbers_stay_as_they_are():
    observations = preprocessor(normalize=False)
    assert observations.normalizer is None
    single = {"a": np.int64(1), "b": np.array([0.5, -0.5], np.float32)}
    assert observations.process_one(single).tolist() == [[0.0, 1.0, 0.0, 0.5, -0.5]]


def test_masks_and_images_are_not_normalized():
    space = spaces.Dict(action_mask=spaces.MultiBinary(2), x=spaces.Box(-1, 1, (1,)))
    observations = ObservationPreprocessor(space, normalize=True)
    observations.normalizer.update(np.array([[1, 0, -1.0], [0, 1, 3.0]], np.float32))
    single = {"action_mask": np.array([1, 0], np.int8), "x": np.array([5.0], np.float32)}
    np.testing.assert_allclose(observations.process_one(single), [[1.0, 0.0, 2.0]], rtol=1e-6)


def test_observations_that_are_not_of_fixed_size_are_refused():
    with pytest.raises(UnsupportedSpace, match="Observations of Text"):
        ObservationPreprocessor(spaces.Text(3), normalize=True)

"""Encoding and normalizing of observations, one after the other, of batches and of single ones."""

import numpy as np
import pytest
from gymnasium import spaces

from ml_pipeline.models.rl.preprocessing.observations import ObservationPreprocessor, observation_layout
from ml_pipeline.models.rl.preprocessing.spaces import UnsupportedSpace, observation_encoder

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

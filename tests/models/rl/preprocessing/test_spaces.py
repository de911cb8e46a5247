"""Encoding against gymnasium's own flattening; fitting of actions worked by hand."""

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array

from ml_pipeline.models.rl.preprocessing.observations import ObservationPreprocessor, observation_layout
from ml_pipeline.models.rl.preprocessing.spaces import UnsupportedSpace, action_fitter, observation_encoder

SPACES = [
    spaces.Box(-1, 1, (3,), np.float64),
    spaces.Box(0, 255, (4, 4, 2), np.uint8),
    spaces.Discrete(5, start=2),
    spaces.MultiBinary(3),
    spaces.MultiDiscrete([2, 3]),
    spaces.MultiDiscrete([[2, 3], [4, 2]]),
    spaces.Dict(a=spaces.Discrete(3), b=spaces.Tuple([spaces.Box(-1, 1, (2,)), spaces.MultiBinary(2)])),
]


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_encoded_observations_equal_gymnasiums_flattening(space):
    space.seed(0)
    samples = [space.sample() for _ in range(4)]
    encode, size = observation_encoder(space)
    encoded = encode(concatenate(space, samples, create_empty_array(space, 4)))
    assert encoded.dtype == np.float32
    assert encoded.shape == (4, size)
    np.testing.assert_array_equal(encoded, np.stack([spaces.flatten(space, s) for s in samples]).astype(np.float32))


def test_discrete_actions_are_counted_from_the_start_of_the_space():
    assert action_fitter(spaces.Discrete(3, start=-1))(np.array([0, 2])).tolist() == [-1, 1]


def test_box_actions_are_clipped_and_take_shape_and_dtype_of_the_space():
    space = spaces.Box(np.array([[-1.0, 0.0]]), np.array([[1.0, 5.0]]), dtype=np.float64)
    actions = np.array([[-3.0, 2.0], [0.5, 9.0]], np.float32)
    fitted = action_fitter(space)(actions)
    assert fitted.tolist() == [[[-1.0, 2.0]], [[0.5, 5.0]]]
    assert fitted.dtype == np.float64
    assert batch_space(space, 2).contains(fitted)
    assert actions[0, 0] == -3.0  # what the policy keeps for its update stays unclipped


def test_spaces_without_a_fixed_size_are_named():
    with pytest.raises(UnsupportedSpace, match="Observations of Text are not of fixed size"):
        observation_encoder(spaces.Text(5))
    with pytest.raises(UnsupportedSpace, match="Actions of Text are not supported"):
        action_fitter(spaces.Text(5))


def test_a_space_of_a_librarys_own_is_named_with_its_key_and_a_remedy():
    class MissionSpace(spaces.Space):
        @property
        def is_np_flattenable(self):
            raise NotImplementedError

    MissionSpace.__module__ = "minigrid.core.mission"
    space = spaces.Dict(image=spaces.Box(0, 255, (7, 7, 3), np.uint8), mission=MissionSpace())
    sentence = (
        'The part "mission" of the observation is of MissionSpace, which is not of fixed size; leave it out by a '
        "wrapper, such as --wrappers minigrid.wrappers:ImgObsWrapper, or turn it into numbers there."
    )
    for read in (observation_layout, lambda space: ObservationPreprocessor(space, normalize=True)):
        with pytest.raises(UnsupportedSpace) as caught:
            read(space)
        assert str(caught.value) == sentence

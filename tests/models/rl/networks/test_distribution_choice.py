"""A distribution for every action space, whose actions the space contains."""

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import batch_space

from ml_pipeline.models.rl.networks.distributions import distribution_for
from ml_pipeline.models.rl.preprocessing.spaces import UnsupportedSpace, action_fitter

SPACES = [
    spaces.Discrete(3, start=4),
    spaces.MultiDiscrete([2, 3], start=[5, 0]),
    spaces.MultiDiscrete([[2, 3], [4, 2]]),
    spaces.MultiBinary([2, 2]),
    spaces.Box(-0.1, 0.1, (2, 2)),
    spaces.Dict(
        a=spaces.Discrete(3, start=1), b=spaces.Tuple([spaces.Box(0, 1, (2,), np.float64), spaces.MultiBinary(2)])
    ),
]


@pytest.mark.parametrize("squash", [False, True])
@pytest.mark.parametrize("space", SPACES, ids=str)
def test_sampled_and_likeliest_actions_are_in_the_space(space, squash):
    distribution, fit = distribution_for(space, squash=squash), action_fitter(space, squash=squash)
    generator = np.random.default_rng(0)
    parameters = generator.normal(size=(20, distribution.num_parameters)).astype(np.float32)
    sampled = distribution.sample(parameters, distribution.draw_noise(generator, (20,)))
    for actions in (sampled, distribution.mode(parameters)):
        assert batch_space(space, 20).contains(fit(actions))


def test_parts_of_a_dict_keep_their_places():
    space = spaces.Dict(a=spaces.Discrete(3, start=1), b=spaces.Box(-1, 1, (1,)), c=spaces.MultiDiscrete([2, 2]))
    fitted = action_fitter(space)(np.array([[2.0, 0.5, 1.0, 0.0]], np.float32))
    assert {key: part.tolist() for key, part in fitted.items()} == {"a": [3], "b": [[0.5]], "c": [[1, 0]]}


def test_squashed_actions_reach_from_bound_to_bound():
    fit = action_fitter(spaces.Box(np.array([-2.0, 0.0]), np.array([2.0, 10.0]), dtype=np.float64), squash=True)
    np.testing.assert_allclose(fit(np.array([[0.0, 0.0], [50.0, -50.0]])), [[0.0, 5.0], [2.0, 0.0]], atol=1e-12)


def test_what_cannot_be_an_action_is_named():
    with pytest.raises(UnsupportedSpace, match="Actions of Text are not supported; wrap the environment"):
        distribution_for(spaces.Text(5))
    with pytest.raises(UnsupportedSpace, match="squash_actions needs bounds on both sides"):
        action_fitter(spaces.Box(-np.inf, 1, (2,)), squash=True)

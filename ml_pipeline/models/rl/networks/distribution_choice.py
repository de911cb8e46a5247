"""Which distribution fits an action space."""

import math
from typing import Any

from gymnasium import spaces

from ml_pipeline.models.rl.networks.bernoulli import Bernoulli
from ml_pipeline.models.rl.networks.distributions import Categorical, DiagonalGaussian
from ml_pipeline.models.rl.networks.joint_distribution import Joint
from ml_pipeline.models.rl.networks.squashed_gaussian import SquashedGaussian
from ml_pipeline.models.rl.preprocessing.spaces import UnsupportedSpace, leaves_of


def distribution_for(space: spaces.Space, *, squash: bool = False) -> Any:
    """The distribution over actions of this (single) space; squash: map numbers into their bounds by tanh.

    Raises UnsupportedSpace if there is none.
    """
    if isinstance(space, spaces.Discrete):
        return Categorical(int(space.n))
    if isinstance(space, spaces.MultiBinary):
        return Bernoulli(math.prod(space.shape))
    if isinstance(space, spaces.MultiDiscrete):
        return Joint([Categorical(int(n)) for n in space.nvec.ravel()])
    if isinstance(space, spaces.Box):
        size = math.prod(space.shape)
        return SquashedGaussian(size) if squash else DiagonalGaussian(size)
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = [distribution_for(leaf, squash=squash) for leaf in leaves_of(space)]
        return Joint([each for part in parts for each in (part.parts if isinstance(part, Joint) else [part])])
    raise UnsupportedSpace(
        f"Actions of {type(space).__name__} are not supported; wrap the environment so that it takes a Box, Discrete, "
        "MultiDiscrete, MultiBinary, or a Dict or Tuple of them."
    )

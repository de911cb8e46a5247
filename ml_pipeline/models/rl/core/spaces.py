"""Between an environment's spaces and a network's arrays. N environments, D observation size, A action size."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces

from ml_pipeline.config.errors import UserError

Array = np.ndarray


class UnsupportedSpace(UserError):
    """The network cannot read these observations or give these actions."""


def observation_encoder(space: spaces.Space) -> tuple[Callable[[Any], Array], int]:
    """How a batch of observations of this (single) space becomes float32 (N, D), and D.

    Numbers are flattened, choices become one-hot, the parts of a Dict or Tuple stand side by side.
    The arrays that the encoder returns may be views of what it was given.
    Raises UnsupportedSpace for spaces without a fixed size.
    """
    if isinstance(space, spaces.Box | spaces.MultiBinary):
        size = math.prod(space.shape)
        return lambda batch: np.asarray(batch, dtype=np.float32).reshape(-1, size), size
    if isinstance(space, spaces.Discrete):
        one_hot = np.eye(int(space.n), dtype=np.float32)
        return lambda batch: one_hot[np.asarray(batch).reshape(-1) - space.start], int(space.n)
    if isinstance(space, spaces.MultiDiscrete):
        choices = zip(space.nvec.ravel(), space.start.ravel(), strict=True)
        parts: dict[Any, spaces.Space] = {i: spaces.Discrete(n, start=start) for i, (n, start) in enumerate(choices)}
        return _side_by_side(parts, lambda batch, i: np.asarray(batch).reshape(len(batch), -1)[:, i])
    if isinstance(space, spaces.Dict | spaces.Tuple):
        named = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        return _side_by_side(dict(named), lambda batch, key: batch[key])
    raise UnsupportedSpace(
        f"Observations of {type(space).__name__} have no fixed size; wrap the environment so that it gives a Box, "
        "Discrete, MultiDiscrete, MultiBinary, or a Dict or Tuple of them."
    )


def _side_by_side(
    parts: dict[Any, spaces.Space], pick: Callable[[Any, Any], Any]
) -> tuple[Callable[[Any], Array], int]:
    encoders = {key: observation_encoder(part) for key, part in parts.items()}

    def encode(batch: Any) -> Array:
        return np.concatenate([encoder(pick(batch, key)) for key, (encoder, _) in encoders.items()], axis=1)

    return encode, sum(size for _, size in encoders.values())


def action_fitter(space: spaces.Space) -> Callable[[Array], Array]:
    """How a batch of the policy's actions becomes actions of this (single) space.

    Discrete: int64 (N,) counted from 0 in, counted from the space's start out.
    Box: float32 (N, A), unclipped, in; clipped to the bounds, of the space's shape and dtype, out.
    Raises UnsupportedSpace for anything else.
    """
    if isinstance(space, spaces.Discrete):
        start = space.start
        return (lambda actions: actions) if start == 0 else (lambda actions: actions + start)
    if isinstance(space, spaces.Box):
        shape, low, high = (-1, *space.shape), space.low, space.high
        return lambda actions: np.clip(actions.reshape(shape), low, high).astype(space.dtype, copy=False)
    raise UnsupportedSpace(
        f"Actions of {type(space).__name__} are not supported; Discrete and Box are. Wrap the environment so that "
        "it takes one of them."
    )

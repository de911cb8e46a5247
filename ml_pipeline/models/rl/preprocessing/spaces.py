"""Between an environment's spaces and a network's arrays. N environments, D observation size, A action size."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from ml_pipeline.config.errors import UserError

Array = np.ndarray
# Of libraries with spaces of their own, the wrapper that leaves them out.
_WRAPPERS = {"minigrid": "minigrid.wrappers:ImgObsWrapper"}


class UnsupportedSpace(UserError):
    """The network cannot read these observations or give these actions."""


def observation_encoder(space: spaces.Space, *, dtype: type = np.float32) -> tuple[Callable[[Any], Array], int]:
    """A function from a batch of observations of this (single) space to an array (N, D) of `dtype`, and D.

    Numbers are flattened, choices are one-hot, the parts of a Dict or Tuple stand side by side. The function also takes
    a single observation, as (1, D), and may return a view of what it is given.
    dtype: np.uint8 where every part is an image; else float32.
    Raises UnsupportedSpace for spaces that are not of fixed size.
    """
    if isinstance(space, spaces.Box | spaces.MultiBinary):
        size = math.prod(space.shape)
        return lambda batch: np.asarray(batch, dtype=dtype).reshape(-1, size), size
    if isinstance(space, spaces.Discrete):
        one_hot: Array = np.eye(int(space.n), dtype=dtype)
        return lambda batch: one_hot[np.asarray(batch).reshape(-1) - space.start], int(space.n)
    if isinstance(space, spaces.MultiDiscrete):
        choices, size = zip(space.nvec.ravel(), space.start.ravel(), strict=True), space.nvec.size
        parts: dict[Any, spaces.Space] = {i: spaces.Discrete(n, start=start) for i, (n, start) in enumerate(choices)}
        return _side_by_side(parts, lambda batch, i: np.asarray(batch).reshape(-1, size)[:, i], dtype)
    if isinstance(space, spaces.Dict | spaces.Tuple):
        named = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        return _side_by_side(dict(named), lambda batch, key: batch[key], dtype)
    raise _not_of_fixed_size(space)


def flat_size(space: spaces.Space, key: str | None = None) -> int:
    """The number of columns of a space that is no Dict or Tuple; key: its name, if it is a part of one.

    Raises UnsupportedSpace if it is not of fixed size.
    """
    if not isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        raise _not_of_fixed_size(space, key)
    return spaces.flatdim(space)


def _not_of_fixed_size(space: spaces.Space, key: str | None = None) -> UnsupportedSpace:
    kind = type(space)
    if key is None:
        return UnsupportedSpace(
            f"Observations of {kind.__name__} are not of fixed size; wrap the environment so that it gives a Box, "
            "Discrete, MultiDiscrete, MultiBinary, or a Dict or Tuple of them."
        )
    wrapper = _WRAPPERS.get(kind.__module__.partition(".")[0])
    named = f", such as --wrappers {wrapper}" if wrapper else ""
    return UnsupportedSpace(
        f'The part "{key}" of the observation is of {kind.__name__}, which is not of fixed size; leave it out by a '
        f"wrapper{named}, or turn it into numbers there."
    )


def _side_by_side(
    parts: dict[Any, spaces.Space], pick: Callable[[Any, Any], Any], dtype: type
) -> tuple[Callable[[Any], Array], int]:
    encoders = {key: observation_encoder(part, dtype=dtype) for key, part in parts.items()}

    def encode(batch: Any) -> Array:
        return np.concatenate([encoder(pick(batch, key)) for key, (encoder, _) in encoders.items()], axis=1)

    return encode, sum(size for _, size in encoders.values())


def leaves_of(space: spaces.Space) -> list[spaces.Space]:
    """The spaces in a Dict or Tuple, however deep, in the order of their columns; of any other space, itself."""
    if isinstance(space, spaces.Dict):
        return [leaf for part in space.spaces.values() for leaf in leaves_of(part)]
    if isinstance(space, spaces.Tuple):
        return [leaf for part in space.spaces for leaf in leaves_of(part)]
    return [space]


def action_fitter(space: spaces.Space, *, squash: bool = False) -> Callable[[Array], Any]:
    """A function from a batch of the policy's actions to a batch of actions of this (single) space.

    Discrete: from int64 (N,), counted from 0, to actions counted from the space's start. Box: from float32 (N, A) to
    the space's shape and dtype, clipped to its bounds, or, with `squash`, mapped into them by tanh. MultiDiscrete,
    MultiBinary, Dict and Tuple: from float32 (N, K), their parts in columns.
    Raises UnsupportedSpace for anything else, and for a Box without bounds that is to be squashed.
    """
    if isinstance(space, spaces.Discrete):
        start = space.start
        return (lambda actions: actions) if start == 0 else (lambda actions: actions + start)
    fit, _ = _columns_fitter(space, squash)
    return fit


def _columns_fitter(space: spaces.Space, squash: bool) -> tuple[Callable[[Array], Any], int]:
    """The same for actions in columns, and the number of columns."""
    if isinstance(space, spaces.Discrete):
        first = space.start
        return lambda columns: columns[:, 0].astype(np.int64) + first, 1
    if isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary):
        shape, start = (-1, *space.shape), getattr(space, "start", 0)
        return lambda columns: (columns.reshape(shape) + start).astype(space.dtype), math.prod(space.shape)
    if isinstance(space, spaces.Box):
        return (_squashing if squash else _clipping)(space), math.prod(space.shape)
    if isinstance(space, spaces.Dict):
        fitters = [_columns_fitter(part, squash) for part in space.spaces.values()]
        keys = list(space.spaces)
        return lambda columns: dict(zip(keys, _fit_parts(fitters, columns), strict=True)), sum(n for _, n in fitters)
    if isinstance(space, spaces.Tuple):
        fitters = [_columns_fitter(part, squash) for part in space.spaces]
        return lambda columns: tuple(_fit_parts(fitters, columns)), sum(n for _, n in fitters)
    raise UnsupportedSpace(
        f"Actions of {type(space).__name__} are not supported; wrap the environment so that it takes a Box, Discrete, "
        "MultiDiscrete, MultiBinary, or a Dict or Tuple of them."
    )


def _fit_parts(fitters: Sequence[tuple[Callable[[Array], Any], int]], columns: Array) -> Iterator[Any]:
    start = 0
    for fit, width in fitters:
        yield fit(columns[:, start : start + width])
        start += width


def only_row(batch: Any) -> Any:
    """The only action in a batch of one, in the form that a single environment takes."""
    if isinstance(batch, dict):
        return {key: only_row(part) for key, part in batch.items()}
    if isinstance(batch, tuple):
        return tuple(only_row(part) for part in batch)
    return batch[0]


def _clipping(space: spaces.Box) -> Callable[[Array], Array]:
    shape, low, high = (-1, *space.shape), space.low, space.high
    return lambda actions: actions.reshape(shape).clip(low, high).astype(space.dtype, copy=False)


def _squashing(space: spaces.Box) -> Callable[[Array], Array]:
    if not space.is_bounded():
        raise UnsupportedSpace(
            f"squash_actions needs bounds on both sides, but the action space is {space}; switch it off, or wrap the "
            "environment so that its actions are bounded."
        )
    shape, low, high = (-1, *space.shape), space.low, space.high
    middle, half = (low + high) / 2, (high - low) / 2
    # Clipped, since rounding may leave the bounds by a bit.
    return lambda u: np.clip(middle + half * np.tanh(u.reshape(shape)), low, high).astype(space.dtype, copy=False)

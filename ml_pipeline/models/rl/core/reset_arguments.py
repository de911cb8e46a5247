"""The arguments of a vectorized reset(): one seed per environment, and which environments are reset."""

from numbers import Integral
from typing import Any

import numpy as np


def seeds_of(seed: Any, num_envs: int) -> list[int | None]:
    """One seed per environment: `seed` + i, or a sequence of them. Raises ValueError if its length is not num_envs."""
    if seed is None:
        return [None] * num_envs
    if isinstance(seed, Integral):
        return [int(seed) + index for index in range(num_envs)]
    if len(seed) != num_envs:
        raise ValueError(
            f"If seeds are passed as a list the length must match num_envs={num_envs} but got length={len(seed)}."
        )
    return [None if one is None else int(one) for one in seed]


def split_mask(options: dict[str, Any] | None, num_envs: int) -> tuple[np.ndarray, dict[str, Any] | None]:
    """Which environments to reset, bool (N,), and the options without that; the caller's dict stays as it is.

    Raises TypeError or ValueError if the mask is not bool (N,) or all False, as Gymnasium does.
    """
    if options is None or "reset_mask" not in options:
        return np.ones(num_envs, np.bool_), options
    mask = options["reset_mask"]
    if not isinstance(mask, np.ndarray):
        raise TypeError(f"`options['reset_mask']` must be a numpy array, got {type(mask)}.")
    if mask.shape != (num_envs,):
        raise ValueError(f"`options['reset_mask']` must have shape `({num_envs},)`, got {mask.shape}.")
    if mask.dtype != np.bool_:
        raise TypeError(f"`options['reset_mask']` must have `dtype=np.bool_`, got {mask.dtype}.")
    if not mask.any():
        raise ValueError(
            f"`options['reset_mask']` must contain a boolean array with at least one True value, got reset_mask={mask}."
        )
    return mask, {key: value for key, value in options.items() if key != "reset_mask"}

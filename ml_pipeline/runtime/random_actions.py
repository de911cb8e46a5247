"""Draws random actions that an action mask allows."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
from gymnasium import spaces

from ml_pipeline.config.errors import UserError
from ml_pipeline.runtime.action_masks import n_choices

Array = np.ndarray


def random_action(space: spaces.Space, mask: Array | None) -> Any:
    """A random action of a Discrete or MultiDiscrete space that the mask allows; of any other space, any action.

    mask: one entry per choice, or None if everything is allowed. Raises UserError if its size is another.

    >>> random_action(spaces.Discrete(3, start=5), np.array([0, 0, 1]))
    np.int64(7)
    >>> random_action(spaces.MultiDiscrete([2, 3]), np.array([0, 1, 1, 0, 0]))
    array([1, 0])
    """
    if mask is None or not isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        return space.sample()
    flat = mask.reshape(-1).astype(np.int8)
    if len(flat) != n_choices(space):
        raise UserError(f"The action mask must have {n_choices(space)} entries, one per choice, but has {len(flat)}.")
    if isinstance(space, spaces.Discrete):
        return space.sample(mask=flat)
    ends = np.concatenate([[0], np.cumsum(space.nvec.reshape(-1))])
    parts = iter([flat[start:end] for start, end in pairwise(ends)])
    return space.sample(mask=_shaped(parts, space.nvec))


def _shaped(parts: Iterator[Array], nvec: Any) -> Any:
    """The masks of the parts in tuples as deep as `nvec`, which is what Gymnasium takes."""
    return tuple(_shaped(parts, each) if np.ndim(each) else next(parts) for each in nvec)

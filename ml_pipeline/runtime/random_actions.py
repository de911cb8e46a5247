"""Draws random actions that an environment allows, by the action masks that it reports."""

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from ml_pipeline.config.errors import UserError

Array = np.ndarray

ACTION_MASK = "action_mask"
"""The key of a mask in a Dict observation, or in the infos of reset() and step()."""

MASK_METHOD = "action_masks"
"""The method that returns the mask of the next action, as sb3-contrib's MaskablePPO expects it."""


def mask_method(env: gymnasium.Env) -> Callable[[], Any] | None:
    """The `action_masks()` of an environment or of one of its wrappers; None if it has none."""
    try:
        method = env.get_wrapper_attr(MASK_METHOD)
    except AttributeError:
        return None
    return method if callable(method) else None


def reported_mask(env: gymnasium.Env | None, observation: Any, info: dict[str, Any]) -> Array | None:
    """The mask of the next action after reset() or step() returned `observation` and `info`; None if there is none.

    It is looked for in the observation, in the info, and in `action_masks()` of `env`, in this order.
    """
    mask = next(_masks_in(observation), None)
    if mask is None:
        mask = info.get(ACTION_MASK)
    if mask is None and env is not None and (method := mask_method(env)) is not None:
        mask = method()
    return None if mask is None else np.asarray(mask)


def n_choices(space: spaces.Space) -> int:
    """How many entries a mask of this action space has: one per choice, those of a MultiDiscrete side by side."""
    return int(space.nvec.sum()) if isinstance(space, spaces.MultiDiscrete) else spaces.flatdim(space)


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


def _masks_in(observation: Any) -> Iterator[Any]:
    if isinstance(observation, dict):
        if ACTION_MASK in observation:
            yield observation[ACTION_MASK]
        for part in observation.values():
            yield from _masks_in(part)
    elif isinstance(observation, tuple):
        for part in observation:
            yield from _masks_in(part)

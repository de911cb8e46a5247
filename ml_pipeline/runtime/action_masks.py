"""Finds the action mask that an environment reports: in its observation, in its info, or by `action_masks()`."""

from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

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


def _masks_in(observation: Any) -> Iterator[Any]:
    if isinstance(observation, dict):
        if ACTION_MASK in observation:
            yield observation[ACTION_MASK]
        for part in observation.values():
            yield from _masks_in(part)
    elif isinstance(observation, tuple):
        for part in observation:
            yield from _masks_in(part)

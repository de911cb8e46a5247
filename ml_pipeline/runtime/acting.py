"""Choosing actions: functions with memory within an episode, action masks, and random actions."""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise, zip_longest
from typing import Any, Protocol, runtime_checkable

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import concatenate, create_empty_array, iterate

from ml_pipeline.config.errors import UserError


@runtime_checkable
class ActsInEpisodes(Protocol):
    """A function of observations whose actions depend on earlier ones of the same episode."""

    def __call__(self, observation: Any) -> Any:
        """The action for one observation."""

    def begin_episode(self) -> None:
        """Forget all observations so far."""


def begin_episode(act: Callable[[Any], Any]) -> None:
    """Reset the memory of `act`, if it has any. Call this before each episode."""
    if isinstance(act, ActsInEpisodes):
        act.begin_episode()


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


def reported_mask(env: gymnasium.Env | None, observation: Any, info: dict[str, Any]) -> np.ndarray | None:
    """The mask of the next action after reset() or step() returned `observation` and `info`; None if there is none.

    Looks in the observation, in the info, and in `action_masks()` of `env`, in this order.
    """
    mask = next(_masks_in(observation), None)
    if mask is None:
        mask = info.get(ACTION_MASK)
    if mask is None and env is not None and (method := mask_method(env)) is not None:
        mask = method()
    return None if mask is None else np.asarray(mask)


def n_choices(space: spaces.Space) -> int:
    """The length of a mask for this action space: one entry per choice; those of a MultiDiscrete are concatenated."""
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


def random_action(space: spaces.Space, mask: np.ndarray | None) -> Any:
    """A random action. In Discrete and MultiDiscrete spaces the mask must allow it; other spaces ignore the mask.

    mask: one entry per choice, or None if everything is allowed. Raises UserError if it has the wrong size.

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


def _shaped(parts: Iterator[np.ndarray], nvec: Any) -> Any:
    """The masks of the parts in tuples nested like `nvec`, as Gymnasium expects them."""
    return tuple(_shaped(parts, each) if np.ndim(each) else next(parts) for each in nvec)


def random_actions(
    envs: VectorEnv, observations: Any, infos: dict[str, Any], *, each: Sequence[gymnasium.Env] = ()
) -> Any:
    """A batch of random actions, after reset() or step() returned `observations` and `infos`.

    each: the environments, if their `action_masks()` should be called too. Raises UserError if the size of a mask does
    not match the action space.
    """
    reported = infos.get(ACTION_MASK, [None] * envs.num_envs)
    has_info = infos.get(f"_{ACTION_MASK}", [True] * envs.num_envs)
    rows = zip_longest(iterate(envs.observation_space, observations), reported, has_info, each)
    masks = [
        reported_mask(env, observation, {ACTION_MASK: mask} if there else {}) for observation, mask, there, env in rows
    ]
    if all(mask is None for mask in masks):
        return envs.action_space.sample()
    space: Any = envs.single_action_space
    actions = [random_action(space, mask) for mask in masks]
    batch: Any = create_empty_array(space, envs.num_envs)
    return concatenate(space, actions, batch)

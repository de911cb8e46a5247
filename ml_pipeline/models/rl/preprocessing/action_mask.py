"""Action masks: moved from infos or methods of an environment into its observations, and checked. N environments."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from ml_pipeline.config.errors import UserError
from ml_pipeline.runtime.acting import ACTION_MASK, MASK_METHOD, mask_method, n_choices

Array = np.ndarray


class ActionMaskInObservation(gymnasium.Wrapper):
    """Adds the action mask that an environment reports to its observations, from which policies read it.

    The environment reports the mask as info["action_mask"] in every step() and reset(), or by a method
    `action_masks()`, as for MaskablePPO of sb3-contrib; the info takes precedence. Observations become a Dict with the
    parts "action_mask" and "observation"; to a Dict observation, "action_mask" is added. Actions must be Discrete or
    MultiDiscrete. The mask has one entry per choice; for a MultiDiscrete, the entries of its parts in order.
    """

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        space, size = env.observation_space, n_choices(env.action_space)
        parts = space.spaces if isinstance(space, spaces.Dict) else {"observation": space}
        self._is_dict = isinstance(space, spaces.Dict)
        self._size = size
        self._method = mask_method(env)
        self.observation_space = spaces.Dict({**parts, ACTION_MASK: spaces.MultiBinary(size)})

    def get_plain_state(self) -> None:
        """The state of the wrapper, which is empty."""

    def set_plain_state(self, state: None) -> None:
        """Do nothing, because the wrapper has no state."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options)
        return self._with_mask(observation, info), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        return self._with_mask(observation, info), reward, terminated, truncated, info

    def _with_mask(self, observation: Any, info: dict[str, Any]) -> dict[str, Any]:
        where, mask = f'"{ACTION_MASK}" of the info', info.get(ACTION_MASK)
        if mask is None and self._method is not None:
            where, mask = f"{MASK_METHOD}()", self._method()
        if mask is None:
            raise UserError(f'The info of every step and reset must hold "{ACTION_MASK}", but holds {sorted(info)}.')
        parts = observation if self._is_dict else {"observation": observation}
        flat = np.asarray(mask, dtype=np.int8).reshape(-1)
        if len(flat) != self._size:
            raise UserError(f"{where} must have {self._size} entries, one per choice, but has {len(flat)}.")
        return {**parts, ACTION_MASK: flat}


def reports_mask_outside_observation(env: gymnasium.Env, info: dict[str, Any]) -> bool:
    """Whether the environment reports a mask, but not in its observations. info: from reset()."""
    space = env.observation_space
    in_observation = isinstance(space, spaces.Dict) and ACTION_MASK in space.spaces
    return not in_observation and (ACTION_MASK in info or mask_method(env) is not None)


def check_masks(masks: Array, action_space: spaces.Space) -> None:
    """Raise UserError if one of the masks, (N, choices), forbids every action, or every choice of a part of it.

    >>> check_masks(np.array([[1.0, 0.0], [0.0, 0.0]]), spaces.Discrete(2))
    Traceback (most recent call last):
    ml_pipeline.config.errors.UserError: The action mask of environment 1 forbids every action; allow one, or end the \
episode where there is nothing to do.
    """
    sizes = action_space.nvec.ravel() if isinstance(action_space, spaces.MultiDiscrete) else [masks.shape[1]]
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    allowed = np.maximum.reduceat(masks, starts, axis=1) > 0.5  # (N, parts)
    if not allowed.all():
        env, part = np.argwhere(~allowed)[0]
        which = "every action" if len(sizes) == 1 else f"every choice of part {part} of the action"
        raise UserError(
            f"The action mask of environment {env} forbids {which}; allow one, or end the episode where there is "
            "nothing to do."
        )

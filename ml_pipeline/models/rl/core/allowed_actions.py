"""Random actions for a batch of environments, each of which its own action mask allows."""

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import gymnasium
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import concatenate, create_empty_array, iterate

from ml_pipeline.runtime.action_masks import ACTION_MASK, reported_mask
from ml_pipeline.runtime.random_actions import random_action


def random_actions(
    envs: VectorEnv, observations: Any, infos: dict[str, Any], *, each: Sequence[gymnasium.Env] = ()
) -> Any:
    """A batch of random actions, after reset() or step() returned `observations` and `infos`.

    each: the environments themselves, whose `action_masks()` are then asked as well. Raises UserError if a mask has
    another size than the action space.
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

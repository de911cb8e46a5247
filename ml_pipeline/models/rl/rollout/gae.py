"""Generalized advantage estimation over a rollout, in NumPy or in torch. T steps, N environments."""

from typing import Any

import numpy as np

from ml_pipeline.config.errors import UserError

Array = Any  # NumPy's, or a tensor: both read the same here


class ShapeError(UserError):
    """Arrays that belong together have different shapes."""


def compute_gae(
    rewards: Array,
    values: Array,
    next_values: Array,
    terminated: Array,
    done: Array,
    *,
    gamma: float,
    gae_lambda: float,
) -> tuple[Array, Array]:
    """Generalized advantage estimates of one rollout.

    rewards, values, next_values: float32 (T, N); next_values[t] is V(final_obs) where an episode ended in step t.
    terminated: bool (T, N), no bootstrap past it. done: bool (T, N), terminated or truncated: the sum is cut there.
    Returns (advantages, returns), each float32 (T, N).
    Raises ShapeError where shapes differ.
    Source: Schulman et al. 2016, arXiv:1506.02438, eq. 16.
    """
    for name, array in {
        "values": values,
        "next_values": next_values,
        "terminated": terminated,
        "done": done,
    }.items():
        if array.shape != rewards.shape:
            raise ShapeError(f"{name} must have the shape of rewards, {rewards.shape}, but has {array.shape}.")
    advantages = rewards + gamma * next_values * ~terminated - values  # of one step each, so far
    decay = ~done * np.float32(gamma * gae_lambda)
    for t in range(len(rewards) - 2, -1, -1):
        advantages[t] += decay[t] * advantages[t + 1]
    return advantages, advantages + values

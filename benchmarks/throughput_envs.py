"""Environments of `ppo_throughput.py` whose spaces are of other kinds: CartPole seen and steered in other ways."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

_EDGE_M = 0.5


def allowed(seen: np.ndarray) -> np.ndarray:
    """Which pushes are allowed: none towards an edge of the track that is near, int8 (2,)."""
    return np.array([seen[0] > -_EDGE_M, seen[0] < _EDGE_M], np.int8)


def masked() -> gymnasium.Env[Any, Any]:
    """The mask is a part of the observation."""
    env = gymnasium.make("CartPole-v1")
    return gymnasium.wrappers.TransformObservation(
        env,
        lambda seen: {"seen": seen, "action_mask": allowed(seen)},
        spaces.Dict(seen=env.observation_space, action_mask=spaces.MultiBinary(2)),
    )


def maskable() -> gymnasium.Env[Any, Any]:
    """The same for MaskablePPO, which asks for the mask."""
    from sb3_contrib.common.wrappers import ActionMasker

    return ActionMasker(gymnasium.make("CartPole-v1"), lambda env: allowed(env.unwrapped.state))


def in_parts() -> gymnasium.Env[Any, Any]:
    """Observations are a Dict of positions and velocities."""
    env = gymnasium.make("CartPole-v1")
    box = env.observation_space
    assert isinstance(box, spaces.Box)
    parts = {"positions": slice(0, None, 2), "velocities": slice(1, None, 2)}
    return gymnasium.wrappers.TransformObservation(
        env,
        lambda seen: {name: seen[part] for name, part in parts.items()},
        spaces.Dict({name: spaces.Box(box.low[part], box.high[part]) for name, part in parts.items()}),
    )


def two_choices() -> gymnasium.Env[Any, Any]:
    """Actions are a push and a second choice, which changes nothing."""
    env = gymnasium.make("CartPole-v1")
    return gymnasium.wrappers.TransformAction(env, lambda action: action[0], spaces.MultiDiscrete([2, 3]))


def pendulum() -> gymnasium.Env[Any, Any]:
    """Actions are numbers within bounds."""
    return gymnasium.make("Pendulum-v1")

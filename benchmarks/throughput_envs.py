"""Environments of `ppo_throughput.py`, by name."""

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

BUSY_S = 300e-6  # seconds of a busy step
_EDGE_M = 0.5


def cart_pole() -> Any:
    return gymnasium.make("CartPole-v1")


def without_velocities() -> Any:
    from learning_jobs import PositionsOnly

    return PositionsOnly(cart_pole())


def half_cheetah() -> Any:
    return gymnasium.make("HalfCheetah-v5")


def trading() -> Any:
    from trading_envs import market

    from ml_pipeline.trading.accounts.rules import TradingRules
    from ml_pipeline.trading.envs.fast import FastTradingEnv

    return FastTradingEnv(market(1, 16), TradingRules("discrete"), episode_length=256)


def batched(num_envs: int) -> Any:
    from trading_envs import market

    from ml_pipeline.trading.accounts.rules import TradingRules
    from ml_pipeline.trading.envs.batched import BatchedTradingEnv

    return BatchedTradingEnv(market(1, 16), num_envs, TradingRules("discrete"), episode_length=256)


def busy() -> Any:
    from ml_pipeline.models.rl.core.probe_envs import TimedEnv

    return gymnasium.wrappers.TimeLimit(TimedEnv(busy_s=BUSY_S), 500)


class Frames(gymnasium.Env[Any, Any]):
    """Frames of noise, which take no time to make, in episodes of 200 steps."""

    observation_space = spaces.Box(0, 255, (84, 84, 4), np.uint8)
    action_space = spaces.Discrete(4)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._t, self._frames = 0, self.np_random.integers(0, 256, (16, 84, 84, 4), np.uint8)
        return self._frames[0], {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._t += 1
        return self._frames[self._t % 16], float(action == self._t % 4), self._t == 200, False, {}


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


ENVIRONMENTS: dict[str, Callable[[], Any]] = {
    "CartPole-v1": cart_pole,
    "remembered": without_velocities,
    "HalfCheetah-v5": half_cheetah,
    "frames": Frames,
    "trading": trading,
    "busy": busy,
    "masked": masked,
    "two choices": two_choices,
    "in parts": in_parts,
    "Pendulum-v1": pendulum,
}

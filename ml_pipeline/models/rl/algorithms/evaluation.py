"""Evaluation: whole episodes, one after another, in a single environment; the policy does not learn."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np


@dataclass(frozen=True)
class EvaluationResult:
    """Returns and lengths of the episodes, in the order in which they were played."""

    returns: tuple[float, ...]
    lengths: tuple[int, ...]

    @property
    def mean_return(self) -> float:
        return float(np.mean(self.returns))

    @property
    def std_return(self) -> float:
        """Deviation over episodes, ddof 0."""
        return float(np.std(self.returns))


def evaluate(env: gymnasium.Env, act: Callable[[Any], Any], *, n_episodes: int, seed: int) -> EvaluationResult:
    """Play `n_episodes` episodes; episode k is reset with seed + k.

    `act` returns the action for an observation; its `begin_episode`, if it has one, is called before each episode.
    """
    returns, lengths = [], []
    for episode in range(n_episodes):
        getattr(act, "begin_episode", lambda: None)()
        observation, _ = env.reset(seed=seed + episode)
        total, length, done = 0.0, 0, False
        while not done:
            observation, reward, terminated, truncated, _ = env.step(act(observation))
            total += float(reward)
            length += 1
            done = terminated or truncated
        returns.append(total)
        lengths.append(length)
    return EvaluationResult(tuple(returns), tuple(lengths))

"""Evaluation: whole episodes, one after another, in a single environment; the policy does not learn."""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from ml_pipeline.config.errors import UserError
from ml_pipeline.models.rl.core.stepping.errors import InvalidResultError
from ml_pipeline.models.rl.core.stepping.results import checked_step
from ml_pipeline.runtime.acting import begin_episode, reported_mask

_LONG_EPISODE = 10_000


@dataclass(frozen=True)
class EvaluationResult:
    """Returns and lengths of the episodes, in playing order."""

    returns: tuple[float, ...]
    lengths: tuple[int, ...]

    @property
    def mean_return(self) -> float:
        return float(np.mean(self.returns))

    @property
    def std_return(self) -> float:
        """Standard deviation over episodes, ddof 0."""
        return float(np.std(self.returns))


def evaluate(
    env: gymnasium.Env, act: Callable[[Any], Any], *, n_episodes: int, seed: int, most_steps: int | None = None
) -> EvaluationResult:
    """Play `n_episodes` episodes; episode k is reset with seed + k.

    `act` returns the action for an observation. Its `begin_episode`, if it has one, is called before each episode.
    most_steps: limit on the steps of all episodes together. The evaluation ends there, and an unfinished episode does
    not count. Without this limit, an episode of 10,000 steps in an environment without a TimeLimit causes a warning.
    Raises UserError if a step returns an invalid result.
    """
    may_be_endless = most_steps is None and getattr(getattr(env, "spec", None), "max_episode_steps", None) is None
    returns: list[float] = []
    lengths: list[int] = []
    left = math.inf if most_steps is None else most_steps
    for episode in range(n_episodes):
        begin_episode(act)
        observation, _ = env.reset(seed=seed + episode)
        total, length, done = 0.0, 0, False
        while not done:
            if left <= 0:
                return EvaluationResult(tuple(returns), tuple(lengths))
            left -= 1
            try:
                observation, reward, terminated, truncated, _ = checked_step(env.step(act(observation)))
            except InvalidResultError as error:
                raise UserError(f"Evaluation failed in step {length + 1} of episode {episode + 1}: {error}.") from error
            total += reward
            length += 1
            if length == _LONG_EPISODE and may_be_endless:
                warnings.warn(
                    f"episode {episode + 1} of the evaluation has taken {length:,} steps and has not ended; if the "
                    "environment never ends an episode, limit it, as --env-kwargs '{\"max_episode_steps\": 1000}' does",
                    stacklevel=2,
                )
            done = terminated or truncated
        returns.append(total)
        lengths.append(length)
    return EvaluationResult(tuple(returns), tuple(lengths))


def random_actions(space: spaces.Space, *, seed: int) -> Callable[[Any], Any]:
    """A policy that samples every action from the space, among those that a mask in the observation allows."""
    space.seed(seed)

    def act(observation: Any) -> Any:
        mask = reported_mask(None, observation, {})
        if mask is None:
            return space.sample()
        allowed = (np.asarray(mask).reshape(-1) > 0.5).astype(np.int8)
        if isinstance(space, spaces.MultiDiscrete):
            parts = np.split(allowed, np.cumsum(space.nvec.ravel())[:-1])
            return space.sample(mask=tuple(parts))
        return space.sample(mask=allowed)

    return act

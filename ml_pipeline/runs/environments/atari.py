"""The usual preprocessing of Atari games: that of Stable-Baselines3's AtariWrapper, with whole games in evaluation.

Sources: Mnih et al. 2015, doi:10.1038/nature14236; Machado et al. 2018, arXiv:1709.06009.
"""

from typing import Any

import gymnasium
import numpy as np

from ml_pipeline.config.errors import UserError

_NOOP, _FIRE, _UP = 0, 1, 2


def preprocessed(env: gymnasium.Env, env_id: str, *, training: bool) -> gymnasium.Env:
    """Up to 30 idle frames at a reset, each action for 4 frames, grayscale uint8 (84, 84), FIRE where it starts a life.

    training: a lost life ends an episode, and a reward is its sign; else episodes are games, and rewards are points.
    env: made with frameskip=1. Raises UserError if it is no Atari game.
    """
    if not hasattr(env.unwrapped, "ale"):
        raise not_atari(env_id)
    lives = _Lives(gymnasium.wrappers.AtariPreprocessing(env), as_episodes=training)
    return gymnasium.wrappers.TransformReward(lives, _sign) if training else lives


def not_atari(env_id: str) -> UserError:
    """The sentence on another environment."""
    return UserError(f"--atari is for Atari games, such as ale_py:ALE/Pong-v5, but {env_id} is none; leave it out.")


class _Lives(gymnasium.Wrapper):
    """Begins each life with FIRE where the game waits for it.

    as_episodes: the end of a life ends the episode, and a reset without a seed goes on with the next life.
    """

    def __init__(self, env: gymnasium.Env, *, as_episodes: bool) -> None:
        super().__init__(env)
        self._as_episodes = as_episodes
        unwrapped: Any = env.unwrapped
        meanings = unwrapped.get_action_meanings()
        # As Stable-Baselines3: FIRE, then the action after it.
        self._start = (_FIRE, _UP) if len(meanings) > _UP and meanings[_FIRE] == "FIRE" else ()
        self._n_lives = 0
        self._game_over = True

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        goes_on = self._as_episodes and seed is None and not self._game_over
        if goes_on:
            observation, _, terminated, truncated, info = self.env.step(_NOOP)
            goes_on = not (terminated or truncated)
        if not goes_on:
            observation, info = self.env.reset(seed=seed, options=options)
        self._game_over = False
        for action in self._start:
            observation, _, terminated, truncated, info = self.env.step(action)
            if terminated or truncated:
                observation, info = self.env.reset(options=options)
        self._n_lives = self._lives()
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        before, self._n_lives = self._n_lives, self._lives()
        # Some games stay at 0 lives for a while before they are over.
        life_lost = 0 < self._n_lives < before and not (terminated or truncated)
        if life_lost and self._as_episodes:
            return observation, reward, True, False, info
        for start in self._start if life_lost else ():
            observation, more, terminated, truncated, info = self.env.step(start)
            reward = float(reward) + float(more)
            if terminated or truncated:
                break
        self._game_over = terminated or truncated
        return observation, reward, terminated, truncated, info

    def _lives(self) -> int:
        unwrapped: Any = self.env.unwrapped
        return int(unwrapped.ale.lives())


def _sign(reward: Any) -> float:
    return float(np.sign(reward))

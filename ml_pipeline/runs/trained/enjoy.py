"""A trained policy plays whole episodes in the environment of its run, in a window or for a video if asked."""

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np

from ml_pipeline.config.errors import UserError
from ml_pipeline.models.rl.algorithms.evaluation import evaluate
from ml_pipeline.runs.gym_task import EVALUATION_SEED_OFFSET
from ml_pipeline.runs.trained.enjoy_config import EnjoyConfig
from ml_pipeline.runs.trained.load_policy import LoadedPolicy, load_policy
from ml_pipeline.runs.trained.saved_env import RenderMode, make_saved_env
from ml_pipeline.runs.trained.video import VideoFile
from ml_pipeline.runtime.seeding import random_generator
from ml_pipeline.trading.envs.stateful import StatefulTradingEnv

if TYPE_CHECKING:
    from ml_pipeline.runs.trained.load_sb3_policy import LoadedSB3Policy

_EPISODES = 3
_USUAL_FPS = 30.0
# A picture of a market takes 0.15 s to draw and shows all bars so far: so many are enough to watch them grow.
_MARKET_FRAMES = 150


@dataclass(frozen=True)
class Played:
    """An episode that was played to its end."""

    episode: int
    """From 1."""
    episode_return: float
    length: int


@dataclass(frozen=True)
class PlayResult:
    """policy: the one that played. interrupted: what ended it early, Ctrl-C or another signal; None if nothing did.
    n_frames: of the video; 0 without one."""

    policy: "LoadedPolicy | LoadedSB3Policy"
    episodes: tuple[Played, ...]
    interrupted: KeyboardInterrupt | None
    n_frames: int = 0


def play(config: EnjoyConfig, *, on_episode: Callable[[Played], None] = lambda played: None) -> PlayResult:
    """Play as `config` asks, and call `on_episode` after each episode. Ctrl-C ends it; the video keeps its frames.

    Raises UserError if policy, environment, render mode or video cannot be used.
    """
    policy = load_policy(config.run)
    render_mode: RenderMode | None = config.render or ("rgb_array" if config.video else None)
    played: list[Played] = []
    video: VideoFile | None = None
    interrupted: KeyboardInterrupt | None = None
    with ExitStack() as stack:
        env = stack.enter_context(closing(_make_env(policy, render_mode)))
        if config.video is not None:
            video = stack.enter_context(VideoFile(config.video, fps=_fps_of(env)))
            env = _Recorded(env, video, every=_frame_interval(env))
        try:
            for episode in _episodes(config, policy, env):
                played.append(episode)
                on_episode(episode)
        except KeyboardInterrupt as stop:
            interrupted = stop
        except gymnasium.error.DependencyNotInstalled as error:
            raise UserError(f"{_name(policy)} cannot be rendered: {error}") from error
    return PlayResult(policy, tuple(played), interrupted, 0 if video is None else video.n_frames)


class _Recorded(gymnasium.Wrapper):
    """Adds frames to a video: after a reset, after every `every` steps, and after the last step of an episode."""

    def __init__(self, env: gymnasium.Env, video: VideoFile, *, every: int) -> None:
        super().__init__(env)
        self._video = video
        self._every = every

    def reset(self, **arguments: Any) -> tuple[Any, dict[str, Any]]:
        self._n_steps = 0
        result = self.env.reset(**arguments)
        self._video.append(self.env.render())
        return result

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        result = self.env.step(action)
        self._n_steps += 1
        if self._n_steps % self._every == 0 or result[2] or result[3]:
            self._video.append(self.env.render())
        return result


class _Sampling:
    """Acts with the policy, by sampled actions."""

    def __init__(self, policy: "LoadedPolicy | LoadedSB3Policy", generator: np.random.Generator) -> None:
        self._act = policy.act
        self._generator = generator
        self.begin_episode = policy.act.begin_episode

    def __call__(self, observation: Any) -> Any:
        return self._act(observation, generator=self._generator)


def _episodes(config: EnjoyConfig, policy: "LoadedPolicy | LoadedSB3Policy", env: gymnasium.Env) -> Iterator[Played]:
    run = policy.config.run
    seed = run.seed + EVALUATION_SEED_OFFSET if config.seed is None else config.seed
    act = _Sampling(policy, random_generator(seed, "playing")) if config.stochastic else policy.act
    for i in range(config.episodes or (1 if run.env_id is None else _EPISODES)):
        result = evaluate(env, act, n_episodes=1, seed=seed + i)
        yield Played(i + 1, result.returns[0], result.lengths[0])


def _make_env(policy: "LoadedPolicy | LoadedSB3Policy", render_mode: RenderMode | None) -> gymnasium.Env:
    env = make_saved_env(policy.config, policy.task_state, split="test", render_mode=render_mode)
    try:
        policy.check_spaces(env.observation_space, env.action_space)
    except UserError:
        env.close()
        raise
    return env


def _name(policy: "LoadedPolicy | LoadedSB3Policy") -> str:
    return policy.config.run.env_id or "The market"


def _fps_of(env: gymnasium.Env) -> float:
    fps = env.metadata.get("render_fps")
    return float(fps) if isinstance(fps, int | float) and fps > 0 else _USUAL_FPS


def _frame_interval(env: gymnasium.Env) -> int:
    """Steps from one frame to the next."""
    if not isinstance(env, StatefulTradingEnv):
        return 1
    return math.ceil(env.market.n_bars / _MARKET_FRAMES)

"""A Gymnasium environment by its settings: id, keyword arguments, wrappers, frame stacking, Atari preprocessing.

Atari games are preprocessed as by Stable-Baselines3's AtariWrapper; evaluation plays whole games.
Sources: Mnih et al. 2015, doi:10.1038/nature14236; Machado et al. 2018, arXiv:1709.06009.
"""

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Self

import gymnasium
import numpy as np
from gymnasium import spaces

from ml_pipeline.config.errors import UserError, did_you_mean
from ml_pipeline.config.run import RunConfig
from ml_pipeline.models.rl.preprocessing.observations import channels_last, observation_layout
from ml_pipeline.runtime.acting import ACTION_MASK
from ml_pipeline.runtime.user_code import import_by_name

_ATARI_FRAMES = 4


@dataclass(frozen=True, kw_only=True)
class GymEnv:
    """An environment recipe. `make` applies in this order: the id with its keyword arguments, Atari preprocessing,
    the wrappers (first one innermost), and frame stacking.

    frame_stack: number of frames per observation; None: 1, or 4 with `atari`.
    """

    env_id: str
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    atari: bool = False
    wrappers: tuple[str, ...] = ()
    frame_stack: int | None = None

    @classmethod
    def of(cls, run: RunConfig) -> Self:
        """The environment from a run's settings."""
        assert run.env_id is not None
        return cls(
            env_id=run.env_id,
            env_kwargs=run.env_kwargs,
            atari=run.atari,
            wrappers=run.wrappers,
            frame_stack=run.frame_stack,
        )

    @property
    def is_gymnasiums_own(self) -> bool:
        """True if it runs no third-party code."""
        spec = gymnasium.registry.get(self.env_id)
        return spec is not None and str(spec.entry_point).startswith("gymnasium.envs.") and not self.wrappers

    def make(self, *, training: bool = False, render_mode: str | None = None) -> gymnasium.Env:
        """A new environment. training: end Atari episodes at each lost life, and clip rewards to their sign.

        Raises UserError if a wrapper is unusable, the environment is not an Atari game, or it cannot be rendered as
        "human" or "rgb_array". Errors of Gymnasium and of the environment pass through.
        """
        env = self._base(render_mode)
        if self.atari:
            env = preprocessed(env, self.env_id, training=training)
        for name in self.wrappers:
            env = wrapped(env, name)
        n_frames = self.frame_stack or (_ATARI_FRAMES if self.atari else 1)
        return stacked(env, n_frames) if n_frames > 1 else env

    def _base(self, render_mode: str | None) -> gymnasium.Env:
        kwargs = dict(self.env_kwargs)
        if self.atari:
            kwargs = {"frameskip": 1, **kwargs}  # the preprocessing skips frames itself
        if render_mode is None:
            return self._made(kwargs)
        with closing(self._made(kwargs)) as env:
            modes = env.metadata.get("render_modes") or []
        # Gymnasium itself shows the frames of an environment that cannot open a window.
        enough = {"human", "rgb_array"} if render_mode == "human" else {render_mode}
        try:
            if not enough & {*modes}:
                raise TypeError(f"its render modes are {', '.join(map(str, modes)) or 'none'}")
            return gymnasium.make(self.env_id, **{**kwargs, "render_mode": render_mode})
        except (TypeError, gymnasium.error.Error) as error:  # also if the constructor takes no render_mode
            raise UserError(
                f'{self.env_id} cannot be rendered as "{render_mode}": {str(error).rstrip(".")}.'
            ) from error

    def _made(self, kwargs: dict[str, Any]) -> gymnasium.Env:
        try:
            return gymnasium.make(self.env_id, **kwargs)
        except TypeError as error:
            if "'frameskip'" in str(error) and "frameskip" not in self.env_kwargs:
                raise not_atari(self.env_id) from error
            raise


def wrapped(env: gymnasium.Env, name: str) -> gymnasium.Env:
    """`env` in the named wrapper, which is called with the environment alone.

    Raises UserError if the wrapper does not exist, needs more arguments, or does not return an environment.
    """
    wrapper = _load(name)
    try:
        result = wrapper(env)
    except TypeError as error:
        if "required" in str(error) and "argument" in str(error):
            raise UserError(
                f"The wrapper {name} needs more arguments than the environment ({error}); name a function of your "
                "own, such as my_project:wrap, that passes them."
            ) from error
        raise
    if not isinstance(result, gymnasium.Env):
        raise UserError(f"The wrapper {name} must return a gymnasium.Env, but returned a {type(result).__name__}.")
    return result


def _load(name: str) -> Any:
    if ":" in name:
        return import_by_name(name)
    try:
        return getattr(gymnasium.wrappers, name)
    except AttributeError as error:
        near = did_you_mean(name, gymnasium.wrappers.__all__)
        raise UserError(f"gymnasium.wrappers has no {name}.{near} Name your own wrapper as module:Wrapper.") from error


_N_IMAGE_AXES = 3
Change = Callable[[Any], Any]


def stacked(env: gymnasium.Env, n_frames: int) -> gymnasium.Env:
    """`env` with its last `n_frames` observations stacked, oldest first; a reset repeats the first observation.

    Arrays gain a first axis of n_frames. Images, (height, width, channels) or (channels, height, width), become one
    image with n_frames times the channels. The "action_mask" of a Dict is not stacked. Raises UserError if the
    channels could be mistaken for the height or width of the image.
    """
    space, change = _merged(env.observation_space, n_frames)
    frames: Any = gymnasium.wrappers.FrameStackObservation(env, n_frames)
    return gymnasium.wrappers.TransformObservation(frames, change, space)


def _merged(space: spaces.Space, n_frames: int) -> tuple[spaces.Space, Change]:
    """The space of stacked observations, and the function from Gymnasium's stack to an element of it."""
    if isinstance(space, spaces.Dict):
        parts = {
            key: (part, _last) if key == ACTION_MASK else _merged(part, n_frames) for key, part in space.spaces.items()
        }
        merged = spaces.Dict({key: part for key, (part, _) in parts.items()})
        return merged, lambda value: {key: change(value[key]) for key, (_, change) in parts.items()}
    if isinstance(space, spaces.Tuple):
        listed = [_merged(part, n_frames) for part in space.spaces]
        merged_tuple = spaces.Tuple([part for part, _ in listed])
        return merged_tuple, lambda value: tuple(change(each) for each, (_, change) in zip(value, listed, strict=True))
    if isinstance(space, spaces.Box) and space.dtype == np.uint8 and len(space.shape) in (2, _N_IMAGE_AXES):
        return _merged_images(space, n_frames)
    return gymnasium.vector.utils.batch_space(space, n_frames), _unchanged


def _merged_images(space: spaces.Box, n_frames: int) -> tuple[spaces.Box, Change]:
    """`_merged` for images, grayscale too. Raises UserError if channels could be mistaken for height or width."""
    is_grayscale = len(space.shape) < _N_IMAGE_AXES
    frame = (1, *space.shape) if is_grayscale else space.shape
    is_last = not is_grayscale and channels_last(frame)
    change = _unchanged if is_grayscale else _into_channels_last if is_last else _into_channels_first
    low, high = (change(np.stack([bound] * n_frames)) for bound in (space.low, space.high))
    merged = spaces.Box(low, high, dtype=np.uint8)
    is_image = bool(observation_layout(space).images or observation_layout(merged).images)
    if is_image and channels_last(merged.shape) != is_last:
        height, width, n_channels = frame if is_last else (*frame[1:], frame[0])
        most = (height if is_last else width - 1) // n_channels
        raise UserError(
            f"frame_stack {n_frames} gives an image of {height} x {width} pixels {n_frames * n_channels} channels, "
            f"which could be mistaken for its height or width; stack at most {most}."
        )
    return merged, change


def _into_channels_last(frames: np.ndarray) -> np.ndarray:
    """(K, height, width, channels) to (height, width, K * channels)."""
    return np.moveaxis(frames, 0, 2).reshape(*frames.shape[1:3], -1)


def _into_channels_first(frames: np.ndarray) -> np.ndarray:
    """(K, channels, height, width) to (K * channels, height, width)."""
    return frames.reshape(-1, *frames.shape[2:])


def _last(frames: Any) -> Any:
    return frames[-1]


def _unchanged(frames: Any) -> Any:
    return frames


_NOOP, _FIRE, _UP = 0, 1, 2


def preprocessed(env: gymnasium.Env, env_id: str, *, training: bool) -> gymnasium.Env:
    """Up to 30 no-ops at a reset, each action for 4 frames, grayscale uint8 (84, 84), FIRE to start a life.

    training: a lost life ends an episode, and rewards are signs; otherwise episodes are games, and rewards are points.
    env: made with frameskip=1. Raises UserError if it is not an Atari game.
    """
    if not hasattr(env.unwrapped, "ale"):
        raise not_atari(env_id)
    lives = _Lives(gymnasium.wrappers.AtariPreprocessing(env), as_episodes=training)
    return gymnasium.wrappers.TransformReward(lives, _sign) if training else lives


def not_atari(env_id: str) -> UserError:
    """The error for any other environment."""
    return UserError(f"--atari is for Atari games, such as ale_py:ALE/Pong-v5, but {env_id} is not one; leave it out.")


class _Lives(gymnasium.Wrapper):
    """Starts each life with FIRE if the game waits for it.

    as_episodes: a lost life ends the episode, and a reset without a seed continues with the next life.
    """

    def __init__(self, env: gymnasium.Env, *, as_episodes: bool) -> None:
        super().__init__(env)
        self._as_episodes = as_episodes
        unwrapped: Any = env.unwrapped
        meanings = unwrapped.get_action_meanings()
        # As in Stable-Baselines3: FIRE, then the next action.
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

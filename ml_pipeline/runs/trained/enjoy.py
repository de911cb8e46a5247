"""Plays whole episodes with a trained policy in its run's environment, optionally in a window or on video.

Videos are MP4 by PyAV, from the extra video, or GIF by Pillow, which matplotlib requires.
"""

import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

import gymnasium
import numpy as np
from numpy.typing import NDArray

from ml_pipeline.config.errors import UserError, install_extra
from ml_pipeline.models.rl.algorithms.evaluation import evaluate
from ml_pipeline.runs.gym_task import EVALUATION_SEED_OFFSET
from ml_pipeline.runs.trained.configs import EnjoyConfig
from ml_pipeline.runs.trained.load_policy import LoadedPolicy, load_policy
from ml_pipeline.runs.trained.restore import RenderMode, make_saved_env
from ml_pipeline.runtime.seeding import random_generator
from ml_pipeline.trading.envs.stateful import StatefulTradingEnv

if TYPE_CHECKING:
    from av import VideoFrame
    from PIL import Image

    from ml_pipeline.runs.trained.load_sb3_policy import LoadedSB3Policy


_EPISODES = 3
_USUAL_FPS = 30.0
# A market frame takes 0.15 s to draw and shows all bars so far: this many are enough to follow it.
_MARKET_FRAMES = 150


@dataclass(frozen=True)
class Played:
    """An episode played to its end."""

    episode: int
    """From 1."""
    episode_return: float
    length: int


@dataclass(frozen=True)
class PlayResult:
    """policy: the one that played. interrupted: the early end's cause, Ctrl-C or another signal; None if complete.
    n_frames: of the video; 0 without one."""

    policy: "LoadedPolicy | LoadedSB3Policy"
    episodes: tuple[Played, ...]
    interrupted: KeyboardInterrupt | None
    n_frames: int = 0


def play(config: EnjoyConfig, *, on_episode: Callable[[Played], None] = lambda played: None) -> PlayResult:
    """Play by `config`, and call `on_episode` after each episode. Ctrl-C ends it; the video keeps its frames.

    Raises UserError if policy, environment, render mode or video are unusable.
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


Frame = NDArray[np.uint8]

# Browsers slow down a GIF that is faster than this, and GIF hardly compresses between frames.
_GIF_FPS, _GIF_WIDTH = 25.0, 400


class VideoFile:
    """Writes a video frame by frame, within a `with` block; the file appears complete at its end.

    If the block fails, no file is written, and an existing one stays.
    n_frames: number of frames so far.
    """

    def __init__(self, path: Path, *, fps: float) -> None:
        """fps: frames per second. Raises UserError if the suffix is neither .mp4 nor .gif, the extra is missing, or
        the file cannot be written."""
        writers: dict[str, Callable[[Path, float], _Writer]] = {".mp4": _Mp4, ".gif": _Gif}
        if path.suffix.lower() not in writers:
            raise UserError(f"A video is an .mp4 or a .gif, but got {path.name}; name it {path.stem}.mp4.")
        self.path = path
        self.n_frames = 0
        self._shape: tuple[int, ...] | None = None
        self._unfinished = path.with_name(f".unfinished-{path.name}")
        try:
            self._writer = writers[path.suffix.lower()](self._unfinished, fps)
            self._unfinished.touch()  # fail now rather than after the first frame
        except OSError as error:
            raise self._failure(error) from error

    def append(self, frame: Any) -> None:
        """Add a frame: uint8 (height, width, 3), all of one size. Raises UserError for any other frame, or if the
        file cannot be written."""
        array = np.asarray(frame)
        if array.dtype != np.uint8 or array.ndim != 3 or array.shape[2] != 3:
            what = type(frame).__name__ if frame is None else f"{array.dtype} {array.shape}"
            raise UserError(f"render() must return uint8 frames (height, width, 3) for a video, but returned {what}.")
        if self._shape not in (None, array.shape):
            raise UserError(f"Frames of a video must have one size, but after {self._shape} came {array.shape}.")
        self._shape = array.shape
        try:
            self._writer.append(np.ascontiguousarray(array))
        except OSError as error:
            raise self._failure(error) from error
        self.n_frames += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self._writer.close()
            if self.n_frames and error is None:
                self._unfinished.replace(self.path)
        except OSError as failure:
            if error is None:
                raise self._failure(failure) from failure
        finally:
            self._unfinished.unlink(missing_ok=True)

    def _failure(self, error: OSError) -> UserError:
        return UserError(f"The video {self.path} cannot be written: {error.strerror}.")


class _Writer(Protocol):
    def append(self, frame: Frame) -> None: ...

    def close(self) -> None: ...


class _Mp4:
    def __init__(self, path: Path, fps: float) -> None:
        try:
            import av
        except ModuleNotFoundError as error:
            raise UserError(
                f"An .mp4 needs PyAV, which is not installed; {install_extra('video')}, or record a .gif, which "
                "needs no extra."
            ) from error
        self._container = av.open(str(path), "w", format="mp4")
        self._fps = Fraction(fps).limit_denominator(1000)
        self._stream: Any = None
        # Ctrl-C interrupts the main thread, so encoding in another one leaves no frame half encoded.
        self._encoder = ThreadPoolExecutor(1, "video")

    def append(self, frame: Frame) -> None:
        self._encoder.submit(self._encode, frame).result()

    def close(self) -> None:
        with self._encoder:
            self._encoder.submit(self._end).result()

    def _encode(self, frame: Frame) -> None:
        height, width = frame.shape[:2]
        # The format that every player supports needs even height and width.
        even = np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0)))
        if self._stream is None:
            self._stream = self._container.add_stream("libx264", rate=self._fps, pix_fmt="yuv420p")
            self._stream.height, self._stream.width = even.shape[:2]
        self._container.mux(self._stream.encode(_frame_of(even)))

    def _end(self) -> None:
        with self._container:
            if self._stream is not None:
                self._container.mux(self._stream.encode(None))


def _frame_of(array: Frame) -> "VideoFrame":
    from av import VideoFrame

    return VideoFrame.from_ndarray(array)


class _Gif:
    def __init__(self, path: Path, fps: float) -> None:
        self._path = path
        self._every = math.ceil(fps / _GIF_FPS)
        self._frame_ms = 1000 * self._every / fps
        self._n_seen = 0
        self._images: list[Image.Image] = []

    def append(self, frame: Frame) -> None:
        from PIL import Image

        if self._n_seen % self._every == 0:
            image = Image.fromarray(frame)
            image.thumbnail((_GIF_WIDTH, image.height))
            self._images.append(image.quantize(dither=Image.Dither.NONE))  # a third of the memory
        self._n_seen += 1

    def close(self) -> None:
        if self._images:
            first, *others = self._images
            first.save(self._path, format="gif", save_all=True, append_images=others, duration=self._frame_ms, loop=0)


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
    """Acts with the policy's sampled actions."""

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
    """Number of steps per frame."""
    if not isinstance(env, StatefulTradingEnv):
        return 1
    return math.ceil(env.market.n_bars / _MARKET_FRAMES)

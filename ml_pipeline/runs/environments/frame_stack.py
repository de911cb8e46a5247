"""Stacks the last observations into one: numbers side by side, images as channels of one image, both in their dtype."""

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from ml_pipeline.config.errors import UserError
from ml_pipeline.models.rl.preprocessing.observation_layout import channels_last, observation_layout
from ml_pipeline.runtime.action_masks import ACTION_MASK

_N_IMAGE_AXES = 3
Change = Callable[[Any], Any]


def stacked(env: gymnasium.Env, n_frames: int) -> gymnasium.Env:
    """`env` observing its last `n_frames` observations, oldest first; at a reset, the first one so many times.

    Arrays gain a first axis of n_frames, but images (height, width, channels) or (channels, height, width) become one
    image of n_frames times the channels. An "action_mask" in a Dict is the last one, alone. Raises UserError where so
    many channels would be taken for the height or the width of the image.
    """
    space, change = _merged(env.observation_space, n_frames)
    frames: Any = gymnasium.wrappers.FrameStackObservation(env, n_frames)
    return gymnasium.wrappers.TransformObservation(frames, change, space)


def _merged(space: spaces.Space, n_frames: int) -> tuple[spaces.Space, Change]:
    """The space of stacked observations, and from what Gymnasium stacks to an element of it."""
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
    """The same for images, grayscale ones too. Raises UserError where channels would be taken for height or width."""
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
            f"frame_stack {n_frames} makes {n_frames * n_channels} channels of an image of {height} x {width} points, "
            f"which cannot be told from its height or width; stack at most {most}."
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

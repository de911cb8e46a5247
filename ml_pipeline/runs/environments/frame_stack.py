"""Stacks the last observations into one: numbers side by side, images as channels of one image, both in their dtype."""

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from ml_pipeline.runtime.action_masks import ACTION_MASK

_N_IMAGE_AXES = 3
Change = Callable[[Any], Any]


def stacked(env: gymnasium.Env, n_frames: int) -> gymnasium.Env:
    """`env` observing its last `n_frames` observations, oldest first; at a reset, the first one so many times.

    Arrays gain a first axis of n_frames, but images (height, width, channels) or (channels, height, width) become one
    image of n_frames times the channels. An "action_mask" in a Dict is the last one, alone.
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
    if isinstance(space, spaces.Box) and space.dtype == np.uint8 and len(space.shape) == _N_IMAGE_AXES:
        change = _into_channels_last if space.shape[2] <= space.shape[0] else _into_channels_first
        low, high = (change(np.stack([bound] * n_frames)) for bound in (space.low, space.high))
        return spaces.Box(low, high, dtype=np.uint8), change
    return gymnasium.vector.utils.batch_space(space, n_frames), _unchanged


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

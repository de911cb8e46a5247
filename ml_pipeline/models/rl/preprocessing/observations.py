"""From the observations of an environment to the inputs of a network, and the meaning of their columns.

N environments, D observation size.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from ml_pipeline.models.rl.preprocessing.normalization import CLIP, ObservationNormalizer
from ml_pipeline.models.rl.preprocessing.spaces import UnsupportedSpace, flat_size, observation_encoder
from ml_pipeline.runtime.acting import ACTION_MASK

Array = np.ndarray


class ObservationPreprocessor:
    """Encodes the observations of one space as (N, D), then normalizes them by running statistics.

    `encode` takes a batch from a vector environment, and may return a view of it. `size` is D. `dtype` is float32, or
    uint8 if observations consist of images only, whose rollouts then take a quarter of the memory. `layout` describes
    the columns. `normalizer` is None if nothing is normalized; images never are.
    """

    def __init__(
        self, space: spaces.Space, *, normalize: bool, clip: float = CLIP, images_of_any_size: bool = False
    ) -> None:
        """space: of a single environment. clip: bound of normalized columns. images_of_any_size: see `image_shape`.

        Raises UnsupportedSpace if observations do not have a fixed size.
        """
        self.layout = observation_layout(space, images_of_any_size=images_of_any_size)
        self.dtype: type = np.uint8 if self.layout.is_images_alone else np.float32
        self.encode, self.size = observation_encoder(space, dtype=self.dtype)
        columns = None if self.layout.is_plain else self.layout.numbers
        normalize = normalize and not self.layout.is_images_alone
        self.normalizer = ObservationNormalizer(self.size, columns=columns, clip=clip) if normalize else None

    def encode_one(self, observation: Any) -> Array:
        """A single observation as (1, D), always a copy."""
        return self.encode(observation).reshape(1, self.size).copy()

    def process_one(self, observation: Any) -> Array:
        """A single observation, encoded and normalized, (1, D)."""
        return self.normalize(self.encode_one(observation))

    def normalize(self, encoded: Array) -> Array:
        """Normalize encoded observations, (N, D), without changing the statistics."""
        return encoded if self.normalizer is None else self.normalizer(encoded)


@dataclass(frozen=True)
class ImageColumns:
    """The columns of an image, and its shape as (channels, height, width).

    channels_last: True if the environment orders the pixels as (height, width, channels).
    """

    columns: slice
    shape: tuple[int, int, int]
    channels_last: bool


@dataclass(frozen=True)
class ObservationLayout:
    """The columns of numbers, of images and of the action mask; together, these are all D columns of the space."""

    numbers: np.ndarray
    images: tuple[ImageColumns, ...]
    mask: slice | None
    space: spaces.Space

    @property
    def is_plain(self) -> bool:
        """Whether every column is a number."""
        return not self.images and self.mask is None

    @property
    def is_images_alone(self) -> bool:
        """Whether every column is a pixel of an image."""
        return bool(self.images) and not len(self.numbers) and self.mask is None


_SMALLEST_IMAGE = 36  # what the convolutions of NatureCNN need


def observation_layout(space: spaces.Space, *, images_of_any_size: bool = False) -> ObservationLayout:
    """The columns into which `observation_encoder` encodes this space of a single environment.

    Images: see `image_shape`. A mask is the part "action_mask" of a Dict. Raises UnsupportedSpace if the mask does not
    consist of zeros and ones.
    """
    numbers: list[int] = []
    images: list[ImageColumns] = []
    mask = None
    start = 0
    for key, part, size in _leaves(space):
        columns = slice(start, start + size)
        start += size
        if key == ACTION_MASK:
            _check_mask(part)
            mask = columns
        elif (image := image_shape(part, any_size=images_of_any_size)) is not None:
            images.append(ImageColumns(columns, *image))
        else:
            numbers.extend(range(columns.start, columns.stop))
    return ObservationLayout(np.array(numbers, dtype=np.int64), tuple(images), mask, space)


def image_shape(space: spaces.Space, *, any_size: bool = False) -> tuple[tuple[int, int, int], bool] | None:
    """The channels, height and width of an image, and whether channels come last; None if the space is no image.

    An image is a Box of uint8 with three dimensions, the smallest first or last, and at least 36 x 36 pixels.
    any_size: it may be smaller if its values are 0 to 255; our own convolutions could not read it.
    """
    if not isinstance(space, spaces.Box) or space.dtype != np.uint8 or len(space.shape) != 3:
        return None
    is_last = channels_last(space.shape)
    channels, height, width = np.roll(space.shape, 1).tolist() if is_last else space.shape
    is_small = min(height, width) < _SMALLEST_IMAGE
    if is_small and not (any_size and space.low.max() == 0 and space.high.min() == 255):
        return None
    return (channels, height, width), is_last


def channels_last(shape: Sequence[int]) -> bool:
    """Whether an image of this shape is (height, width, channels), rather than (channels, height, width).

    >>> channels_last((84, 84, 4)), channels_last((4, 84, 84))
    (True, False)
    """
    return shape[2] <= shape[0]


def _leaves(space: spaces.Space, key: str | None = None) -> Iterator[tuple[str | None, spaces.Space, int]]:
    """The parts in encoding order: the key if it is in a Dict, the space, and the number of its columns."""
    if isinstance(space, spaces.Dict):
        for name, part in space.spaces.items():
            yield from _leaves(part, name)
    elif isinstance(space, spaces.Tuple):
        for part in space.spaces:
            yield from _leaves(part)
    else:
        yield key, space, flat_size(space, key)


def _check_mask(part: spaces.Space) -> None:
    binary = isinstance(part, spaces.MultiBinary)
    flags = isinstance(part, spaces.Box) and part.low.min() >= 0 and part.high.max() <= 1
    if not (binary or flags) or math.prod(part.shape or ()) == 0:
        raise UnsupportedSpace(
            f'The observation\'s part "{ACTION_MASK}" must be MultiBinary or a Box of zeros and ones, but is {part}.'
        )

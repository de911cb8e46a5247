"""From the observations of an environment to what a network reads. N environments, D observation size."""

from typing import Any

import numpy as np
from gymnasium import spaces

from ml_pipeline.models.rl.preprocessing.normalization import CLIP, ObservationNormalizer
from ml_pipeline.models.rl.preprocessing.observation_layout import observation_layout
from ml_pipeline.models.rl.preprocessing.spaces import observation_encoder

Array = np.ndarray


class ObservationPreprocessor:
    """Encodes the observations of one space as (N, D), then normalizes them by running statistics.

    `encode` does the first, of a batch as a vector environment gives it; it may return a view of what it was given.
    `size` is D, `dtype` is float32, or uint8 where observations are images alone, whose rollouts then take a quarter of
    the memory. `layout` says what the columns are. `normalizer` is None if nothing is normalized; images never are.
    """

    def __init__(self, space: spaces.Space, *, normalize: bool, clip: float = CLIP) -> None:
        """space: of a single environment. clip: bounds what is normalized.

        Raises UnsupportedSpace if its observations are not of fixed size.
        """
        self.layout = observation_layout(space)
        self.dtype: type = np.uint8 if self.layout.is_images_alone else np.float32
        self.encode, self.size = observation_encoder(space, dtype=self.dtype)
        columns = None if self.layout.is_plain else self.layout.numbers
        normalize = normalize and not self.layout.is_images_alone
        self.normalizer = ObservationNormalizer(self.size, columns=columns, clip=clip) if normalize else None

    def encode_one(self, observation: Any) -> Array:
        """A single observation as (1, D), never a view of it."""
        return self.encode(observation).reshape(1, self.size).copy()

    def process_one(self, observation: Any) -> Array:
        """A single observation, encoded and normalized, (1, D)."""
        return self.normalize(self.encode_one(observation))

    def normalize(self, encoded: Array) -> Array:
        """Encoded observations, (N, D), as the network reads them; the statistics do not change."""
        return encoded if self.normalizer is None else self.normalizer(encoded)

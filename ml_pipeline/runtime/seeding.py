"""Random generators of a run: one for each purpose, so that no draw depends on how often another purpose has drawn."""

import zlib
from typing import Any

import numpy as np


def random_generator(seed: int, purpose: str) -> np.random.Generator:
    """A generator that depends on the run's seed and on what it is for, and on nothing else.

    >>> bool(random_generator(3, "actions").random() == random_generator(3, "actions").random())
    True
    >>> bool(random_generator(3, "actions").random() == random_generator(3, "minibatches").random())
    False
    """
    return np.random.Generator(np.random.PCG64([seed, zlib.crc32(purpose.encode())]))


def generator_state(generator: np.random.Generator) -> dict[str, Any]:
    """What `restore_generator` needs, as plain numbers and strings."""
    return dict(generator.bit_generator.state)


def restore_generator(generator: np.random.Generator, state: dict[str, Any]) -> None:
    """Let `generator` go on where the one that gave `state` stood."""
    generator.bit_generator.state = state

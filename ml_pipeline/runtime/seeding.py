"""Random generators of a run: one for each purpose, so that no draw depends on how often another purpose has drawn.

And random numbers for many environments at once: row i has a generator of its own, seeded `seed + i`. SplitMix64: the
state of a row is one int64, and its k-th number from there on is a hash of the state plus k times a constant. Integers
wrap around, in NumPy arrays, torch tensors and machine code alike, so that all of them, on any device, draw the same
bits. Source: Steele, Lea and Flood 2014, "Fast Splittable Pseudorandom Number Generators", with the constants of Java's
SplittableRandom.
"""

import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray


def _wrapped(number: int) -> int:
    """The int64 with the low 64 bits of a number."""
    return (number + 2**63) % 2**64 - 2**63


_INCREMENT = 0x9E3779B97F4A7C15
_FIRST_FACTOR, _SECOND_FACTOR = _wrapped(0xBF58476D1CE4E5B9), _wrapped(0x94D049BB133111EB)
_LOW_32, _LOW_33, _LOW_34, _LOW_37 = (2**n - 1 for n in (32, 33, 34, 37))


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


def row_generators(seed: int, n: int) -> NDArray[np.int64]:
    """The states (n,) of n rows; that of row i depends on `seed + i` alone."""
    return np.asarray(mixed(np.arange(n, dtype=np.int64) + _wrapped(seed)))


def advanced(states: Any, n_numbers: int) -> Any:
    """The states after so many numbers; `mixed` makes them the last of these."""
    return states + _wrapped(_INCREMENT * n_numbers)


def mixed(states: Any) -> Any:
    """The random number of each state: an int64, all 64 bits random."""
    # A shift repeats the sign; the masks put zeros in its place.
    bits = (states ^ (states >> 30 & _LOW_34)) * _FIRST_FACTOR
    bits = (bits ^ (bits >> 27 & _LOW_37)) * _SECOND_FACTOR
    return bits ^ (bits >> 31 & _LOW_33)


def below(limits: Any, bits: Any) -> Any:
    """Whole numbers from 0 to limits - 1 of random numbers; the limits are from 1 to 2**31.

    One is more likely than another by limits / 2**32 of its probability at most.
    """
    return (bits & _LOW_32) * limits >> 32


def within(low: float, high: float, bits: Any) -> Any:
    """Numbers from low to high of random numbers that were converted to floats."""
    return bits * ((high - low) * 2.0**-64) + (low + high) / 2

"""Random generators of a run, one per purpose, so draws for one purpose do not depend on draws for another.

Also random numbers for many environments at once, by SplitMix64: row i has its own generator, seeded `seed + i`. The
state of a row is one int64; its k-th number is a hash of the state plus k times a constant. Integers wrap around in
NumPy arrays, torch tensors and machine code alike, so all of them draw the same bits on any device. Source: Steele, Lea
and Flood 2014, "Fast Splittable Pseudorandom Number Generators", with the constants of Java's SplittableRandom.
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
    """A generator that depends only on the run's seed and on its purpose.

    >>> bool(random_generator(3, "actions").random() == random_generator(3, "actions").random())
    True
    >>> bool(random_generator(3, "actions").random() == random_generator(3, "minibatches").random())
    False
    """
    return np.random.Generator(np.random.PCG64([seed, zlib.crc32(purpose.encode())]))


def generator_state(generator: np.random.Generator) -> dict[str, Any]:
    """The state for `restore_generator`, as numbers and strings."""
    return dict(generator.bit_generator.state)


def restore_generator(generator: np.random.Generator, state: dict[str, Any]) -> None:
    """Set `generator` to a state from `generator_state`."""
    generator.bit_generator.state = state


def row_generators(seed: int, n: int) -> NDArray[np.int64]:
    """The states (n,) of n rows; the state of row i depends only on `seed + i`."""
    return np.asarray(mixed(np.arange(n, dtype=np.int64) + _wrapped(seed)))


def advanced(states: Any, n_numbers: int) -> Any:
    """The states after n_numbers draws; `mixed` turns them into the last number drawn."""
    return states + _wrapped(_INCREMENT * n_numbers)


def mixed(states: Any) -> Any:
    """The random number of each state: an int64 with 64 random bits."""
    # A right shift copies the sign bit; the masks clear those copies.
    bits = (states ^ (states >> 30 & _LOW_34)) * _FIRST_FACTOR
    bits = (bits ^ (bits >> 27 & _LOW_37)) * _SECOND_FACTOR
    return bits ^ (bits >> 31 & _LOW_33)


def below(limits: Any, bits: Any) -> Any:
    """Integers from 0 to limits - 1 from random numbers; limits: 1 to 2**31.

    Probabilities differ by a relative bias of at most limits / 2**32.
    """
    return (bits & _LOW_32) * limits >> 32


def within(low: float, high: float, bits: Any) -> Any:
    """Numbers from low to high, from random numbers converted to floats."""
    return bits * ((high - low) * 2.0**-64) + (low + high) / 2

"""Columns of numbers and words, packed for a page: steps of whole numbers, deflated, as text.

Neighbours of a curve differ by little, so that 100,000 of them take some 150 kB in place of the 900 kB of their digits.
`assets/report.js` unpacks them.
"""

import zlib
from base64 import b64encode
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

# Numbers are rounded to so many levels between the smallest and the largest: finer than a screen draws, zoomed in too.
_LEVELS = 2**18


def pack_numbers(values: ArrayLike) -> dict[str, Any]:
    """Numbers (n,), rounded to 262,144 levels of their range; NaN stays NaN, infinity becomes NaN."""
    numbers = np.asarray(values, dtype=np.float64)
    finite = np.isfinite(numbers)
    low, high = (float(numbers[finite].min()), float(numbers[finite].max())) if finite.any() else (0.0, 0.0)
    step = (high - low) / _LEVELS or abs(low) / _LEVELS or 1.0
    levels = np.zeros(len(numbers), dtype=np.int64)  # 0 stands for NaN
    levels[finite] = np.rint((numbers[finite] - low) / step).astype(np.int64) + 1
    return {"first": low - step, "step": step, "size": len(levels), "missing": True, "data": _deflated(levels)}


def pack_exactly(values: ArrayLike) -> dict[str, Any]:
    """Numbers (n,) digit by digit, for the few that a person reads; NaN and infinity become none."""
    numbers = np.asarray(values, dtype=np.float64)
    return {"plain": [number if np.isfinite(number) else None for number in numbers.tolist()]}


def pack_whole_numbers(values: ArrayLike) -> dict[str, Any]:
    """Whole numbers (n,), exact; they may lie at most 2**31 common steps apart, as times of bars do."""
    numbers = np.asarray(values, dtype=np.int64)
    first = int(numbers[0]) if len(numbers) else 0
    step = int(np.gcd.reduce(numbers - first)) or 1 if len(numbers) else 1
    return {
        "first": first,
        "step": step,
        "size": len(numbers),
        "missing": False,
        "data": _deflated((numbers - first) // step),
    }


def pack_times(times: NDArray[np.datetime64]) -> dict[str, Any]:
    """Times (n,) as seconds since 1970, exact."""
    return pack_whole_numbers(times.astype("datetime64[s]").astype(np.int64))


def pack_words(words: Sequence[str]) -> dict[str, Any]:
    """Words (n,), each of which is written once."""
    known = sorted(set(words))
    place = {word: i for i, word in enumerate(known)}
    return {"words": known, **pack_whole_numbers([place[word] for word in words])}


def _deflated(levels: NDArray[np.int64]) -> str:
    """Differences of neighbours, small ones of either sign as small numbers, byte by byte of equal weight."""
    steps = np.diff(levels, prepend=0)
    if len(steps) and np.abs(steps).max() >= 2**31:
        raise ValueError("Numbers lie more than 2**31 steps apart.")
    folded = ((steps << 1) ^ (steps >> 63)).astype("<u4")
    planes = folded.view(np.uint8).reshape(-1, 4).T.tobytes()
    return b64encode(zlib.compress(planes, 9)).decode()

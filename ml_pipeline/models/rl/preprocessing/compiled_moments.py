"""Running statistics in compiled code: observations of one step, and rewards of many. Needs numba (extra `fast`).

The bits are those of `normalization`, which tests compare: sums in the order of NumPy, and no fused multiply-add. N
environments, at most `MOST_ROWS`, T steps, D observation size, K normalized columns.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from ml_pipeline.runtime.code_cache import keep_code

Array = np.ndarray
f32 = np.float32

MOST_ROWS = 128
"""NumPy adds more numbers than this in parts. Sums of this length take longer than calls of NumPy."""
_LANES = 8
scratch = np.empty(MOST_ROWS)
"""Memory for all callers. Calls hold the interpreter's lock, so only one thread uses it at a time."""


class Running(NamedTuple):
    """`RunningMoments`. mean, variance: float64 (K,), of n samples, updated in place. scratch: float64."""

    mean: Array
    variance: Array
    n: int
    scratch: Array = scratch


class Normalization(NamedTuple):
    """columns: int64 (K,), the columns to normalize. shift, scale: float32 (1, K), updated in place."""

    columns: Array
    shift: Array
    scale: Array
    clip: float
    epsilon: float


class Scaling(NamedTuple):
    """returns: float64 (N,), discounted returns so far, updated in place."""

    returns: Array
    gamma: float
    clip: float
    epsilon: float


# These functions allocate nothing; the caller owns the arrays.
_OPTIONS: dict[str, Any] = {"error_model": "numpy", "_nrt": False}
_INNER: dict[str, Any] = {**_OPTIONS, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
_jit_entry: Callable[[Any], Any] = njit(**_OPTIONS)
_jit: Callable[[Any], Any] = njit(**_INNER)
"""For functions that only compiled code calls, which saves a fifth of compiling. Python calls those of `_jit_entry`."""


def _kept(function: Any) -> Any:
    return keep_code(_jit_entry(function), made_of=())


@_jit
def _sum(numbers: Array, in_lanes: bool) -> float:
    """The sum of float64 (N,). in_lanes: in the order of NumPy for contiguous numbers; else one by one."""
    first, total = 0, 0.0
    if in_lanes and len(numbers) >= _LANES:
        first = len(numbers) // _LANES * _LANES
        for four in range(0, _LANES, 4):
            of_four = 0.0
            for two in range(four, four + 4, 2):
                left, right = 0.0, 0.0
                for i in range(two, first, _LANES):
                    left += numbers[i]
                    right += numbers[i + 1]
                of_four += left + right
            total += of_four
    for i in range(first, len(numbers)):
        total += numbers[i]
    return total


@_jit
def _merge(samples: Array, in_lanes: bool, k: int, running: Running, count: int) -> None:
    """`RunningMoments.update` for component k. samples: float64 (N,), overwritten. count: the samples so far."""
    n, mean, variance = len(samples), running.mean, running.variance
    of_samples = _sum(samples, in_lanes) / n
    for i in range(n):
        samples[i] = (samples[i] - of_samples) * (samples[i] - of_samples)
    squares = _sum(samples, in_lanes)
    difference, total = of_samples - mean[k], count + n
    variance[k] = ((variance[k] * count + squares) + difference * difference * (count * n / total)) / total
    mean[k] += difference * (n / total)


@_kept
def learn_and_normalize(observations: Array, running: Running, settings: Normalization, normalized: Array) -> None:
    """`ObservationNormalizer`: learn from observations and fill normalized, both float32 (N, D)."""
    n, size = observations.shape
    columns, shift, scale = settings.columns, settings.shift, settings.scale
    low, high, samples = f32(-settings.clip), f32(settings.clip), running.scratch[:n]
    in_lanes = len(columns) < size or size == 1
    if len(columns) < size:
        for i in range(n):
            for j in range(size):
                normalized[i, j] = observations[i, j]
    for k in range(len(columns)):
        j = columns[k]
        for i in range(n):
            samples[i] = observations[i, j]
        _merge(samples, in_lanes, k, running, running.n)
        shift[0, k] = f32(running.mean[k])
        scale[0, k] = f32(1.0 / math.sqrt(running.variance[k] + settings.epsilon))
        for i in range(n):
            x = (observations[i, j] - shift[0, k]) * scale[0, k]
            normalized[i, j] = low if x < low else high if x > high else x


@_kept
def scale_rewards(rewards: Array, done: Array, running: Running, settings: Scaling, scaled: Array) -> None:
    """`RewardScaler`: learn from T steps, one after another, and fill scaled.

    rewards, scaled: float64 (T, N). done: bool (T, N).
    """
    n_steps, num_envs = rewards.shape
    returns, clip, samples = settings.returns, settings.clip, running.scratch[:num_envs]
    for t in range(n_steps):
        for i in range(num_envs):
            returns[i] = returns[i] * settings.gamma + rewards[t, i]
            samples[i] = returns[i]
        _merge(samples, True, 0, running, running.n + t * num_envs)
        deviation = math.sqrt(running.variance[0] + settings.epsilon)
        for i in range(num_envs):
            x = rewards[t, i] / deviation
            scaled[t, i] = -clip if x < -clip else clip if x > clip else x
            if done[t, i]:
                returns[i] = 0.0

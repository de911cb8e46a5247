"""Running normalization of observations, rewards and values.

Statistics are float64 and change only in `update`, which neither the policy's update nor an evaluation calls.
"""

import math
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray

CLIP = 10.0
EPSILON = 1e-8


class Moments(NamedTuple):
    """Of n samples; mean and variance are arrays or tensors (size,)."""

    mean: Any
    variance: Any
    n: int


def merged(known: Moments, mean: Any, squares: Any, n: int) -> Moments:
    """`known` merged with n more samples, of this mean and this sum of squared differences from it; each (size,).

    Source: Chan, Golub and LeVeque 1979, Updating Formulae and a Pairwise Algorithm for Computing Sample Variances.
    """
    difference = mean - known.mean
    total = known.n + n
    squares = known.variance * known.n + squares
    variance = (squares + difference**2 * (known.n * n / total)) / total
    return Moments(known.mean + difference * (n / total), variance, total)


class RunningMoments:
    """Mean and variance of a stream of batches, merged exactly."""

    def __init__(self, size: int) -> None:
        self.mean = np.zeros(size)
        self.variance = np.ones(size)
        self.count = 0

    def update(self, batch: Array) -> None:
        """Merge a batch, float (B, size)."""
        mean = batch.mean(axis=0, dtype=np.float64)
        self.merge(mean, ((batch - mean) ** 2).sum(axis=0), len(batch))

    def merge(self, mean: Array, squares: Array, n: int) -> None:
        """Merge n samples, of this mean and this sum of squared differences from it, float64 (size,)."""
        known = Moments(self.mean, self.variance, self.count)
        self.mean, self.variance, self.count = merged(known, mean, squares, n)

    def state_dict(self) -> dict[str, Any]:
        return {"mean": self.mean.tolist(), "variance": self.variance.tolist(), "count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        mean, variance = (np.asarray(state[name], dtype=np.float64) for name in ("mean", "variance"))
        if not mean.shape == variance.shape == self.mean.shape:
            raise ValueError(f"running moments of {len(self.mean)} components are wanted, but got {mean.shape}")
        self.mean, self.variance = mean, variance
        self.count = int(state["count"])


class ObservationNormalizer:
    """Scales each component of an observation to mean 0 and standard deviation 1, and clips it to -clip and clip.

    columns: int64, the components to normalize; None means all.
    """

    def __init__(
        self, size: int, *, columns: Array | None = None, clip: float = CLIP, epsilon: float = EPSILON
    ) -> None:
        self.moments = RunningMoments(size if columns is None else len(columns))
        self._columns = columns
        self.clip = clip
        self._low, self._high = (np.array(bound, dtype=np.float32) for bound in (-clip, clip))
        self._epsilon = epsilon
        self._refresh()

    def update(self, observations: Array) -> None:
        """Learn from float32 (N, D)."""
        self.moments.update(observations if self._columns is None else observations[:, self._columns])
        self._refresh()

    def __call__(self, observations: Array) -> Array:
        """Float32 (..., N, D) in, a new float32 (..., N, D) out.

        One row of 4 numbers takes 1.2 us; 3.4 by np.clip, with Python's floats, and broadcasting (D,) to (1, D).
        """
        if self._columns is not None:
            mixed = observations.copy()
            mixed[..., self._columns] = self._scaled(observations[..., self._columns])
            return mixed
        return self._scaled(observations)

    def of_columns(self, size: int) -> tuple[Array, Array, Array]:
        """Shift, scale and clipping bound of all D columns, each float32 (D,); 0, 1 and infinity for those that are not
        normalized."""
        columns = slice(None) if self._columns is None else self._columns
        shift, scale, bound = np.zeros(size, np.float32), np.ones(size, np.float32), np.full(size, np.inf, np.float32)
        shift[columns], scale[columns], bound[columns] = self._shift[0], self._scale[0], self._high
        return shift, scale, bound

    def _scaled(self, observations: Array) -> Array:
        scaled = (observations - self._shift) * self._scale
        return scaled.clip(self._low, self._high, out=scaled)

    def state_dict(self) -> dict[str, Any]:
        return self.moments.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.moments.load_state_dict(state)
        self._refresh()

    def _refresh(self) -> None:
        self._shift = self.moments.mean.astype(np.float32)[None]
        self._scale = (1.0 / np.sqrt(self.moments.variance + self._epsilon)).astype(np.float32)[None]


class RewardScaler:
    """Divides rewards by the standard deviation of the discounted return; no reward changes its sign.

    The discounted return of an environment starts again at 0 with each episode.
    Source: Engstrom et al. 2020, Implementation Matters in Deep Policy Gradients, arXiv:2005.12729, section 3.
    """

    def __init__(self, num_envs: int, *, gamma: float, clip: float = CLIP, epsilon: float = EPSILON) -> None:
        self._returns = np.zeros(num_envs)
        self._moments = RunningMoments(1)
        self._gamma = gamma
        self._clip = clip
        self._epsilon = epsilon

    def __call__(self, rewards: Array, done: Array) -> Array:
        """Learn from one step's rewards, float (N,), and return them scaled, float (N,); done: bool (N,)."""
        self._returns = self._returns * self._gamma + rewards
        self._moments.update(self._returns[:, None])
        self._returns[done] = 0.0
        deviation = np.sqrt(self._moments.variance[0] + self._epsilon)
        return np.clip(rewards / deviation, -self._clip, self._clip)

    def state_dict(self) -> dict[str, Any]:
        return {"moments": self._moments.state_dict(), "returns": self._returns.tolist()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._moments.load_state_dict(state["moments"])
        self._returns = np.asarray(state["returns"], dtype=np.float64).reshape(self._returns.shape)


class ValueNormalizer:
    """Mean and standard deviation of all returns so far; a critic that predicts in these units has targets of size 1.

    Source: van Hasselt et al. 2016, Learning values across many orders of magnitude, arXiv:1602.07714 (Pop-Art), with
    plain moments in place of decaying ones.
    """

    def __init__(self) -> None:
        self._moments = RunningMoments(1)

    @property
    def mean(self) -> float:
        return float(self._moments.mean[0])

    @property
    def deviation(self) -> float:
        return math.sqrt(self._moments.variance[0] + 1e-8)

    def update(self, returns: Array) -> tuple[float, float]:
        """Learn from float (B,). Returns (a, b): a prediction p in the old units is a * p + b in the new ones."""
        mean, deviation = self.mean, self.deviation
        self._moments.update(returns[:, None])
        return deviation / self.deviation, (mean - self.mean) / self.deviation

    def state_dict(self) -> dict[str, Any]:
        return self._moments.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._moments.load_state_dict(state)

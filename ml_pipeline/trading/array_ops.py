"""What batches of accounts need of NumPy's arrays. `tensor_ops` has the same of torch's tensors, on any device.

N accounts, A assets, T bars.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ml_pipeline.trading.execution import Kernel, Ops, make_kernel

NUMPY_OPS = Ops(where=np.where, least=np.minimum, greatest=np.maximum, floor=np.floor, log=np.log, sqrt=np.sqrt)


class NumpyArrays:
    """Arrays of money (float64), of observations (float32), of indices and of flags, on the host."""

    ops = NUMPY_OPS
    money = np.float64

    def __init__(self) -> None:
        self.kernel: Kernel = make_kernel(NUMPY_OPS)

    def seed(self, generator: np.random.Generator) -> None:
        """Draw from here on with `generator`."""
        self._generator = generator

    def random(self, n: int) -> NDArray[np.float64]:
        """n numbers from 0 to below 1."""
        return self._generator.random(n)

    def array(self, values: Any, dtype: Any = None) -> Any:
        return np.ascontiguousarray(values, dtype=dtype)

    def full(self, shape: tuple[int, ...], value: float | bool, dtype: Any = None) -> Any:
        return np.full(shape, value, dtype=dtype)

    def take(self, table: Any, rows: Any) -> Any:
        """table: (A, T); the columns `rows`: (A, N)."""
        return table.take(rows, axis=1)

    def observations(self, features: Any, rows: Any, window: int, weights: Any) -> Any:
        """float32 (N, W * D + A): the features (T, D) of the `window` rows up to `rows`, then weights (A, N)."""
        n_features = features.shape[1]
        seen = np.empty((len(rows), window * n_features + len(weights)), dtype=np.float32)
        for i in range(window):
            seen[:, i * n_features : (i + 1) * n_features] = features.take(rows - (window - 1 - i), axis=0)
        seen[:, window * n_features :] = weights.T
        return seen

    def any(self, flags: Any) -> bool:
        return bool(flags.any())

    def finite(self, values: Any) -> bool:
        return bool(np.isfinite(values).all())

    def to_indices(self, values: Any) -> Any:
        return values.astype(np.int64)

    def floats(self, values: Any) -> Any:
        return values.astype(np.float32)

"""Checks the results of environments, writes observations into the rows of a batch, and reads them back as copies.

Each error names the unusable value and the remedy. Spaces whose values have one shape (Box, Discrete, MultiDiscrete,
MultiBinary, and Dict and Tuple of them) become NumPy arrays with one row per environment. All others (Text, Graph,
Sequence, OneOf, custom spaces) are not of fixed size.
"""

import math
import reprlib
import warnings
from numbers import Real
from typing import Any, Protocol

import numpy as np
from gymnasium import Space, spaces

from ml_pipeline.models.rl.core.stepping.errors import InvalidResultError

_REAL_KINDS = "fiub"  # of NumPy: float, int, unsigned, bool


def checked_step(result: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
    """The five parts of a result of step(). Raises InvalidResultError if one cannot be used.

    The observation is checked when it is written into its row.
    """
    try:
        observation, reward, terminated, truncated, info = result
    except (TypeError, ValueError):
        received = f"{len(result)} values" if isinstance(result, (tuple, list)) else f"a {type(result).__name__}"
        expected = "(observation, reward, terminated, truncated, info)"
        raise InvalidResultError("the result of step()", expected, received, "return all five") from None
    if not isinstance(reward, float):
        reward = _real(reward)
    if not math.isfinite(reward):
        remedy = "look for a division by zero, a logarithm or an overflow in the environment"
        raise InvalidResultError("reward", "a finite number", "NaN" if math.isnan(reward) else f"{reward}", remedy)
    if terminated is not False or truncated is not False:
        terminated, truncated = _flag("terminated", terminated), _flag("truncated", truncated)
    if not isinstance(info, dict):
        raise InvalidResultError("info", "a dict", f"a {type(info).__name__}", "return {} if there is none")
    return observation, reward, terminated, truncated, info


def checked_reset(result: Any) -> tuple[Any, dict[str, Any]]:
    """The two parts of a result of reset(). Raises InvalidResultError if it is anything else."""
    if not isinstance(result, (tuple, list)) or len(result) != 2 or not isinstance(result[1], dict):
        received = f"{len(result)} values" if isinstance(result, (tuple, list)) else f"a {type(result).__name__}"
        if received == "2 values":
            received = f"a {type(result[1]).__name__} for info"
        raise InvalidResultError("the result of reset()", "(observation, info dict)", received, "return both")
    return result[0], result[1]


def _real(reward: Any) -> float:
    is_scalar = isinstance(reward, np.ndarray) and reward.ndim == 0 and reward.dtype.kind in _REAL_KINDS
    if is_scalar or isinstance(reward, (Real, np.bool_)):
        try:
            return float(reward)
        except OverflowError:
            return math.inf if reward > 0 else -math.inf
    if isinstance(reward, np.ndarray) and reward.size > 1:
        remedy = f"combine its {reward.size} parts in a wrapper, as mo_gymnasium.wrappers:LinearReward does"
        raise InvalidResultError("reward", "one number", f"an array of shape {reward.shape}", remedy)
    received = f"an array of shape {reward.shape}" if isinstance(reward, np.ndarray) else f"a {type(reward).__name__}"
    raise InvalidResultError("reward", "one number", received, "return a float")


def _flag(name: str, value: Any) -> bool:
    if isinstance(value, (bool, np.bool_)) or (
        isinstance(value, np.ndarray) and value.shape == () and value.dtype == bool
    ):
        return bool(value)
    raise InvalidResultError(name, "True or False", reprlib.repr(value), "return a bool")


_LEAVES = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


class ObservationRows(Protocol):
    """Rows of a batch, one per environment."""

    def write(self, index: int, value: Any) -> None:
        """Copies `value` into row `index`. Raises InvalidResultError if it does not fit the space."""

    def read(self, index: int) -> Any:
        """A copy of row `index`, in the form that a single environment returns."""


def is_fixed_size(space: Space) -> bool:
    """Whether every value of the space has the same known shape and a dtype without Python objects.

    >>> is_fixed_size(spaces.Dict(a=spaces.Discrete(3), b=spaces.Box(0, 1, (2,)))), is_fixed_size(spaces.Text(5))
    (True, False)
    """
    if type(space) is spaces.Dict:
        return all(is_fixed_size(part) for part in space.spaces.values())
    if type(space) is spaces.Tuple:
        return all(is_fixed_size(part) for part in space.spaces)
    return isinstance(space, _LEAVES) and space.dtype is not None and not space.dtype.hasobject


def have_equal_rows(a: Space, b: Space) -> bool:
    """Whether a value of one space fits the row of another: equal parts, shapes and dtypes; bounds may differ.

    >>> have_equal_rows(spaces.Box(0, 1, (2,)), spaces.Box(0, 9, (2,)))
    True
    >>> have_equal_rows(spaces.Discrete(3), spaces.MultiDiscrete([3]))
    False
    """
    if isinstance(a, spaces.Dict) and isinstance(b, spaces.Dict):
        return a.keys() == b.keys() and all(have_equal_rows(a[key], b[key]) for key in a)
    if isinstance(a, spaces.Tuple) and isinstance(b, spaces.Tuple):
        return len(a) == len(b) and all(have_equal_rows(*parts) for parts in zip(a, b, strict=True))
    return isinstance(a, _LEAVES) and type(a) is type(b) and (a.shape, a.dtype) == (b.shape, b.dtype)


def observation_rows(space: Space, arrays: Any, field: str = "observation") -> ObservationRows:
    """The rows of `arrays` (as from `gymnasium.vector.utils.create_empty_array`), as views."""
    if isinstance(space, spaces.Dict):
        return _DictRows({k: observation_rows(s, arrays[k], f"{field}[{k!r}]") for k, s in space.spaces.items()}, field)
    if isinstance(space, spaces.Tuple):
        return _TupleRows([observation_rows(s, arrays[k], f"{field}[{k}]") for k, s in enumerate(space.spaces)], field)
    return _DiscreteRows(arrays, field) if isinstance(space, spaces.Discrete) else _ArrayRows(arrays, field)


def can_hold(dtype: np.dtype[Any], values: np.ndarray) -> bool:
    """Whether `dtype` can represent these numbers, apart from the rounding of floats.

    >>> can_hold(np.dtype("float32"), np.zeros(2)), can_hold(np.dtype("uint8"), np.array([0, 255]))
    (True, True)
    >>> can_hold(np.dtype("uint8"), np.array([256])), can_hold(np.dtype("int64"), np.array([0.5]))
    (False, False)
    """
    if np.can_cast(values.dtype, dtype, "same_kind"):
        return True
    if values.dtype.kind not in "iub" or dtype.kind not in "iub":
        return False
    low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    return not values.size or bool(low <= int(values.min()) and int(values.max()) <= high)


class _ArrayRows:
    def __init__(self, array: np.ndarray, field: str) -> None:
        self._array = array
        self._shape = array.shape[1:]
        self._dtype = np.dtype(array.dtype.str)  # NumPy's single object for this dtype; a copied space has copies
        self._field = field
        self._told = False

    def write(self, index: int, value: Any) -> None:
        # Three comparisons, 0.1 µs: nearly all values conform, and are copied at once.
        if type(value) is not np.ndarray or value.dtype is not self._dtype or value.shape != self._shape:
            value = self._conform(value, index)
        self._array[index] = value

    def read(self, index: int) -> Any:
        return self._array[index, ...].copy()

    def _conform(self, value: Any, index: int) -> np.ndarray:
        """Accepts numbers that the dtype can hold; warns once if an array of environment 0 is converted."""
        received = np.asarray(value)
        if received.shape == self._shape and can_hold(self._dtype, received):
            exact = not isinstance(value, np.ndarray) or np.can_cast(received.dtype, self._dtype, "safe")
            if not exact and index == 0 and not self._told:
                self._told = True
                warnings.warn(
                    f"{self._field} is {received.dtype}, but its space declares {self._dtype}; it is converted at "
                    "every step. To keep full precision, return the declared dtype.",
                    stacklevel=2,
                )
            return received
        raise InvalidResultError(
            self._field,
            f"{self._dtype} of shape {self._shape}",
            f"{received.dtype} of shape {received.shape}",
            "convert it in the environment, or declare the space that it returns",
        )


class _DiscreteRows(_ArrayRows):
    def read(self, index: int) -> int:
        return int(self._array[index])


class _DictRows:
    def __init__(self, parts: dict[str, ObservationRows], field: str) -> None:
        self._parts = parts
        self._field = field

    def write(self, index: int, value: Any) -> None:
        try:
            values = [value[key] for key in self._parts]
        except (KeyError, TypeError, IndexError):
            received = f"a dict with keys {sorted(value)}" if isinstance(value, dict) else f"a {type(value).__name__}"
            expected = f"a dict with keys {list(self._parts)}"
            raise InvalidResultError(self._field, expected, received, "return every key of the space") from None
        for part, item in zip(self._parts.values(), values, strict=True):
            part.write(index, item)

    def read(self, index: int) -> Any:
        return {key: part.read(index) for key, part in self._parts.items()}


class _TupleRows:
    def __init__(self, parts: list[ObservationRows], field: str) -> None:
        self._parts = parts
        self._field = field

    def write(self, index: int, value: Any) -> None:
        if not isinstance(value, (tuple, list)) or len(value) != len(self._parts):
            size = f" of {len(value)}" if hasattr(value, "__len__") else ""
            expected = f"a tuple of {len(self._parts)}"
            received = f"a {type(value).__name__}{size}"
            raise InvalidResultError(self._field, expected, received, "return every part of the space")
        for part, item in zip(self._parts, value, strict=True):
            part.write(index, item)

    def read(self, index: int) -> Any:
        return tuple(part.read(index) for part in self._parts)

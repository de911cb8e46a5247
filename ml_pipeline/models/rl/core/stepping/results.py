"""Checks what an environment returned. Each error names what cannot be used and what to do."""

import math
import reprlib
from numbers import Real
from typing import Any

import numpy as np

from ml_pipeline.models.rl.core.stepping.errors import InvalidResultError

_REAL_KINDS = "fiub"  # of NumPy: float, int, unsigned, bool


def checked_step(result: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
    """The five parts of what step() returned. Raises InvalidResultError if one cannot be used.

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
        raise InvalidResultError("info", "a dict", f"a {type(info).__name__}", "return {} where there is none")
    return observation, reward, terminated, truncated, info


def checked_reset(result: Any) -> tuple[Any, dict[str, Any]]:
    """The two parts of what reset() returned. Raises InvalidResultError if it is anything else."""
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
        remedy = f"weigh its {reward.size} parts in a wrapper, as mo_gymnasium.wrappers:LinearReward does"
        raise InvalidResultError("reward", "one number", f"an array of shape {reward.shape}", remedy)
    received = f"an array of shape {reward.shape}" if isinstance(reward, np.ndarray) else f"a {type(reward).__name__}"
    raise InvalidResultError("reward", "one number", received, "return a float")


def _flag(name: str, value: Any) -> bool:
    if isinstance(value, (bool, np.bool_)) or (
        isinstance(value, np.ndarray) and value.shape == () and value.dtype == bool
    ):
        return bool(value)
    raise InvalidResultError(name, "True or False", reprlib.repr(value), "return a bool")

"""How hyperparameters change during training: with the share of steps taken, or with the KL of the last update."""

import math
from collections.abc import Callable

from ml_pipeline.config.checks import check_non_negative
from ml_pipeline.config.ppo import Schedule

_KL_FACTOR = 2.0
_STEP = 1.5
_LEAST, _MOST = 1e-2, 1e2


def scheduled(start: float, schedule: Schedule, progress: float) -> float:
    """The value after this share of training: `start`, or on a line or half a cosine wave from `start` to 0.

    >>> [round(scheduled(0.4, name, 0.25), 4) for name in ("constant", "linear", "cosine")]
    [0.4, 0.3, 0.3414]
    """
    left = _left(progress)
    if schedule == "linear":
        return start * left
    if schedule == "cosine":
        return start * 0.5 * (1.0 - math.cos(math.pi * left))
    return start


def of_function(name: str, function: Callable[[float], float], progress: float) -> float:
    """The value for the setting `name` by a user's function of the share of training that is left, from 1 to 0.

    Raises UserError where that is no number, or below 0.

    >>> of_function("clip_range", lambda left: 0.1 + 0.2 * left, 0.75)
    0.15000000000000002
    """
    left = _left(progress)
    value = function(left)
    check_non_negative(f"{name}({left:.4g})", value)
    return float(value)


def _left(progress: float) -> float:
    return min(1.0, max(0.0, 1.0 - progress))


def adapted(factor: float, *, approx_kl: float, target_kl: float) -> float:
    """The factor of the learning rate for the next update, given the KL of the last one.

    A KL above twice the target lowers it by a third; one below half the target raises it by half; within 0.01 to 100.
    Source: after the penalty's rule in Schulman et al. 2017, arXiv:1707.06347, section 4.

    >>> adapted(1.0, approx_kl=0.03, target_kl=0.01), adapted(1.0, approx_kl=0.004, target_kl=0.01)
    (0.6666666666666666, 1.5)
    >>> adapted(1.0, approx_kl=0.015, target_kl=0.01), adapted(90.0, approx_kl=0.0, target_kl=0.01)
    (1.0, 100.0)
    """
    if approx_kl > _KL_FACTOR * target_kl:
        return max(_LEAST, factor / _STEP)
    if approx_kl < target_kl / _KL_FACTOR:
        return min(_MOST, factor * _STEP)
    return factor

"""What of an environment's results can be used."""

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from ml_pipeline.models.rl.core.stepping.errors import InvalidResultError
from ml_pipeline.models.rl.core.stepping.results import checked_step


@pytest.mark.parametrize(
    "reward", [1, 1.0, True, np.float32(1), np.int8(1), np.uint16(1), np.True_, np.array(1.0), Fraction(1)]
)
def test_every_real_number_is_a_reward(reward: Any) -> None:
    _, checked, *_ = checked_step((0, reward, False, False, {}))
    assert (type(checked), checked) == (float, 1.0)


@pytest.mark.parametrize(
    ("reward", "received"),
    [
        (math.nan, "NaN"),
        (np.float32("nan"), "NaN"),
        (math.inf, "inf"),
        (-math.inf, "-inf"),
        (np.float16("inf"), "inf"),
        (np.array(-np.inf), "-inf"),
        pytest.param(10**400, "inf", id="huge"),
        pytest.param(-(10**400), "-inf", id="-huge"),
    ],
)
def test_a_reward_that_is_not_finite_is_refused(reward: Any, received: str) -> None:
    with pytest.raises(InvalidResultError) as caught:
        checked_step((0, reward, False, False, {}))
    assert caught.value.args[:3] == ("reward", "a finite number", received)


@pytest.mark.parametrize(
    ("reward", "received"),
    [
        (None, "a NoneType"),
        ("1", "a str"),
        (np.array([1.0]), "an array of shape (1,)"),
        (np.array("1"), "an array of shape ()"),
        (np.array(None), "an array of shape ()"),
        (np.complex128(1), "a complex128"),
    ],
)
def test_a_reward_that_is_no_number_is_refused(reward: Any, received: str) -> None:
    with pytest.raises(InvalidResultError) as caught:
        checked_step((0, reward, False, False, {}))
    assert caught.value.args[:3] == ("reward", "one number", received)


def test_a_long_value_is_cut() -> None:
    with pytest.raises(InvalidResultError) as caught:
        checked_step((0, 0.0, "x" * 10**6, False, {}))
    assert sum(map(len, caught.value.args)) < 1000


def test_a_long_reason_is_cut() -> None:
    assert len(InvalidResultError("info", "a dict", "x" * 10**6, "return {}").args[2]) < 1000

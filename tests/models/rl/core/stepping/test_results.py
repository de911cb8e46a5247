"""What of an environment's results can be used."""

import copy
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import create_empty_array

from ml_pipeline.models.rl.core.stepping import results
from ml_pipeline.models.rl.core.stepping.errors import InvalidResultError
from ml_pipeline.models.rl.core.stepping.results import checked_step, observation_rows


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


BOX = spaces.Box(-1, 1, (2,), np.float32)


def test_a_copied_space_does_not_slow_its_rows(monkeypatch):
    """The dtype of a copied or unpickled space is another object than NumPy's own."""
    space = copy.deepcopy(BOX)
    assert space.dtype is not np.dtype(np.float32)
    array = create_empty_array(space, 2)
    written = observation_rows(space, array)
    monkeypatch.setattr(results._ArrayRows, "_conform", None)
    written.write(1, np.array([3, 4], np.float32))
    np.testing.assert_array_equal(array, [[0, 0], [3, 4]])


@pytest.mark.parametrize("value", [[3, 4], (3.0, 4.0), np.array([3, 4], np.float16), np.array([3, 4], ">f4")])
def test_what_fits_is_converted(value):
    array = np.zeros((2, 2), np.float32)
    written = observation_rows(BOX, array)
    written.write(0, value)
    np.testing.assert_array_equal(array, [[3, 4], [0, 0]])


@pytest.mark.parametrize(
    ("value", "received"),
    [
        (np.zeros(3, np.float32), r"float32 of shape \(3,\)"),
        (np.zeros(2, complex), r"complex128 of shape \(2,\)"),
        ("x", "of shape"),
    ],
)
def test_what_does_not_fit_is_named(value, received):
    with pytest.raises(InvalidResultError, match=received):
        observation_rows(BOX, np.zeros((2, 2), np.float32)).write(0, value)


@pytest.mark.parametrize(
    ("declared", "returned"),
    [
        (np.float32, np.float64),
        (np.float32, np.int64),
        (np.float16, np.float32),
        (np.uint8, np.int64),
        (np.int8, np.int32),
    ],
)
def test_arrays_of_other_numbers_are_converted_and_said_once(declared, returned):
    array = np.zeros((2, 2), declared)
    written = observation_rows(spaces.Box(0, 9, (2,), declared), array)
    with pytest.warns(UserWarning, match=f"observation is {np.dtype(returned)}, but its space declares") as told:
        written.write(0, np.array([1, 0], returned))
    written.write(0, np.array([1, 0], returned))  # a second warning would be an error
    written.write(1, np.array([0, 1], returned))  # of another environment, of which nothing more is said
    assert len(told) == 1
    np.testing.assert_array_equal(array, [[1, 0], [0, 1]])


@pytest.mark.parametrize("value", [np.array([256, 0]), np.array([-1, 0]), np.array([0.5, 0])])
def test_numbers_that_the_dtype_cannot_hold_are_refused(value):
    with pytest.raises(InvalidResultError, match="uint8 of shape"):
        observation_rows(spaces.Box(0, 255, (2,), np.uint8), np.zeros((2, 2), np.uint8)).write(0, value)


def test_a_row_is_read_as_an_environment_returns_it():
    space = spaces.Tuple((spaces.Discrete(5), spaces.Box(0, 1, (), np.float64)))
    both = observation_rows(space, create_empty_array(space, 2))
    both.write(1, (np.int64(3), 0.5))
    choice, number = both.read(1)
    assert (type(choice), choice) == (int, 3)
    assert (number.shape, number.dtype, float(number)) == ((), np.float64, 0.5)


@pytest.mark.parametrize(
    ("a", "b", "equal"),
    [
        (spaces.Discrete(3), spaces.Discrete(9, start=-1), True),
        (spaces.MultiBinary(2), spaces.MultiBinary(3), False),
        (BOX, spaces.Box(-1, 1, (2,), np.float64), False),
        (spaces.Dict(a=BOX), spaces.Dict(a=spaces.Box(0, 9, (2,), np.float32)), True),
        (spaces.Dict(a=BOX), spaces.Dict(b=BOX), False),
        (spaces.Tuple([BOX]), spaces.Tuple([BOX, BOX]), False),
        (spaces.Text(3), spaces.Text(4), False),
    ],
)
def test_rows_are_equal_whatever_the_bounds(a, b, equal):
    assert results.have_equal_rows(a, b) is equal

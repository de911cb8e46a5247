"""Checks of single settings. A failed check raises one sentence: what was expected, what was received, what to do."""

import math
from collections.abc import Callable, Sequence
from numbers import Integral, Real

from ml_pipeline.config.errors import UserError, did_you_mean


def check_count(name: str, value: int, *, minimum: int = 1) -> None:
    """Raise UserError unless `value` is a whole number, at least `minimum`.

    >>> check_count("n_steps", 0)
    Traceback (most recent call last):
    ml_pipeline.config.errors.UserError: n_steps must be a whole number of at least 1, but got 0.
    """
    if not isinstance(value, Integral) or isinstance(value, bool) or value < minimum:
        raise UserError(f"{name} must be a whole number of at least {minimum}, but got {value!r}.")


def check_number(name: str, value: float, holds: Callable[[float], bool], expected: str, *, remedy: str = "") -> None:
    """Raise UserError unless `value` is a number for which `holds` is true.

    expected: the condition in words. remedy: ends the sentence.

    >>> check_number("fee_bps", "two", lambda bps: bps >= 0, "0 or more")
    Traceback (most recent call last):
    ml_pipeline.config.errors.UserError: fee_bps must be a number, but got 'two'.
    >>> check_number("fee_bps", -1, lambda bps: bps >= 0, "0 or more")
    Traceback (most recent call last):
    ml_pipeline.config.errors.UserError: fee_bps must be 0 or more, but got -1.
    """
    _require_number(name, value)
    if not holds(value):
        raise UserError(f"{name} must be {expected}, but got {value}{f'; {remedy}' if remedy else ''}.")


def check_positive(name: str, value: float, *, remedy: str = "") -> None:
    """Raise UserError unless 0 < value < infinity; `remedy` ends the sentence.

    >>> check_positive("clip_range", 0.0, remedy="the usual one is 0.2")
    Traceback (most recent call last):
    ml_pipeline.config.errors.UserError: clip_range must be above 0 and finite, but got 0.0; the usual one is 0.2.
    """
    check_number(name, value, lambda number: 0 < number < math.inf, "above 0 and finite", remedy=remedy)


def check_non_negative(name: str, value: float) -> None:
    """Raise UserError unless 0 <= value < infinity."""
    check_number(name, value, lambda number: 0 <= number < math.inf, "at least 0 and finite")


def check_within(name: str, value: float, low: float, high: float) -> None:
    """Raise UserError unless low <= value <= high.

    >>> check_within("gamma", 1.5, 0, 1)
    Traceback (most recent call last):
    ml_pipeline.config.errors.UserError: gamma must lie between 0 and 1, but got 1.5.
    """
    _require_number(name, value)
    if not low <= value <= high:  # false for NaN too
        raise UserError(f"{name} must lie between {low} and {high}, but got {value}.")


def check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    """Raise UserError, with the closest choice, unless `value` is one of the choices.

    >>> check_choice("activation", "tahn", ("tanh", "relu"))
    Traceback (most recent call last):
    ml_pipeline.config.errors.UserError: activation must be one of tanh, relu, but got "tahn". Did you mean "tanh"?
    """
    if value not in choices:
        hint = did_you_mean(str(value), choices)
        raise UserError(f'{name} must be one of {", ".join(choices)}, but got "{value}".{hint}')


def _require_number(name: str, value: float) -> None:
    if not isinstance(value, Real) or isinstance(value, bool):
        raise UserError(f"{name} must be a number, but got {value!r}.")


def is_plain(value: object) -> bool:
    """Whether JSON can represent the value."""
    if isinstance(value, dict):
        return all(isinstance(key, str) and is_plain(each) for key, each in value.items())
    if isinstance(value, list):
        return all(map(is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)

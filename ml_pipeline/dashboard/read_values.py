"""Numbers and texts of files that another version, or a hand, may have written: the value, or None where it is odd."""

import math

_LARGEST_COUNT = 2**63


def finite(value: object) -> float | None:
    """The number; None for anything else, and for one that is too large for a float."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def count(value: object) -> int | None:
    """The whole number from 0 on; None for anything else.

    >>> count(3), count(3.0), count(-1), count(True), count("3")
    (3, 3, None, None, None)
    """
    number = finite(value)
    return int(number) if number is not None and 0 <= number < _LARGEST_COUNT and number == int(number) else None


def text(value: object) -> str | None:
    """The text; None for anything else."""
    return value if isinstance(value, str) else None

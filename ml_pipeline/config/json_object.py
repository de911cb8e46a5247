"""Reads JSON from any source, with limits on its size."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.wording import in_one_line
from ml_pipeline.runtime.files import read_regular

_MOST_BYTES = 16_000_000
_MOST_VALUES = 2_000_000
"""This many of the shortest values take 150 MB."""


def parse_json(content: bytes) -> Any:
    """Parse JSON. Raises ValueError if it is invalid, nested too deeply, or holds more than two million values.

    The caller limits the size of the text. NaN and Infinity are accepted, as in Python's json.
    """
    if sum(map(content.count, (b",", b"[", b"{"))) > _MOST_VALUES:
        raise ValueError(f"it holds more than {_MOST_VALUES:,} values")
    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("its values are nested too deeply") from None


def read_json_object(path: Path, *, most_bytes: int = _MOST_BYTES) -> dict[str, Any]:
    """The JSON object in a file. Raises UserError if it cannot be read, is larger, or holds something else."""
    try:
        values = parse_json(read_regular(path, most_bytes=most_bytes))
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise UserError(f"{path} is not valid JSON: {in_one_line(error)}.") from error
    if not isinstance(values, dict):
        raise UserError(f"{path} must hold a JSON object, but holds a {type(values).__name__}.")
    return values


_LARGEST_COUNT = 2**63


def finite(value: object) -> float | None:
    """The number as a float; None for anything else and for infinite, NaN or too large numbers."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def count(value: object) -> int | None:
    """The number as a non-negative int; None for anything else.

    >>> count(3), count(3.0), count(-1), count(True), count("3")
    (3, 3, None, None, None)
    """
    number = finite(value)
    return int(number) if number is not None and 0 <= number < _LARGEST_COUNT and number == int(number) else None


def text(value: object) -> str | None:
    """The string; None for anything else."""
    return value if isinstance(value, str) else None


def without_nan(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values with None instead of NaN and infinity, which JSON lacks."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in values.items()
    }

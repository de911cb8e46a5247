"""JSON that this package wrote, or anyone else: read with limits."""

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
"""Of the shortest values, so many take 150 MB."""


def parse_json(content: bytes) -> Any:
    """The value of a JSON text. Raises ValueError if it is no JSON, too deep, or holds more than two million values.

    The size of the text is the caller's to limit. Numbers may be NaN or infinite, as Python's own.
    """
    if sum(map(content.count, (b",", b"[", b"{"))) > _MOST_VALUES:
        raise ValueError(f"it holds more than {_MOST_VALUES:,} values")
    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("its values lie too deep within each other") from None


def read_json_object(path: Path, *, most_bytes: int = _MOST_BYTES) -> dict[str, Any]:
    """The object of a regular file. Raises UserError where it cannot be read, is larger, or holds something else."""
    try:
        values = parse_json(read_regular(path, most_bytes=most_bytes))
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise UserError(f"{path} holds no JSON: {in_one_line(error)}.") from error
    if not isinstance(values, dict):
        raise UserError(f"{path} must hold a JSON object, but holds a {type(values).__name__}.")
    return values


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


def without_nan(values: Mapping[str, Any]) -> dict[str, Any]:
    """The same, with None in place of NaN and infinity, which JSON does not have."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in values.items()
    }

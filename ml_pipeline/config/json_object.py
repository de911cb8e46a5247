"""JSON that this package wrote, or anyone else: read with limits."""

import json
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

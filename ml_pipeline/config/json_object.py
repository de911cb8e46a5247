"""A file that holds one JSON object, which this package wrote."""

import json
from pathlib import Path
from typing import Any

from ml_pipeline.config.errors import UserError


def read_json_object(path: Path) -> dict[str, Any]:
    """Raises UserError where the file cannot be read, or holds something else."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} holds no JSON: {error}.") from error
    if not isinstance(values, dict):
        raise UserError(f"{path} must hold a JSON object, but holds a {type(values).__name__}.")
    return values

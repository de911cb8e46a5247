"""Features and rewards of the user: imports them by name, and says so if they fail."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from traceback import extract_tb
from typing import Any

from ml_pipeline.config.errors import UserError


def import_by_name(name: str) -> Any:
    """The object that "module:name" names. Raises UserError if it cannot be imported."""
    module, _, attribute = name.partition(":")
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        remedy = "write module:name, and put its folder on PYTHONPATH"
        raise UserError(f"{name} cannot be imported: {error}; {remedy}.") from error


def call_user_code(name: str, function: Callable[[Any], Any], argument: Any) -> Any:
    """The result of the function. Raises UserError with the file and line if it fails."""
    try:
        return function(argument)
    except Exception as error:
        place = extract_tb(error.__traceback__)[-1]
        message = f"{type(error).__name__}: {error}".rstrip(".")
        raise UserError(f"{name} failed in line {place.lineno} of {Path(place.filename).name}: {message}.") from error
